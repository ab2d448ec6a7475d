"""How kernels are launched: block sizes, splits of a row, compile options.

Sizes that change from call to call are run-time arguments and not specialised, so a batch size never compiles
anew. On a GPU the block sizes of kernels that read logits are chosen among a few by measuring once a
vocabulary and dtype (Triton's autotuner), on the first call: warm up before capturing a graph. Triton's
interpreter takes one set of small blocks.
"""

from __future__ import annotations

from functools import cache

import torch
import triton

INTERPRETED = triton.knobs.runtime.interpret
MAX_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 4
INTERPRETER_ROWS = 32

# fp-fusion off: rounding is part of a kernel's definition, see fp32.py.
OPTIONS = {"enable_fp_fusion": False}


def launch(kernel, grid, *arguments, **meta) -> None:
    kernel[grid](*arguments, **meta, **OPTIONS)


def tuned(*choices: tuple[int, int]):
    """A kernel with ROWS rows a program, BLOCK tokens a tile; choices: (BLOCK, warps)."""
    if INTERPRETED:
        configs = [triton.Config({"ROWS": INTERPRETER_ROWS, "BLOCK": 512})]
    else:
        configs = [triton.Config({"ROWS": 1, "BLOCK": block}, num_warps=warps) for block, warps in choices]
    return triton.autotune(configs, key=["vocab"])


def rows_a_program(kernel):
    """A kernel over rows whose tiles are small, so that nothing is left to choose but ROWS."""
    return triton.autotune([triton.Config({"ROWS": INTERPRETER_ROWS if INTERPRETED else 1}, num_warps=4)], key=[])(kernel)


def grid_of(rows: int, splits: int = 1):
    """Programs (group of rows, split); CUDA allows 65,535 on the second axis."""
    return lambda meta: (triton.cdiv(rows, meta["ROWS"]), splits)


def splits_of(rows: int, vocab: int, device: torch.device) -> int:
    """Over how many programs to spread a row, so that few rows fill the GPU too."""
    if INTERPRETED:
        return 2
    wanted = triton.cdiv(PROGRAMS_PER_PROCESSOR * _processors(device), rows)
    return max(1, min(wanted, MAX_SPLITS, triton.cdiv(vocab, 1024)))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
