"""The one exception for what a user can mend: its text is one line with the cause and the way out."""


class UserError(ValueError):
    """Bad input (a path, a config, a prompt, a parameter). The command line prints it and exits with code 2."""
