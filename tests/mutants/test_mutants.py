"""Tests that cannot fail prove nothing: every deliberately broken kernel must be noticed by its check."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ..native import toolchain
from ..native.toolchain import ROOT
from .catch import changed, copy_sources, notices, run_tests
from .table import MUTANTS, NATIVE, Mutant


@pytest.fixture(scope="session")
def verdict(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Mutant], tuple[bool, str]]]:
    """What the check of a mutant said. All mutants of this run are begun at once, two at a time."""
    if toolchain.compiler() is None:
        pytest.skip("no g++, which the kernels themselves need: there is nothing to break without them")
    folder = tmp_path_factory.mktemp("mutants")
    selected = {item.callspec.params["mutant"] for item in request.session.items if item.originalname == CAUGHT}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        begun: dict[Mutant, Future] = {
            mutant: pool.submit(notices, mutant, folder / str(i))
            for i, mutant in enumerate(MUTANTS)
            if mutant in selected
        }
        yield lambda mutant: begun[mutant].result()


def test_every_mutant_still_applies() -> None:
    """Also those of the long run: whoever changes a kernel learns at once that its mutant must follow."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        assert changed(mutant, text) != text, f"{mutant.name!r} changes nothing"


def test_the_kernels_as_they_are_pass_every_check(tmp_path) -> None:
    """Otherwise a mutant might be "noticed" by a check that fails on anything."""
    if toolchain.compiler() is None:
        pytest.skip("no g++, which the kernels themselves need")
    copy_sources(tmp_path)
    checks = sorted({mutant.caught_by for mutant in MUTANTS if not mutant.caught_by.startswith(NATIVE)})
    code, said = run_tests(checks, tmp_path)  # the native ones are tests/native/test_sanitizers.py
    assert code == 0, said


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=() if m.default else pytest.mark.slow) for m in MUTANTS],
)
def test_a_broken_kernel_is_noticed(verdict, mutant: Mutant) -> None:
    noticed, said = verdict(mutant)
    assert noticed, f"{mutant.name!r} ({mutant.file}) passed {mutant.caught_by}\n{said}"


CAUGHT = test_a_broken_kernel_is_noticed.__name__
