"""`python -m d3d_runtime.cli`: the console script without an installed one."""

from d3d_runtime.cli import main

main()
