"""fp32 exp and log in Triton, by the algebra and the coefficients of csrc/include/d3d/fp32.h.

Every multiply-add is spelled out and kernels are compiled with fp-fusion off, so a GPU computes the bits that
the CPU and CUDA backends compute. (Triton's interpreter rounds a fused multiply-add twice; there the last bit
may differ.)
"""

from __future__ import annotations

import triton
import triton.language as tl

LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e4p-1"))  # 15 bits, so that small integer multiples are exact
LN2_LOW = tl.constexpr(float.fromhex("0x1.7f7d1cp-20"))
LOG2_E = tl.constexpr(float.fromhex("0x1.715476p+0"))
ROUNDER = tl.constexpr(1.5 * 2.0**23)  # adding it leaves round(x) in the low bits

EXP_2 = tl.constexpr(float.fromhex("0x1.fffffcp-2"))
EXP_3 = tl.constexpr(float.fromhex("0x1.555492p-3"))
EXP_4 = tl.constexpr(float.fromhex("0x1.5558f2p-5"))
EXP_5 = tl.constexpr(float.fromhex("0x1.1239e2p-7"))
EXP_6 = tl.constexpr(float.fromhex("0x1.6a2434p-10"))

LOG_2 = tl.constexpr(-0.5)
LOG_3 = tl.constexpr(float.fromhex("0x1.555502p-2"))
LOG_4 = tl.constexpr(float.fromhex("-0x1.fffe84p-3"))
LOG_5 = tl.constexpr(float.fromhex("0x1.99d1f2p-3"))
LOG_6 = tl.constexpr(float.fromhex("-0x1.55a754p-3"))
LOG_7 = tl.constexpr(float.fromhex("0x1.1ebe6ap-3"))
LOG_8 = tl.constexpr(float.fromhex("-0x1.f25deep-4"))
LOG_9 = tl.constexpr(float.fromhex("0x1.1ed134p-3"))
LOG_10 = tl.constexpr(float.fromhex("-0x1.0931bap-3"))


@triton.jit
def exp_negative(x):
    """e^x for x <= 0; 0 below -87, where the result would leave the normal range."""
    inside = tl.maximum(x, -87.0)
    shifted = tl.fma(inside, LOG2_E, ROUNDER)
    n = shifted - ROUNDER
    r = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, inside))
    q = tl.fma(r, EXP_6, EXP_5)
    q = tl.fma(q, r, EXP_4)
    q = tl.fma(q, r, EXP_3)
    q = tl.fma(q, r, EXP_2)
    value = tl.fma(r * r, q, r) + 1.0
    bits = value.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    return tl.where(x >= -87.0, bits.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def log_exponent(x):
    """e with x / 2^e in [2/3, 4/3)."""
    return (x.to(tl.int32, bitcast=True) - 0x3F2AAAAB) >> 23


@triton.jit
def log_reduced(e, f):
    """e ln 2 + log(1 + f)."""
    q = tl.fma(f, LOG_10, LOG_9)
    q = tl.fma(q, f, LOG_8)
    q = tl.fma(q, f, LOG_7)
    q = tl.fma(q, f, LOG_6)
    q = tl.fma(q, f, LOG_5)
    q = tl.fma(q, f, LOG_4)
    q = tl.fma(q, f, LOG_3)
    q = tl.fma(q, f, LOG_2)
    tail = tl.fma(e, LN2_LOW, (f * f) * q)
    return tl.fma(e, LN2_HIGH, f + tail)


@triton.jit
def log_positive(x):
    """log x for normal x > 0."""
    e = log_exponent(x)
    f = (x.to(tl.int32, bitcast=True) - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    return log_reduced(e.to(tl.float32), f)


@triton.jit
def log1m(u):
    """log(1 - u) for u in [0, 1 - 2^-24]; small u lose nothing."""
    e = log_exponent(1.0 - u)
    scale = ((127 - e) << 23).to(tl.float32, bitcast=True)
    return log_reduced(e.to(tl.float32), tl.fma(-u, scale, scale - 1.0))
