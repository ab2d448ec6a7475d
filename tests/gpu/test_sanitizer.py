"""compute-sanitizer over one call of each op on small shapes, in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


@pytest.mark.skipif(TOOL is None, reason="no compute-sanitizer here")
@pytest.mark.parametrize("check", ["memcheck", "racecheck"])
def test_compute_sanitizer(check) -> None:
    command = [TOOL, "--tool", check, "--error-exitcode", "1", sys.executable, "-m", "tests.gpu.test_sanitizer"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=150)
    said = done.stdout + done.stderr
    if "not supported" in said or "Unable to" in said:
        pytest.skip(f"compute-sanitizer cannot run here: {said[-300:]}")
    assert done.returncode == 0, said[-4000:]
    assert "all calls made" in said


def main() -> None:
    import torch

    from .calls import CALLS, runs

    for name, make in CALLS.items():
        if runs(name, "cuda"):
            make(0, 300).to("cuda")("cuda")
    torch.cuda.synchronize()
    print("all calls made")


if __name__ == "__main__":
    main()
