"""The native programs, built once a session, two at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from . import toolchain
from .programs import build
from .toolchain import Toolchain


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Path]]:
    """The path of a program; the first test that asks starts to build all that this run needs."""
    if toolchain.compiler() is None:
        pytest.skip("no g++, which the kernels themselves need: nothing to prove without them")
    needed = dict.fromkeys(
        item.callspec.params["key"] for item in request.session.items if program.__name__ in item.fixturenames
    )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built: dict[str, Future[Path]] = {key: pool.submit(build, key, Toolchain()) for key in needed}
        yield lambda key: built[key].result()
