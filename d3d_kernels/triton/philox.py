"""Counter-based noise, as in csrc/include/d3d/philox.h: one Philox4x32-10 block serves four tokens.

    word   r = philox(key = seed, counter = (position low, position high, v / 4, purpose)), lane v % 4
    u      = min(fma(r, 2^-32, 2^-33), 1 - 2^-24), strictly inside (0, 1)
    G      = -log(-log1p(-u)), between -2.82 and 22.88
"""

from __future__ import annotations

import triton
import triton.language as tl

from .fp32 import log1m, log_positive

GUMBEL = tl.constexpr(0)  # purpose: the noise of the sampler
GUMBEL_MAX = tl.constexpr(22.88)  # above gumbel(0) = 22.8739


@triton.jit
def noise_words(seed, position, purpose, first, BLOCK: tl.constexpr):
    """The words of tokens first .. first + BLOCK - 1, first % 4 = 0. seed, position [ROWS] i64 -> [ROWS, BLOCK]"""
    block = (first // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)[None, :]
    zero = tl.zeros_like(block)
    low, high = _halves(position)
    key_low, key_high = _halves(seed)
    c0, c1, c2, c3 = tl.philox_impl(
        low + zero, high + zero, tl.zeros_like(low) + block, tl.zeros_like(low) + zero + purpose, key_low, key_high
    )
    return tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))


@triton.jit
def _halves(x):
    return x.to(tl.uint32)[:, None], (x >> 32).to(tl.uint32)[:, None]


@triton.jit
def uniform(words):
    """Two exact halves, then one rounding: the conversion from 32 unsigned bits, spelled out."""
    high = (words >> 16).to(tl.int32).to(tl.float32)
    low = (words & 0xFFFF).to(tl.int32).to(tl.float32)
    return tl.minimum(tl.fma(tl.fma(high, 65536.0, low), 2.0**-32, 2.0**-33), 1.0 - 2.0**-24)


@triton.jit
def gumbel(words):
    return -log_positive(-log1m(uniform(words)))
