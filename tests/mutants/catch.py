"""Builds one broken copy of the kernels and asks the check that should notice.

Tests run in processes forked from one that has imported torch already: starting it costs more than most checks.
This module must not import d3d_kernels, whose place each of these processes chooses for itself.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

from ..native.programs import build
from ..native.sanitizers import run
from ..native.toolchain import ROOT, Toolchain
from .table import NATIVE, Mutant

TIMEOUT = 300
NOT_IMPORTED = 90


class Stale(AssertionError):
    """The sources have moved on, and the table has not."""


def changed(mutant: Mutant, text: str) -> str:
    """The broken text."""
    found = text.count(mutant.before)
    if found != 1:
        raise Stale(
            f"mutant {mutant.name!r}: {mutant.file} has its text {found} times instead of once:\n{mutant.before}\n"
            "If the code has moved or reads differently now, break it there in the same way (tests/mutants/table.py)."
        )
    return text.replace(mutant.before, mutant.after)


def notices(mutant: Mutant, folder: Path) -> tuple[bool, str]:
    """Whether the check fails on the broken kernels, and what it said."""
    copy_sources(folder)
    file = folder / mutant.file
    file.write_text(changed(mutant, file.read_text()))
    if mutant.caught_by.startswith(NATIVE):
        program = build(mutant.caught_by.removeprefix(NATIVE), Toolchain(folder / "csrc"))
        ended = run(program, seconds=TIMEOUT)
        return ended.returncode != 0, ended.stdout + ended.stderr
    code, said = run_tests([mutant.caught_by], folder)
    if code not in (0, 1) and code > 0:  # a negative one is a crash, which CI would not overlook
        raise AssertionError(f"the check did not run (exit {code}):\n{said}")
    return code != 0, said


def copy_sources(folder: Path) -> None:
    """csrc and d3d_kernels, without what was built."""
    for name in ("csrc", "d3d_kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def run_tests(tests: list[str], folder: Path) -> tuple[int, str]:
    """pytest on the kernels under ``folder``, built first. Exit code and output."""
    extension = Toolchain(folder / "csrc").extension()
    shutil.copy2(extension, folder / "d3d_kernels" / extension.name)
    log = folder / "log"
    process = context().Process(target=_run_tests, args=(tests, str(folder), str(log)))
    process.start()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"still running after {TIMEOUT} s: {tests}")
    return process.exitcode, log.read_text()[-6000:]


def context() -> multiprocessing.context.ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["torch", "hypothesis", "pytest", "scipy.stats", "tests.mutants.catch"])
    return server


def _run_tests(tests: list[str], folder: str, log: str) -> None:
    with open(log, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.path.insert(0, folder)
    try:
        import d3d_kernels

        importlib.import_module("d3d_kernels._C")
        assert Path(d3d_kernels.__file__).is_relative_to(folder), d3d_kernels.__file__
    except (ImportError, AssertionError) as error:
        print(f"broken kernels cannot be imported: {error}")
        sys.exit(NOT_IMPORTED)
    import pytest

    os.chdir(ROOT)
    plain = ["-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-c", str(ROOT / "pyproject.toml")]
    sys.exit(int(pytest.main([*plain, *tests])))
