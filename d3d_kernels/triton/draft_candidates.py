"""draft_candidates in Triton: rank with K candidates, then the K best of a row's splits in order.

What it means is said in ops/draft_candidates.py. The mass that the filters leave, summed in fixed point as tokens
are ranked, gives the log-probabilities.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..types import Penalties, SamplingTensors
from .fp32 import exp_negative, log_positive
from .launch import SPLITS, grid_of, launch, rows_a_program
from .penalties import tables
from .ranking import NO_TOKEN, rank
from .rows import GREEDY_BELOW, Rows, Sampling


def draft_candidates(
    logits: Tensor,
    k: int,
    sampling: SamplingTensors,
    positions: Tensor,
    request_ids: Tensor | None,
    penalties: Penalties | None,
    beta: float,
    mask_token_id: int,
    token_ids: Tensor,
    log_probs: Tensor,
    scores: Tensor,
) -> None:
    outer, length, vocab = logits.shape
    num_rows = outer * length
    excluded = mask_token_id if 0 <= mask_token_id < vocab else -1
    rows = Rows(logits, logits.stride(0), logits.stride(1), None, request_ids, positions, None)
    parameters = Sampling(*sampling.tensors())
    known = tables(penalties, logits, sampling.batch, None, None)
    found, splits = rank(rows, parameters, known, num_rows, length, k, excluded, with_mass=True)
    launch(
        candidates_kernel, grid_of(num_rows), found, sampling.temperature, request_ids, token_ids, log_probs, scores,
        num_rows, length, sampling.batch, splits, k, beta,
        triton.next_power_of_2(k),
    )  # fmt: skip


@rows_a_program
@triton.jit(do_not_specialize=["num_rows", "length", "batch", "num_splits", "k", "beta"])
def candidates_kernel(
    found, temperature, request_ids, token_ids, log_probs, scores,
    num_rows, length, batch, num_splits, k, beta,
    PLACES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wanted = index < num_rows
    request = index // length
    if request_ids is not None:
        request = tl.load(request_ids + request, mask=wanted, other=0)
    known = wanted & (request >= 0) & (request < batch)  # the others have no candidates at all
    greedy = (tl.load(temperature + request, mask=known, other=0.0) >= GREEDY_BELOW) == 0

    split = tl.arange(0, SPLITS)[None, :]
    at = index.to(tl.int64)[:, None] * num_splits + split
    mask = wanted[:, None] & (split < num_splits)
    top = tl.max(tl.load(found.tops + at, mask=mask & known[:, None], other=float("-inf")), 1)
    kept = tl.sum(tl.load(found.kept + at, mask=mask, other=0), 1)
    log_mass = log_positive(tl.maximum(kept.to(tl.float32) * 2.0**-40, 2.0**-40))

    offer = tl.arange(0, SPLITS * PLACES)[None, :]
    at = index.to(tl.int64)[:, None] * (num_splits * k) + offer
    mask = wanted[:, None] & (offer < num_splits * k)
    x = tl.load(found.x + at, mask=mask, other=float("-inf"))
    s = tl.load(found.s + at, mask=mask, other=float("-inf"))
    ids = tl.load(found.ids + at, mask=mask, other=NO_TOKEN)

    place = tl.arange(0, PLACES)[None, :]
    best_id = tl.full([ROWS, PLACES], NO_TOKEN, tl.int32)
    log_prob = tl.full([ROWS, PLACES], float("-inf"), tl.float32)
    sharpened = tl.full([ROWS, PLACES], float("-inf"), tl.float32)
    first_x = tl.max(x, 1)
    for i in range(k):
        best = tl.max(x, 1)
        token = tl.min(tl.where(x == best[:, None], ids, NO_TOKEN), 1)
        hit = (ids == token[:, None]) & (token != NO_TOKEN)[:, None]
        into = (place == i) & (token != NO_TOKEN)[:, None]
        below = (tl.max(tl.where(hit, s, float("-inf")), 1) - top).to(tl.float32)
        best_id = tl.where(into, token[:, None], best_id)
        log_prob = tl.where(into, (below - log_mass)[:, None], log_prob)
        sharpened = tl.where(into, tl.div_rn((best - first_x).to(tl.float32), beta)[:, None], sharpened)
        x = tl.where(hit, float("-inf"), x)
        ids = tl.where(hit, NO_TOKEN, ids)

    present = best_id != NO_TOKEN
    total = tl.sum(exp_negative(sharpened), 1)
    score = sharpened - log_positive(tl.maximum(total, 1.0))[:, None]
    score = tl.where(greedy[:, None], log_prob, score)
    at = index.to(tl.int64)[:, None] * k + place
    mask = wanted[:, None] & (place < k)
    tl.store(token_ids + at, tl.where(present, best_id, -1).to(tl.int64), mask=mask)
    tl.store(log_probs + at, log_prob, mask=mask)
    tl.store(scores + at, tl.where(present, score, float("-inf")), mask=mask)
