"""Where top-k and top-p cut a row, without sorting it: the algebra of csrc/include/d3d/filter.h.

Both filters keep a token while the weight of the strictly larger values stays below a goal,

    top-k   weight 1,    goal k             (so ties of the k-th largest value stay in)
    top-p   weight m_v,  goal p * sum m_v   m_v = round(2^40 exp(s_v - max s)), an integer

so the cut is the smallest c with above(c) = (weight of the values > c) < goal. Keys order as floats do, and c is
searched among keys by sections:

    bars   BARS values at once; one pass over the tokens weighs what lies above each of them, and the cut is then
           known to lie between two neighbours

The first bars lie at fixed distances below the maximum, and their pass is spread over several programs a row
(weigh_kernel). One program then finishes the row (cut_kernel): while more values lie between the two bars than a
list takes, it passes over the row again, with bars at equal steps of the key; then it goes on in the list, which
stays in registers. A step divides the range of keys by BARS, so the search ends after 11 (22 for f64) steps and a
few, whatever the row holds: constant, -inf but for one token, subnormal, adjacent floats.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .fp32 import exp_negative
from .launch import INTERPRETED, SPLITS, tuned
from .rows import any_of, locate, read

LOG_BARS = tl.constexpr(3)
BARS = tl.constexpr(8)
CAPACITY = tl.constexpr(256 if INTERPRETED else 2048)  # values of a row's list


@triton.jit
def relative_weight(s, top):
    """exp(s - top) in fp32, whatever the compute type; 1 at the maximum."""
    return exp_negative((s - top).to(tl.float32))


@triton.jit
def fixed_point(weight):
    """round(2^40 weight), half to even: adding 2^23 leaves no fraction in an fp32 below it."""
    scaled = weight * 1099511627776.0
    whole = tl.where(scaled < 8388608.0, (scaled + 8388608.0) - 8388608.0, scaled)
    return whole.to(tl.int64)


@triton.jit
def key_of(x):
    """i64 keys order as values do; both zeros have the same."""
    x = tl.where(x == 0, 0.0, x)
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        key = bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)
    else:
        bits = x.to(tl.int32, bitcast=True)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return key


@triton.jit
def value_of(key, REAL: tl.constexpr):
    if REAL.primitive_bitwidth == 64:
        value = (key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    else:
        short = key.to(tl.int32)
        value = (short ^ ((short >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return value


@triton.jit
def first_bars(top):
    """0.5, 1.5, 3, 5, 7.5, 10.5, 14 below the maximum, and below everything. [ROWS] -> [ROWS, BARS]"""
    i = tl.arange(0, BARS)[None, :]
    distance = (((i + 1) * (i + 2)).to(tl.float32) * 0.25).to(top.dtype)
    return tl.where(i == BARS - 1, float("-inf"), top[:, None] - distance)


@triton.jit
def next_bars(low, high):
    """Equal steps from low up; with fewer than BARS keys left, all of them."""
    step = ((high - low).to(tl.uint64) >> LOG_BARS).to(tl.int64)  # the range may not fit 63 bits
    return low[:, None] + tl.maximum(step, 1)[:, None] * tl.arange(0, BARS)[None, :]


@triton.jit
def weight_of(s, top, BY_MASS: tl.constexpr):
    if BY_MASS:
        weight = fixed_point(relative_weight(s, top[:, None]))
    else:
        weight = (s > float("-inf")).to(tl.int64)
    return weight


@triton.jit
def weight_above(s, top, bars, BY_MASS: tl.constexpr):
    """s [ROWS, BLOCK], bars [ROWS, BARS] -> [ROWS, BARS] i64

    s is compared before it is weighed: the other way round Triton 3.7's layout pass fails.
    """
    over = s[:, None, :] > bars[:, :, None]
    return tl.sum(tl.where(over, weight_of(s, top, BY_MASS)[:, None, :], 0), 2)


@triton.jit
def narrow(low, high, beyond, bars, above, goal):
    """The cut lies in [low, high]: higher than a bar above which the goal is reached, else at most the bar.

    beyond: the weight above high.
    """
    reached = above >= goal[:, None]
    low = tl.maximum(low, tl.max(tl.where(reached, bars + 1, low[:, None]), 1))
    high = tl.minimum(high, tl.min(tl.where(reached, high[:, None], bars), 1))
    beyond = tl.maximum(beyond, tl.max(tl.where(reached, 0, above), 1))
    return low, high, beyond


@triton.jit
def row_tops(tops, row, needed, num_splits):
    """The maximum of each row that needs it, of its splits' maxima."""
    split = tl.arange(0, SPLITS)[None, :]
    at = row.index.to(tl.int64)[:, None] * num_splits + split
    return tl.max(tl.load(tops + at, mask=needed[:, None] & (split < num_splits), other=float("-inf")), 1)


