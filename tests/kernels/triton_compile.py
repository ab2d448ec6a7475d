"""Compiles what the Triton backend would launch, for a GPU that need not be there, and reports its resources.

    python -m tests.kernels.triton_compile 90 [--everything]

The ops run on CPU tensors as they would on a GPU, but each launch stops once its kernel is compiled to a cubin:
signatures, specialisations and options are the real ones. Prints JSON: what each kernel takes, and how many
variants of it exist before and after calls with other batch sizes. Not to be run under TRITON_INTERPRET.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import d3d_kernels as dk
from d3d_kernels import triton as backend
from d3d_kernels.triton import launch

VOCAB = 151_936
OPS = ("sample", "draft_candidates", "verify_tree")

compiled: dict[str, dict] = {}  # by kernel and choice
variants: dict[str, set] = defaultdict(set)  # by kernel
skip_known = False


class NoDevice:
    """What the compiler asks of a driver, answered without one."""

    def __init__(self, capability: int):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compile_only(everything: bool) -> None:
    """Launches compile: each kernel once, with its first choice of block sizes; or in every variant."""
    run = JITFunction.run

    def compile_kernel(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        variants[self.__name__].add(kernel.hash)
        what = [f"{key}={kwargs[key]}" for key in ("BLOCK", "num_warps") if key in kwargs]
        compiled[" ".join([self.__name__, *what, str(len(variants[self.__name__]))])] = kernel
        return kernel

    def try_choices(self, *args, **kwargs):
        if skip_known and self.fn.__name__ in variants:
            return
        for config in self.configs if everything else self.configs[:1]:
            self.fn.run(*args, **kwargs, **config.all_kwargs())

    JITFunction.run, Autotuner.run = compile_kernel, try_choices
    launch._processors = lambda _device: 132


def call(op: str, batch: int, dtype: torch.dtype, penalised: bool) -> None:
    nodes, k = 16, 8
    logits = torch.empty(batch, nodes, VOCAB, dtype=dtype)  # never touched, so never more than address space
    sampling, positions = dk.SamplingTensors.full(batch), torch.zeros(batch, dtype=torch.int64)
    penalties = None
    if penalised:
        ids, ones = torch.zeros(batch, 40, dtype=torch.int64), torch.ones(batch)
        words = torch.zeros(batch, VOCAB // 32, dtype=torch.int32)
        penalties = dk.Penalties(ids, ids, ones, ones, ones, ids, torch.zeros(batch, 40), words)
    if op == "sample":
        outputs = torch.empty(batch, dtype=torch.int64), torch.empty(batch, dtype=torch.int32)
        backend.sample(logits[:, 0], sampling, positions, None, penalties, *outputs)
    elif op == "draft_candidates":
        outputs = dk.Candidates.empty(batch, nodes, k).tensors()
        backend.draft_candidates(logits, k, sampling, positions, None, penalties, 0.5, VOCAB - 1, *outputs)
    else:
        *tree, _ = dk.DraftTree.empty(batch, nodes).tensors()
        outputs = dk.Verdict.empty(batch, nodes).tensors()
        backend.verify_tree(logits, None, *tree, sampling, positions, penalties, *outputs, dk.Outcomes.empty(batch, 8))


def resources(kernel) -> dict[str, int | bool]:
    """Registers a thread and bytes of stack (where spills go), as the assembler settled them."""
    ptx = kernel.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout)
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": kernel.metadata.shared,
        "widest_load": max(map(int, re.findall(r"ld\.global\.v(\d)", ptx)), default=1),  # in words of 32 bits
        "flushes_subnormals": ".ftz" in ptx,
        "approximate_division": "div.full" in ptx or "div.approx" in ptx,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("capability", type=int)
    parser.add_argument("--everything", action="store_true", help="every op, dtype and choice, penalised and not")
    arguments = parser.parse_args()
    driver.set_active(NoDevice(arguments.capability))
    compile_only(arguments.everything)

    global skip_known
    calls = [("verify_tree", torch.bfloat16, True)]
    if arguments.everything:
        calls = list(itertools.product(OPS, (torch.bfloat16, torch.float32, torch.float64), (False, True)))
    for op, dtype, penalised in calls:
        call(op, 2, dtype, penalised)
    before = {name: len(hashes) for name, hashes in variants.items()}
    for op, dtype, penalised in calls:
        for batch in (1, 3, 16, 64):
            call(op, batch, dtype, penalised)
    after = {name: len(hashes) for name, hashes in variants.items()}
    skip_known = True  # the kernels that verify_tree has no use for
    call("sample", 2, torch.bfloat16, False)
    call("draft_candidates", 2, torch.bfloat16, False)
    report = {name: resources(kernel) for name, kernel in compiled.items()}
    print(json.dumps({"before": before, "after": after, "kernels": report}))


if __name__ == "__main__":
    main()
