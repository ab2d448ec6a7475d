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
# Registers a thread: what lets as many blocks run on a multiprocessor at once as rows.cuh counts on.
SCANS = {"sample_kernel": 80, "verify_all_rows_kernel": 80, "verify_lazily_kernel": 80}
DRAFTS = {"draft_kernel": 128, "draft_tree_kernel": 128}
OTHERS = {
    "verify_chain_kernel": 128,
    "build_tree_kernel": 64,
    "select_outcome_kernel": 64,
    "frontier_kernel": 80,
    "dense_mask_kernel": 48,
    "packed_mask_kernel": 96,
    "move_kv_kernel": 80,
    "rollback_kv_kernel": 96,
}
SHARED_BYTES = {"float": 32 << 10, "double": 44 << 10}  # so that three and two blocks fit in 100 KB
# Stack, where it is not zero: verify_chain's passes are functions, and rows that are moved wait there on sm_100.
STACK_BYTES = {"verify_chain_kernel": 1200, "move_kv_kernel": 8, "rollback_kv_kernel": 8}


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
            kernel = re.search(r"\d+([a-z_]+_kernel)(?:I([fdhtjm])E)?", match[1])
        elif kernel and "REG:" in line:
            real = {"f": "float", "d": "double"}.get(kernel[2], "")
            use = {key: int(n) for key, n in re.findall(r"([A-Z]+):(\d+)", line)}
            known = found.setdefault((architecture, kernel[1], real), use)
            known |= {key: max(known[key], n) for key, n in use.items()}
    return found


def test_every_kernel_is_compiled_for_every_architecture() -> None:
    wanted = {(name, real) for name in SCANS | DRAFTS for real in SHARED_BYTES} | {(name, "") for name in OTHERS}
    for architecture in ARCHITECTURES:
        assert {key[1:] for key in resources() if key[0] == architecture} == wanted


def test_no_kernel_spills() -> None:
    """Neither stack nor local memory: no register array is indexed at run time, and none did not fit."""
    spilling = {
        key: use
        for key, use in resources().items()
        if use["LOCAL"] or use["STACK"] > STACK_BYTES.get(key[1], 0)
    }
    assert not spilling


def test_kernels_keep_their_registers_and_shared_memory() -> None:
    over = {}
    for (architecture, name, real), use in resources().items():
        registers = 128 if real == "double" else (SCANS | DRAFTS | OTHERS)[name]
        if use["REG"] > registers or use["SHARED"] > SHARED_BYTES[real or "double"]:
            over[architecture, name, real] = use
    assert not over
