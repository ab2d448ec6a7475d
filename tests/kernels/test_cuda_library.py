"""The compiled CUDA library without a GPU: it loads, it refuses clearly, and its kernels keep their limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from d3d_kernels import registry

CUDA = registry.load("cuda")
if isinstance(CUDA, Exception):
    pytest.skip(f"no CUDA library here: {CUDA}", allow_module_level=True)
LIBRARY = CUDA.library

ARCHITECTURES = {"sm_80", "sm_90", "sm_100", "sm_120"}
ROW_KERNELS = {"sample_kernel", "draft_kernel", "verify_all_rows_kernel", "verify_lazily_kernel"}
# Registers a thread: what lets as many blocks run on a multiprocessor at once as launch.cuh counts on.
REGISTERS = {"float": 80, "double": 128}
SHARED_BYTES = {"float": 32 << 10, "double": 48 << 10}
SMALL_KERNELS = {"build_tree_kernel": 64, "select_outcome_kernel": 40, "move_kv_kernel": 64}


def test_names_the_error_where_there_is_no_driver() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    words = (1, 1, 1, 1, 1)  # addresses that nobody reads
    with pytest.raises(RuntimeError, match=r"CUDA refused the launch: .*(driver|device)"):
        LIBRARY.sample(1, 0, 8, 1, 8, 1, *words, 1, 0, None, 1, 1, 0, 0)
    with pytest.raises(RuntimeError, match="CUDA refused the launch"):
        LIBRARY.move_kv(1, 1, 1, 1, 1, 1, 1, 1, 1, 0)
    assert LIBRARY.sample_workspace_bytes(1, 8, 0, True) == 0


def test_refuses_what_cannot_be_launched() -> None:
    with pytest.raises(ValueError, match="invalid size or missing pointer"):
        LIBRARY.sample(0, 0, 8, 1, 8, 1, 1, 1, 1, 1, 1, 1, 0, None, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="unknown dtype"):
        LIBRARY.sample(1, 9, 8, 1, 8, 1, 1, 1, 1, 1, 1, 1, 0, None, 1, 1, 0, 0)
    with pytest.raises(ValueError, match="too few arguments"):
        LIBRARY.sample(1, 0)


def disassembler() -> str | None:
    """cuobjdump: in PATH, beside nvcc, in a toolkit, or in Triton's package."""
    folders = []
    if nvcc := shutil.which("nvcc"):
        folders.append(Path(nvcc).resolve().parent)
    folders += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"]
    if triton := find_spec("triton"):
        folders.append(Path(triton.origin).parent / "backends" / "nvidia" / "bin")
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=os.pathsep.join(map(str, folders)))


@cache
def resources() -> dict[tuple[str, str, str], dict[str, int]]:
    """(architecture, kernel, compute type or "") -> what ptxas gave the kernel."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no cuobjdump here")
    text = subprocess.run([tool, "--dump-resource-usage", LIBRARY.__file__], capture_output=True, text=True, check=True)
    found, architecture, kernel = {}, "", None
    for line in text.stdout.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (\w+):", line):
            kernel = re.search(r"\d+([a-z_]+_kernel)(I[fd]E)?", match[1])
        elif kernel and "REG:" in line:
            real = {"IfE": "float", "IdE": "double", None: ""}[kernel[2]]
            found[architecture, kernel[1], real] = {key: int(n) for key, n in re.findall(r"([A-Z]+):(\d+)", line)}
    return found


def test_every_kernel_is_compiled_for_every_architecture() -> None:
    rows = {(name, real) for name in ROW_KERNELS for real in REGISTERS}
    wanted = rows | {(name, "") for name in SMALL_KERNELS}
    for architecture in ARCHITECTURES:
        assert {key[1:] for key in resources() if key[0] == architecture} == wanted


def test_no_kernel_spills() -> None:
    """Neither stack nor local memory: no register array is indexed at run time, and none did not fit."""
    spilling = {key: use for key, use in resources().items() if use["STACK"] or use["LOCAL"]}
    assert not spilling


def test_kernels_keep_their_registers_and_shared_memory() -> None:
    over = {}
    for (architecture, name, real), use in resources().items():
        registers = REGISTERS[real] if real else SMALL_KERNELS[name]
        shared = SHARED_BYTES[real] if real else 4 << 10
        if name == "draft_kernel":
            registers = 128
        if use["REG"] > registers or use["SHARED"] > shared:
            over[architecture, name, real] = use
    assert not over
