// fp32 exp and log that give the same bits on every backend.
//
// Libraries differ in the last bits and compilers in what they fuse, so both functions are spelled out in
// fused multiply-adds and exact steps, and everything is compiled without contraction. Coefficients are
// minimax fits; the errors below were measured over all fp32 arguments of the stated range.
//
//     exp   x = n ln 2 + r, |r| <= ln 2 / 2;   e^x = 2^n (1 + r + r^2 q(r)),   q of degree 4, fit error 2^-28
//     log   x = 2^e (1 + f), 1 + f in [2/3, 4/3);   log x = e ln 2 + f + f^2 q(f),   degree 8, fit error
//     2^-27 log1m the same e from 1 - u, but f = 2^-e (1 - u) - 1 = fma(-u, 2^-e, 2^-e - 1) in a single
//     rounding, so
//           small u lose nothing
#pragma once

#include "pack.h"

D3D_NAMESPACE_BEGIN

constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits, so that small integer multiples are exact
constexpr float kLn2Low = 0x1.7f7d1cp-20f;

// 2^kShift e^x for -87 <= x <= 0, where the result is a normal number.
template <int kShift, class F>
D3D_INLINE F exp_shifted(F x) {
  using Bits = Rebind<F, uint32_t>;
  const float rounder = 0x1.8p23f + kShift;  // adding it leaves round(x / ln 2) + kShift in the low bits
  const F shifted = fused(x, 0x1.715476p+0f, rounder);
  const F n = shifted - rounder;
  const F r = fused(n, splat<F>(-kLn2Low), fused(n, splat<F>(-kLn2High), x));
  F q = fused(r, 0x1.6a2434p-10f, 0x1.1239e2p-7f);
  q = fused(q, r, 0x1.5558f2p-5f);
  q = fused(q, r, 0x1.555492p-3f);
  q = fused(q, r, 0x1.fffffcp-2f);
  const F value = fused(r * r, q, r) + 1.0f;
  return bits_as<F>(bits_as<Bits>(value) + (bits_as<Bits>(shifted) << 23));
}

// e^x for x <= 0; 0 below -87, where the result would leave the normal range.
template <class F>
D3D_INLINE F exp_negative(F x) {
  return choose(x >= -87.0f, exp_shifted<0>(x), splat<F>(0.0f));
}

// e with x / 2^e in [2/3, 4/3).
template <class F>
D3D_INLINE Rebind<F, int32_t> log_exponent(F x) {
  return (bits_as<Rebind<F, int32_t>>(x) - 0x3F2AAAAB) >> 23;
}

// e ln 2 + log(1 + f).
template <class F>
D3D_INLINE F log_reduced(F e, F f) {
  F q = fused(f, -0x1.0931bap-3f, 0x1.1ed134p-3f);
  q = fused(q, f, -0x1.f25deep-4f);
  q = fused(q, f, 0x1.1ebe6ap-3f);
  q = fused(q, f, -0x1.55a754p-3f);
  q = fused(q, f, 0x1.99d1f2p-3f);
  q = fused(q, f, -0x1.fffe84p-3f);
  q = fused(q, f, 0x1.555502p-2f);
  q = fused(q, f, -0x1.000000p-1f);
  const F tail = fused(e, splat<F>(kLn2Low), (f * f) * q);
  return fused(e, splat<F>(kLn2High), f + tail);
}

// log x for normal x > 0.
template <class F>
D3D_INLINE F log_positive(F x) {
  using Bits = Rebind<F, int32_t>;
  const Bits e = log_exponent(x);
  const F f = bits_as<F>(bits_as<Bits>(x) - (e << 23)) - 1.0f;
  return log_reduced(convert<float>(e), f);
}

// log(1 - u) for u in [0, 1 - 2^-24].
template <class F>
D3D_INLINE F log1m(F u) {
  const Rebind<F, int32_t> e = log_exponent(1.0f - u);
  const F scale = bits_as<F>((127 - e) << 23);
  return log_reduced(convert<float>(e), fused(-u, scale, scale - 1.0f));
}

D3D_NAMESPACE_END
