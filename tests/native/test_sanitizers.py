"""Shared bodies on teams of threads under ThreadSanitizer; the C interface under three sanitizers.

What a GPU would show only as a wrong token once in a million draws (a missing barrier, a read past a row) is
reported here on the spot. Not seen: what warps do without a barrier, clusters, fences of the whole device.
"""

from __future__ import annotations

import subprocess

import pytest

from .programs import PROGRAMS
from .sanitizers import run

teams = pytest.mark.parametrize("key", [key for key in PROGRAMS if key.startswith("team_")])


def expect_clean(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-6000:]}"


@teams
def test_a_team_of_threads_gives_the_bits_of_the_cpu_library(program, key) -> None:
    ended = run(program(key), 1, 2, 3, 8, 32)
    expect_clean(ended)
    assert "agree" in ended.stdout


@pytest.mark.slow
@teams
def test_larger_teams(program, key) -> None:
    expect_clean(run(program(key), 6, 2, 3, 5, 8, 32, 64, 256, seconds=1800))


@pytest.mark.parametrize("key", ["abi-thread", "abi-address"])
def test_the_c_interface(program, key) -> None:
    expect_clean(run(program(key), 1))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["abi-thread", "abi-address"])
def test_the_c_interface_at_length(program, key) -> None:
    expect_clean(run(program(key), 10, seconds=1800))


@pytest.mark.parametrize("key", ["noise"])
def test_failure_15_noise_at_the_ends_of_its_range(program, key) -> None:
    """Of the compiled library; the reference's is in tests/kernels/test_noise.py."""
    expect_clean(run(program(key)))


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
