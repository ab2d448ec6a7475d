"""The comparison behind `d3d bench`: what each mode does on this machine, in one run."""
