"""The K best tokens of each row by x = s + G among those that the filters leave; x = s for a greedy row.

Four launches, each spread over the rows, all but the third over splits of a row as well; the first three return
at once where no filter is on:

    top     the maximum                       split s of a row takes tiles s, s + splits, ...
    weigh   what lies above the first bars
    cut     the smallest value that top-k and top-p leave
    rank    each split's K best; min-p is tested as tokens are read

What follows (sample.py, draft_candidates.py, verify_tree.py) puts the splits together. Integer sums, maxima and
argmaxima with the lowest id among equals do not depend on the order, so neither do results on the splits. Launches
in stream order, not locks, carry partial results from one program to another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from .filters import BARS, CAPACITY, cut_kernel, fixed_point, relative_weight, row_tops, top_kernel, weigh_kernel
from .launch import SPLITS, grid_of, launch, splits_of, tuned
from .philox import GUMBEL, GUMBEL_MAX, gumbel, noise_words
from .rows import Rows, Sampling, any_of, locate, read

NO_TOKEN = tl.constexpr(2**31 - 1)  # id of a place that holds no token; its x is -inf


class Ranking(NamedTuple):
    """Each split's best tokens [R, splits, K], unordered, (-inf, -inf, NO_TOKEN) where there is none."""

    x: Any
    s: Any
    ids: Any
    tops: Any  # [R, splits] maxima of s; only if with_mass
    kept: Any  # [R, splits] i64: the mass that the filters leave; None unless with_mass


def rank(
    rows: Rows,
    sampling: Sampling,
    penalties: Any,
    num_rows: int,
    inner_count: int,
    k: int = 1,
    excluded: int = -1,
    with_mass: bool = False,
) -> tuple[Ranking, int]:
    """The ranking, and the number of splits."""
    logits = rows.logits
    vocab, device = logits.shape[-1], logits.device
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    splits = splits_of(num_rows, vocab, device)

    def partial(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(num_rows, *shape, dtype=dtype, device=device)

    tops = partial(real, splits)
    counts, masses = partial(torch.int64, splits, BARS.value), partial(torch.int64, splits, BARS.value)
    floors, lists = partial(real), partial(real, CAPACITY.value)
    kept = partial(torch.int64, splits) if with_mass else None
    found = Ranking(partial(real, splits, k), partial(real, splits, k), partial(torch.int32, splits, k), tops, kept)

    source = (rows, sampling, penalties)
    sizes = (num_rows, inner_count, sampling.seed.shape[0], logits.shape[0], splits, vocab, excluded)
    spread = grid_of(num_rows, splits)
    launch(top_kernel, spread, *source, tops, *sizes, with_mass)
    launch(weigh_kernel, spread, *source, tops, counts, masses, *sizes)
    launch(cut_kernel, grid_of(num_rows, 1), *source, tops, counts, masses, lists, floors, *sizes)
    launch(rank_kernel, spread, *source, floors, found, *sizes, k, triton.next_power_of_2(k))
    return found, splits


@tuned((1024, 4), (2048, 4), (2048, 8), (4096, 8))
@triton.jit(do_not_specialize=["num_rows", "inner_count", "batch", "packed_rows", "num_splits", "excluded", "k"])
def rank_kernel(
    rows, sampling, penalties, floors, found,
    num_rows, inner_count, batch, packed_rows, num_splits, vocab, excluded, k,
    PLACES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A split's K best, in PLACES >= K places. A tile is out, before any noise is drawn, if even the largest noise
    could not lift its maximum above the worst of them."""
    row = locate(rows, sampling, tl.program_id(0), num_rows, inner_count, batch, packed_rows, vocab, ROWS)
    split = tl.program_id(1)
    real: tl.constexpr = found.x.dtype.element_ty
    lift = tl.where(row.greedy, 0.0, GUMBEL_MAX).to(real)
    floor = tl.load(floors + row.index, mask=row.present, other=float("-inf"))[:, None]
    by_min = row.present & (row.min_p > 0)
    top = tl.zeros([ROWS], real)
    if found.kept is not None:
        top = row_tops(found.tops, row, row.present, num_splits)
    elif any_of(by_min):
        top = row_tops(found.tops, row, by_min, num_splits)

    place = tl.arange(0, PLACES)[None, :]
    best_x = tl.where(place < k, float("-inf"), float("inf")).to(real) + tl.zeros([ROWS, PLACES], real)
    best_s = tl.full([ROWS, PLACES], float("-inf"), real)
    best_id = tl.full([ROWS, PLACES], NO_TOKEN, tl.int32)
    bar = tl.full([ROWS], float("-inf"), real)  # what a token must beat: the worst of the K
    kept = tl.zeros([ROWS], tl.int64)

    for first in range(split * BLOCK, vocab, num_splits * BLOCK):
        tokens = first + tl.arange(0, BLOCK)[None, :]
        s = read(rows, row, penalties, tokens, inner_count, vocab, excluded)
        survives = s >= floor
        if any_of(by_min):
            likely = relative_weight(s, top[:, None]) >= row.min_p[:, None]
            survives &= likely | (s == top[:, None]) | (by_min == 0)[:, None]
        if found.kept is not None:
            kept += tl.sum(tl.where(survives, fixed_point(relative_weight(s, top[:, None])), 0), 1)
        s = tl.where(survives, s, float("-inf"))
        if any_of(tl.max(s, 1) + lift > bar):
            x = s
            if any_of(row.greedy == 0):
                noise = gumbel(noise_words(row.seed, row.position, GUMBEL, first, BLOCK))
                x = tl.where(row.greedy[:, None], s, s + noise.to(real))
            next_x = tl.max(x, 1)
            while any_of(next_x > bar):
                # Ids ascend from tile to tile and within one, so equals that come later do not beat the bar.
                better = (next_x > bar)[:, None]
                token = tl.min(tl.where(x == next_x[:, None], tokens, NO_TOKEN), 1)[:, None]
                hit = tokens == token
                worst = best_x == bar[:, None]  # of equals the highest id, of empty places the first
                last = tl.max(tl.where(worst, best_id, -1), 1)[:, None]
                slot = tl.min(tl.where(worst & (best_id == last), place, PLACES), 1)[:, None]
                into = better & (place == slot)
                best_s = tl.where(into, tl.max(tl.where(hit, s, float("-inf")), 1)[:, None], best_s)
                best_x = tl.where(into, next_x[:, None], best_x)
                best_id = tl.where(into, token, best_id)
                x = tl.where(hit, float("-inf"), x)
                next_x = tl.max(x, 1)
                bar = tl.min(best_x, 1)

    at = row.index.to(tl.int64) * num_splits + split
    if found.kept is not None:
        tl.store(found.kept + at, kept, mask=row.index < num_rows)
    at = at[:, None] * k + place
    wanted = (row.index < num_rows)[:, None] & (place < k)
    tl.store(found.x + at, best_x, mask=wanted)
    tl.store(found.s + at, best_s, mask=wanted)
    tl.store(found.ids + at, best_id, mask=wanted)


@triton.jit
def best_split(found, index, wanted, num_splits):
    """Puts the splits of rows `index` together for K = 1 -> ids [ROWS], NO_TOKEN if a row has no finite logit."""
    split = tl.arange(0, SPLITS)[None, :]
    at = index.to(tl.int64)[:, None] * num_splits + split
    mask = wanted[:, None] & (split < num_splits)
    x = tl.load(found.x + at, mask=mask, other=float("-inf"))
    ids = tl.load(found.ids + at, mask=mask, other=NO_TOKEN)
    return tl.min(tl.where(x == tl.max(x, 1)[:, None], ids, NO_TOKEN), 1)
