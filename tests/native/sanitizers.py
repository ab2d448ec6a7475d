"""Running programs that were built with a sanitizer."""

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
