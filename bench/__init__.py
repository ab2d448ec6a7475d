"""Microbenchmarks: `pytest bench/ --benchmark-only`. One file an op, named after it."""