@tuned((2048, 8))
@triton.jit(do_not_specialize=["num_rows", "inner_count", "batch", "packed_rows", "num_splits", "excluded"])
def top_kernel(
    rows, sampling, penalties, tops,
    num_rows, inner_count, batch, packed_rows, num_splits, vocab, excluded,
    ALWAYS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The maximum of each row, if a filter is on or ALWAYS. tops [R, splits]"""
    row = locate(rows, sampling, tl.program_id(0), num_rows, inner_count, batch, packed_rows, vocab, ROWS)
    needed = row.present & ((row.top_k > 0) | (row.top_p < 1) | (row.min_p > 0) | ALWAYS)
    if any_of(needed):
        split = tl.program_id(1)
        top = tl.full([ROWS], float("-inf"), tops.dtype.element_ty)
        for first in range(split * BLOCK, vocab, num_splits * BLOCK):
            tokens = first + tl.arange(0, BLOCK)[None, :]
            top = tl.maximum(top, tl.max(read(rows, row, penalties, tokens, inner_count, vocab, excluded), 1))
        tl.store(tops + row.index.to(tl.int64) * num_splits + split, top, mask=needed)


@tuned((1024, 4))
@triton.jit(do_not_specialize=["num_rows", "inner_count", "batch", "packed_rows", "num_splits", "excluded"])
def weigh_kernel(
    rows, sampling, penalties, tops, counts, masses,
    num_rows, inner_count, batch, packed_rows, num_splits, vocab, excluded,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What lies above the first bars. counts, masses [R, splits, BARS] i64"""
    row = locate(rows, sampling, tl.program_id(0), num_rows, inner_count, batch, packed_rows, vocab, ROWS)
    by_count, by_mass = row.present & (row.top_k > 0), row.present & (row.top_p < 1)
    if any_of(by_count | by_mass):
        split = tl.program_id(1)
        top = row_tops(tops, row, by_count | by_mass, num_splits)
        bars = first_bars(top)
        at = (row.index.to(tl.int64) * num_splits + split)[:, None] * BARS + tl.arange(0, BARS)[None, :]
        if any_of(by_count):
            above = _weigh(
                rows, row, penalties, top, bars, split, num_splits, inner_count, vocab, excluded, False, ROWS, BLOCK
            )
            tl.store(counts + at, above, mask=by_count[:, None])
        if any_of(by_mass):
            above = _weigh(
                rows, row, penalties, top, bars, split, num_splits, inner_count, vocab, excluded, True, ROWS, BLOCK
            )
            tl.store(masses + at, above, mask=by_mass[:, None])


@triton.jit
def _weigh(
    rows, row, penalties, top, bars, split, num_splits, inner_count, vocab, excluded,
    BY_MASS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The weight above each of the bars in a split's tiles. -> [ROWS, BARS] i64"""
    above = tl.zeros([ROWS, BARS], tl.int64)
    for first in range(split * BLOCK, vocab, num_splits * BLOCK):
        tokens = first + tl.arange(0, BLOCK)[None, :]
        s = read(rows, row, penalties, tokens, inner_count, vocab, excluded)
        above += weight_above(s, top, bars, BY_MASS)
    return above


@tuned((2048, 16))
@triton.jit(do_not_specialize=["num_rows", "inner_count", "batch", "packed_rows", "num_splits", "excluded"])
def cut_kernel(
    rows, sampling, penalties, tops, counts, masses, lists, floors,
    num_rows, inner_count, batch, packed_rows, num_splits, vocab, excluded,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The smallest value that top-k and top-p leave, -inf if they are off. floors [R]; lists [R, CAPACITY]"""
    row = locate(rows, sampling, tl.program_id(0), num_rows, inner_count, batch, packed_rows, vocab, ROWS)
    by_count, by_mass = row.present & (row.top_k > 0), row.present & (row.top_p < 1)
    floor = tl.full([ROWS], float("-inf"), floors.dtype.element_ty)
    if any_of(by_count | by_mass):
        top = row_tops(tops, row, by_count | by_mass, num_splits)
        if any_of(by_count):
            above = _sum_of_splits(counts, row, by_count, num_splits)
            floor = _find_cut(
                rows, row, penalties, lists, top, above, row.top_k.to(tl.int64), by_count,
                inner_count, vocab, excluded, False, ROWS, BLOCK,
            )  # fmt: skip
        if any_of(by_mass):
            above = _sum_of_splits(masses, row, by_mass, num_splits)
            total = tl.max(above, 1)  # that of the bar below everything
            if any_of(by_mass & by_count):
                left = tl.zeros([ROWS], tl.int64)
                for first in range(0, vocab, BLOCK):
                    tokens = first + tl.arange(0, BLOCK)[None, :]
                    s = read(rows, row, penalties, tokens, inner_count, vocab, excluded)
                    left += tl.sum(tl.where(s >= floor[:, None], weight_of(s, top, True), 0), 1)
                total = tl.where(by_count, left, total)
            goal = tl.maximum((row.top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
            cut = _find_cut(
                rows, row, penalties, lists, top, above, goal, by_mass,
                inner_count, vocab, excluded, True, ROWS, BLOCK,
            )  # fmt: skip
            floor = tl.maximum(floor, cut)
    tl.store(floors + row.index, floor, mask=row.index < num_rows)


@triton.jit
def _sum_of_splits(partial, row, needed, num_splits):
    split = tl.arange(0, SPLITS)[None, :, None]
    at = (row.index.to(tl.int64)[:, None, None] * num_splits + split) * BARS + tl.arange(0, BARS)[None, None, :]
    return tl.sum(tl.load(partial + at, mask=needed[:, None, None] & (split < num_splits), other=0), 1)


@triton.jit
def _find_cut(
    rows, row, penalties, lists, top, above, goal, active,
    inner_count, vocab, excluded, BY_MASS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cut of the active rows, -inf for the others. above: of the first bars."""
    goal = tl.where(active, goal, 0x7FFFFFFFFFFFFFFF)
    low = key_of(tl.full([ROWS], float("-inf"), top.dtype))
    high = tl.where(active, key_of(top), low)
    beyond = tl.zeros([ROWS], tl.int64)
    low, high, beyond = narrow(low, high, beyond, key_of(first_bars(top)), above, goal)

    count = _collect(rows, row, penalties, lists, low, high, top, inner_count, vocab, excluded, ROWS, BLOCK)
    while any_of(count > CAPACITY):
        bars = next_bars(low, high)
        values = value_of(bars, top.dtype)
        above = _weigh(
            rows, row, penalties, top, values, 0, 1, inner_count, vocab, excluded, BY_MASS, ROWS, BLOCK
        )
        low, high, beyond = narrow(low, high, beyond, bars, above, goal)
        count = _collect(rows, row, penalties, lists, low, high, top, inner_count, vocab, excluded, ROWS, BLOCK)

    place = tl.arange(0, CAPACITY)[None, :]
    at = lists + row.index.to(tl.int64)[:, None] * CAPACITY + place
    s = tl.load(at, mask=place < count[:, None], other=float("-inf"))  # which weighs nothing
    unlisted = beyond  # weight above the list
    while any_of(low < high):
        bars = next_bars(low, high)
        above = unlisted[:, None] + weight_above(s, top, value_of(bars, top.dtype), BY_MASS)
        low, high, beyond = narrow(low, high, beyond, bars, above, goal)
    return value_of(low, top.dtype)


@triton.jit
def _collect(
    rows, row, penalties, lists, low, high, top, inner_count, vocab, excluded, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Lists the values in (low, high], as many as fit, and counts them all. lists [R, CAPACITY]

    One program owns a row's list. Its threads read there what others of them wrote, and write there again: a
    barrier on each side orders both.
    """
    tl.debug_barrier()
    above, upto = value_of(low, top.dtype)[:, None], value_of(high, top.dtype)[:, None]
    count = tl.zeros([ROWS], tl.int32)
    for first in range(0, vocab, BLOCK):
        tokens = first + tl.arange(0, BLOCK)[None, :]
        s = read(rows, row, penalties, tokens, inner_count, vocab, excluded)
        inside = (s > above) & (s <= upto)
        place = count[:, None] + tl.cumsum(inside.to(tl.int32), 1) - 1
        at = lists + row.index.to(tl.int64)[:, None] * CAPACITY + place
        tl.store(at, s, mask=inside & (place < CAPACITY))
        count += tl.sum(inside.to(tl.int32), 1)
    tl.debug_barrier()
    return count
