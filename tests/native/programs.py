"""The native programs and how each is built."""

from __future__ import annotations

from pathlib import Path

from .toolchain import ADDRESS, PLAIN, THREAD, Toolchain

# key: source, flags of the program, of the library, and of the library's row kernels. A thread team is compared
# with the plain library. Under ThreadSanitizer the library is there for its pool, which row kernels never see.
PROGRAMS = {
    "team_rows": ("team_rows", THREAD, PLAIN, PLAIN),
    "team_trees": ("team_trees", THREAD, PLAIN, PLAIN),
    "team_chain": ("team_chain", THREAD, PLAIN, PLAIN),
    "abi-thread": ("abi", THREAD, THREAD, PLAIN),
    "abi-address": ("abi", ADDRESS, ADDRESS, ADDRESS),
    "noise": ("noise", PLAIN, None, None),
    "faults-thread": ("faults", THREAD, None, None),
    "faults-address": ("faults", ADDRESS, None, None),
}


def build(key: str, toolchain: Toolchain) -> Path:
    """The program, compiled unless it is there already."""
    name, flags, library, rows = PROGRAMS[key]
    return toolchain.program(name, flags, toolchain.library(library, rows) if library else [])
