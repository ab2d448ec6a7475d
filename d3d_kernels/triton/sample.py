"""sample in Triton: rank with K = 1, then the best of a row's splits. What it means is said in ops/sample.py."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..types import Penalties, SamplingTensors, Status
from .launch import grid_of, launch, rows_a_program
from .penalties import tables
from .ranking import NO_TOKEN, best_split, rank
from .rows import Rows, Sampling

NO_FINITE_LOGIT = tl.constexpr(int(Status.NO_FINITE_LOGIT))


def sample(
    logits: Tensor,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    token_ids: Tensor,
    status: Tensor,
) -> None:
    num_rows = logits.shape[0]
    rows = Rows(logits, logits.stride(0), 0, None, request_ids, positions, None)
    known = tables(penalties, logits, sampling.batch, None, None)
    found, splits = rank(rows, Sampling(*sampling.tensors()), known, num_rows, 1)
    launch(sample_kernel, grid_of(num_rows), found, token_ids, status, num_rows, splits)


@rows_a_program
@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def sample_kernel(
    found, token_ids, status, num_rows, num_splits, ROWS: tl.constexpr
):
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wanted = index < num_rows
    token = best_split(found, index, wanted, num_splits)
    nothing = token == NO_TOKEN
    tl.store(token_ids + index, tl.where(nothing, 0, token).to(tl.int64), mask=wanted)
    tl.store(status + index, tl.where(nothing, NO_FINITE_LOGIT, 0), mask=wanted)
