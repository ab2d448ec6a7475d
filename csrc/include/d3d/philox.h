// Counter-based noise: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011) and the Gumbel variable made from one 32-bit word.
//
//     word   r = philox(key = seed, counter = (position low, position high, v / 4, purpose)), lane v % 4
//     u      = min(r * 2^-32 + 2^-33, 1 - 2^-24), strictly inside (0, 1)
//     G      = -log(-log(1 - u)), decreasing in r, between -2.82 (u -> 1) and 22.88 (r = 0)
//
// The large values of G come from small u, where log1p(-u) keeps all of fp32's resolution.
//
// Because G falls with r, a bound on the noise is a bound on the word, and most words never meet a logarithm:
//
//     G >= g  =>  -log(1 - u) <= e^-g  =>  u <= 1 - exp(-e^-g) < e^-g = 2^(-g log2 e) <= 2^-floor(g log2 e)
#pragma once

#include "fp32.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

enum class Purpose : uint32_t {
  kGumbel = 0,      // the sampler's, which the drafter shares
  kAcceptance = 1,  // verify_chain: whether a draft is accepted
  kResidual = 2     // verify_chain: the token behind the last accepted draft
};

// What identifies the noise of one row.
struct Noise {
  uint32_t key[2];
  uint32_t position[2];
  uint32_t purpose;

  D3D_INLINE Noise(int64_t seed, int64_t at, Purpose use)
      : key{static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)},
        position{static_cast<uint32_t>(at), static_cast<uint32_t>(static_cast<uint64_t>(at) >> 32)},
        purpose(static_cast<uint32_t>(use)) {}
};

// The 64-bit product of two words. On a CPU the words of several blocks sit in 64-bit lanes, where a widening
// multiplication wants them; what the upper halves hold does not matter.
D3D_INLINE void multiply(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t product = static_cast<uint64_t>(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
}

#if !defined(__CUDACC__)
template <int n>
D3D_INLINE void multiply(Vec<uint64_t, n> a, Vec<uint64_t, n> b, Vec<uint64_t, n>& high,
                         Vec<uint64_t, n>& low) {
  for (int i = 0; i < a.kParts; ++i) low.part[i] = machine::low_product(a.part[i], b.part[i]);
  high = low >> 32;
}
#endif

template <class Word>
struct Counter {
  Word c0, c1, c2, c3;
};

// One block of four words, or as many blocks as Word has lanes.
template <class Word>
D3D_INLINE Counter<Word> philox(Counter<Word> c, uint32_t key0, uint32_t key1) {
  const Word multiplier0 = splat<Word>(0xD2511F53u), multiplier1 = splat<Word>(0xCD9E8D57u);
#if defined(__CUDACC__)
  #pragma unroll
#else
  #pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    Word high0, low0, high1, low1;
    multiply(multiplier0, c.c0, high0, low0);
    multiply(multiplier1, c.c2, high1, low1);
    c = {high1 ^ c.c1 ^ key0, low1, high0 ^ c.c3 ^ key1, low0};
    key0 += 0x9E3779B9u;  // Weyl sequences: golden ratio and sqrt(3) - 1
    key1 += 0xBB67AE85u;
  }
  return c;
}

// The words of four tokens, block = first token / 4.
D3D_INLINE void draw_block(const Noise& noise, uint32_t block, uint32_t (&words)[4]) {
  const Counter<uint32_t> c = philox<uint32_t>({noise.position[0], noise.position[1], block, noise.purpose},
                                               noise.key[0], noise.key[1]);
  words[0] = c.c0;
  words[1] = c.c1;
  words[2] = c.c2;
  words[3] = c.c3;
}

// u from a word. Two exact halves, then one rounding: as a conversion from 32 bits, which not every vector
// unit has.
template <class W>
D3D_INLINE auto uniform(W word) {
  using F = Rebind<W, float>;
  const F high = convert<float>(bits_as<Rebind<W, int32_t>>(word >> 16));
  const F low = convert<float>(bits_as<Rebind<W, int32_t>>(word & 0xFFFFu));
  return smaller(fused(fused(high, splat<F>(0x1p16f), low), 0x1p-32f, 0x1p-33f), splat<F>(1.0f - 0x1p-24f));
}

template <class W>
D3D_INLINE auto gumbel(W word) {
  return -log_positive(-log1m(uniform(word)));
}

constexpr float kGumbelMax = 22.88f;  // above gumbel(0) = 22.8739

// Every word whose noise can lift `value` to `bar` or above is at most this. The slack covers the roundings
// of G (absolute error < 1e-6 in all) and of value + G; the limit errs upwards, never downwards.
template <class Real>
D3D_INLINE uint32_t word_limit(Real value, Real bar) {
  const Real magnitude = bar < 0 ? -bar : bar;
  const Real gap = (bar - value) - (Real(2e-5) + Real(1e-6) * magnitude);
  if (!(gap > 0)) return 0xFFFFFFFFu;  // also a bar of -inf, or NaN
  const Real exponent = gap * Real(1.442695);
  return exponent >= 32 ? 0u : 0xFFFFFFFFu >> static_cast<int>(exponent);
}

D3D_NAMESPACE_END
