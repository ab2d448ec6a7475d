"""The public ops, one file each: the docstring is the contract; the function checks and dispatches."""
