"""Reading rows of logits in Triton, a tile [ROWS, BLOCK] of consecutive tokens at a time.

A program serves ROWS rows: one on a GPU, where the vocabulary fills it; many in the interpreter, where Python
is what costs. All per-row state is a vector [ROWS], and a branch is taken if any of the rows needs it, so that
it must be harmless to the others.

    l   logits in the compute type (f64 for f64, else f32): NaN -> -inf, +inf -> the largest finite value,
        then penalties, bias, allowed tokens
    s   l / T; T = 1 for a greedy request

Offsets into logits are int64. A row that is not present reads as one without a finite logit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

GREEDY_BELOW = tl.constexpr(1e-5)


class Rows(NamedTuple):
    """Row r of a launch is (outer, inner) = divmod(r, inner_count): (row, 0), (row, slot) or (request, node)."""

    logits: Any
    outer_stride: Any
    inner_stride: Any
    starts: Any  # [outer] i32: packed rows, (outer, inner) is logits row starts[outer] + inner; or None
    request_ids: Any  # [outer] i32; None: outer
    positions: Any  # [outer] i64
    depths: Any  # [outer, inner] i32 of tree nodes, negative: not to be read; None: inner positions follow each other


class Sampling(NamedTuple):
    """The tensors of SamplingTensors, [B] each."""

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    seed: Any


class Row(NamedTuple):
    """What a program knows of its rows, [ROWS] each."""

    index: Any
    inner: Any
    start: Any  # offset of token 0
    present: Any
    request: Any
    position: Any  # of the token to be sampled
    seed: Any
    greedy: Any
    temperature: Any
    top_k: Any  # 0: off
    top_p: Any  # 1: off
    min_p: Any  # 0: off


@triton.jit
def locate(rows, sampling, first, num_rows, inner_count, batch, packed_rows, vocab, ROWS: tl.constexpr):
    index = first * ROWS + tl.arange(0, ROWS)
    present = index < num_rows
    outer, inner = index // inner_count, index % inner_count

    request = outer
    if rows.request_ids is not None:
        request = tl.load(rows.request_ids + outer, mask=present, other=-1)
        present &= (request >= 0) & (request < batch)
    request = tl.where(present, request, 0)

    position = tl.load(rows.positions + outer, mask=present, other=0)
    if rows.depths is not None:
        depth = tl.load(rows.depths + index, mask=present, other=-1)
        present &= depth >= 0
        position += depth + 1
    else:
        position += inner

    if rows.starts is not None:
        packed = tl.load(rows.starts + outer, mask=present, other=-1).to(tl.int64) + inner
        present &= (packed >= 0) & (packed < packed_rows)
        start = packed * rows.inner_stride
    else:
        start = outer.to(tl.int64) * rows.outer_stride + inner.to(tl.int64) * rows.inner_stride

    temperature = tl.load(sampling.temperature + request, mask=present, other=0.0)
    greedy = (temperature >= GREEDY_BELOW) == 0  # NaN is greedy
    noisy = greedy == 0
    top_k = tl.load(sampling.top_k + request, mask=present, other=0)
    top_p = tl.load(sampling.top_p + request, mask=present, other=1.0)
    min_p = tl.load(sampling.min_p + request, mask=present, other=0.0)
    return Row(
        index=index,
        inner=inner,
        start=start,
        present=present,
        request=request,
        position=position,
        seed=tl.load(sampling.seed + request, mask=present, other=0),
        greedy=greedy,
        temperature=tl.where(greedy, 1.0, temperature),
        top_k=tl.where(noisy & (top_k > 0) & (top_k < vocab), top_k, 0),
        top_p=tl.where(noisy & (top_p < 1), top_p, 1.0),
        min_p=tl.where(noisy & (min_p > 0), min_p, 0.0),
    )


@triton.jit
def any_of(condition):
    return tl.max(condition.to(tl.int32)) > 0


@triton.jit
def comparable(x):
    """NaN -> -inf, +inf -> the largest finite value: such a value can tie or win, never poison a sum."""
    largest: tl.constexpr = 1.7976931348623157e308 if x.dtype == tl.float64 else 3.4028234663852886e38
    return tl.minimum(tl.where(x == x, x, float("-inf")), largest)


@triton.jit
def divide(x, y):
    """The quotient rounded to nearest; Triton's own fp32 division is approximate."""
    if x.dtype == tl.float64:
        quotient = x / y
    else:
        quotient = tl.div_rn(x, y)
    return quotient


@triton.jit
def read(rows, row, penalties, tokens, inner_count, vocab, excluded):
    """s of consecutive tokens [1, BLOCK] in each row -> [ROWS, BLOCK]; -inf past the vocabulary."""
    real: tl.constexpr = tl.float64 if rows.logits.dtype.element_ty == tl.float64 else tl.float32
    inside = (tokens < vocab) & row.present[:, None]
    x = tl.load(rows.logits + row.start[:, None] + tokens, mask=inside, other=float("-inf"))
    x = comparable(x.to(real))
    if penalties is not None:
        x = comparable(penalise(x, row, penalties, tokens, inside, inner_count, vocab))
    if any_of(row.temperature != 1):
        x = comparable(divide(x, row.temperature.to(real)[:, None]))  # the quotient may overflow again
    return tl.where(inside & (tokens != excluded), x, float("-inf"))


@triton.jit
def penalise(x, row, penalties, tokens, inside, inner_count, vocab):
    """Repetition, frequency, presence, bias, allowed bits: from the tables of penalties.py."""
    entry = row.request[:, None].to(tl.int64) * vocab + tokens
    if penalties.marks is not None:
        mark = tl.load(penalties.marks + entry, mask=inside, other=0)
        if penalties.tree_tokens is not None:
            # A node's row has seen its own token and its ancestors'. The depths of present rows were found by
            # the same walk, so it ends.
            node = tl.where(row.present, row.inner, 0)
            while any_of(node > 0):
                at = row.request.to(tl.int64) * inner_count + node
                token = tl.load(penalties.tree_tokens + at, mask=node > 0, other=-1)
                mark += tl.where(tokens == token[:, None], 2, 0)
                node = tl.load(penalties.tree_parents + at, mask=node > 0, other=0)
        if penalties.repetition is not None:
            repetition = tl.load(penalties.repetition + row.request)[:, None].to(x.dtype)
            repeated = tl.where(x > 0, divide(x, repetition), x * repetition)
            x = tl.where((mark != 0) & (repetition != 1), repeated, x)
        count = mark >> 1
        if penalties.frequency is not None:
            frequency = tl.load(penalties.frequency + row.request)[:, None].to(x.dtype)
            x = tl.where(count > 0, x - frequency * count.to(x.dtype), x)
        if penalties.presence is not None:
            presence = tl.load(penalties.presence + row.request)[:, None].to(x.dtype)
            x = tl.where(count > 0, x - presence, x)
    if penalties.bias is not None:
        x += tl.load(penalties.bias + entry, mask=inside, other=0.0)
    if penalties.allowed is not None:
        word = row.request[:, None].to(tl.int64) * penalties.allowed_stride + tokens // 32
        bits = tl.load(penalties.allowed + word, mask=inside, other=0)
        x = tl.where((bits >> (tokens % 32)) & 1 != 0, x, float("-inf"))
    return x
