"""The native programs, built once a session, two at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from . import toolchain
from .toolchain import ADDRESS, PLAIN, THREAD, Toolchain

# name, flags of the program, flags of the library, flags of its row kernels. Thread teams are compared with the
# plain library. Under ThreadSanitizer the library is there for its pool, of which row kernels know nothing.
PROGRAMS = {
    "team_rows": ("team_rows", THREAD, PLAIN, PLAIN),
    "team_trees": ("team_trees", THREAD, PLAIN, PLAIN),
    "abi-thread": ("abi", THREAD, THREAD, PLAIN),
    "abi-address": ("abi", ADDRESS, ADDRESS, ADDRESS),
    "faults-thread": ("faults", THREAD, None, None),
    "faults-address": ("faults", ADDRESS, None, None),
}


def build(key: str) -> Path:
    name, flags, library, rows = PROGRAMS[key]
    build = Toolchain()
    return build.program(name, flags, build.library(library, rows) if library else [])


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Path]]:
    """The path of a program of PROGRAMS; the first call starts to build all that this run will ask for."""
    if toolchain.compiler() is None:
        pytest.skip("no g++, which the kernels themselves need: nothing to prove without them")
    wanted = dict.fromkeys(
        item.callspec.params["key"] for item in request.session.items if "key" in getattr(item, "callspec", _NONE).params
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built: dict[str, Future[Path]] = {key: pool.submit(build, key) for key in wanted}
        yield lambda key: built[key].result()


class _NONE:
    params: dict[str, object] = {}
