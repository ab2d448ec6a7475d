"""Shared bodies on teams of threads under ThreadSanitizer; the C interface under three sanitizers.

What a GPU would show only as a wrong token once in a million draws (a missing barrier, a read past a row) is
reported here on the spot. Not seen: what warps do without a barrier, clusters, fences of the whole device.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENVIRONMENT = {
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=66",
}
ASLR = "unexpected memory mapping"  # an old libtsan on a kernel that randomises addresses more than it knows


def run(program: Path, *arguments: object, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """The program's end; without randomised addresses where ThreadSanitizer asks for that."""
    command = [str(program), *map(str, arguments)]
    environment = {**os.environ, **ENVIRONMENT}

    def attempt(*prefix: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, timeout=seconds)

    ended = attempt()
    if ASLR in ended.stderr:
        ended = attempt("setarch", "-R")
        if "Operation not permitted" in ended.stderr:
            pytest.skip("ThreadSanitizer cannot start: this container may not turn address randomisation off")
    return ended


def expect_clean(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}"


@pytest.mark.parametrize("key", ["team_rows", "team_trees"])
def test_a_team_of_threads_gives_the_bits_of_the_cpu_library(program, key) -> None:
    ended = run(program(key), 1, 2, 3, 8, 32)
    expect_clean(ended)
    assert "agree" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("key", ["team_rows", "team_trees"])
def test_larger_teams(program, key) -> None:
    expect_clean(run(program(key), 6, 2, 3, 5, 8, 32, 64, 256, seconds=1800))


@pytest.mark.parametrize("key", ["abi-thread", "abi-address"])
def test_the_c_interface(program, key) -> None:
    expect_clean(run(program(key), 1))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["abi-thread", "abi-address"])
def test_the_c_interface_at_length(program, key) -> None:
    expect_clean(run(program(key), 10, seconds=1800))


@pytest.mark.parametrize(
    "key,fault,report",
    [
        ("faults-thread", "race", "data race"),
        ("faults-thread", "divergence", "ranks wait at different barriers"),
        ("faults-thread", "early exit", "ranks wait at different barriers"),
        ("faults-thread", "one past the output", "wrote outside an output"),
        ("faults-thread", "a changed input", "changed an input"),
        ("faults-address", "one past the input", "heap-buffer-overflow"),
        ("faults-address", "overflow", "signed integer overflow"),
    ],
)
def test_the_checks_can_fail(program, key, fault, report) -> None:
    ended = run(program(key), fault)
    assert ended.returncode != 0 and report in ended.stderr, f"{fault!r} went unnoticed\n{ended.stderr[-3000:]}"
