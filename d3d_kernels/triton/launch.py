"""How kernels are launched: block sizes, splits of a row, compile options.

Sizes that change from call to call are run-time arguments and not specialised, so a batch size never compiles
anew. On a GPU the block size of rank_kernel, which every call runs in full, is chosen among a few by measuring once
a vocabulary and dtype (Triton's autotuner), on the first call: warm up before capturing a graph. How long the
others run depends on the parameters of the requests, so measuring them would choose at random; theirs are fixed.
Triton's interpreter takes one set of small blocks.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
SPLITS = tl.constexpr(4 if INTERPRETED else 64)  # programs a row at most; padding where kernels put splits together
PROGRAMS_PER_PROCESSOR = 4
INTERPRETER_ROWS = 64

# fp-fusion off: rounding is part of a kernel's definition, see fp32.py.
OPTIONS = {"enable_fp_fusion": False}


def launch(kernel, grid, *arguments, **meta) -> None:
    kernel[grid](*arguments, **meta, **OPTIONS)


def tuned(*choices: tuple[int, int]):
    """A kernel with ROWS rows a program, BLOCK tokens a tile; choices: (BLOCK, warps), measured if several."""
    if INTERPRETED:
        configs = [triton.Config({"ROWS": INTERPRETER_ROWS, "BLOCK": 512})]
    else:
        configs = [triton.Config({"ROWS": 1, "BLOCK": block}, num_warps=warps) for block, warps in choices]
    return triton.autotune(configs, key=["vocab"])


def rows_a_program(kernel):
    """A kernel over rows whose tiles are small, so that nothing is left to choose but ROWS."""
    rows = INTERPRETER_ROWS if INTERPRETED else 1
    return triton.autotune([triton.Config({"ROWS": rows}, num_warps=4)], key=[])(kernel)


def grid_of(rows: int, splits: int = 1):
    """Programs (group of rows, split); CUDA allows 65,535 on the second axis."""
    return lambda meta: (triton.cdiv(rows, meta["ROWS"]), splits)


def splits_of(rows: int, vocab: int, device: torch.device) -> int:
    """Over how many programs to spread a row, so that few rows fill the GPU too."""
    if INTERPRETED:
        return 2
    wanted = triton.cdiv(PROGRAMS_PER_PROCESSOR * _processors(device), rows)
    return max(1, min(wanted, SPLITS.value, triton.cdiv(vocab, 1024)))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
