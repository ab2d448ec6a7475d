// Vec<T, n>: n lanes on a CPU, in as many machine vectors as that takes.
//
// Vectors are explicit because float comparisons with NaN keep a compiler from vectorising loops by itself.
// Two machine vectors a pack keep an out-of-order core busy: a logarithm is one long chain of multiply-adds.
// Built on the vector extension that GCC and Clang share; intrinsics only where that has no word.
#pragma once

#if defined(__SSE2__)
  #include <immintrin.h>
#endif

#include "pack.h"

D3D_NAMESPACE_BEGIN

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int kBytes>
struct MachineVector {
  typedef T type __attribute__((vector_size(kBytes)));
};

template <class T>
using LaneMask = std::conditional_t<
    sizeof(T) == 8, int64_t,
    std::conditional_t<sizeof(T) == 4, int32_t, std::conditional_t<sizeof(T) == 2, int16_t, int8_t>>>;

template <class T, int n>
struct Vec {
  static constexpr int kBytes = n * sizeof(T) < kVectorBytes ? n * sizeof(T) : kVectorBytes;
  static constexpr int kParts = n * sizeof(T) / kBytes;
  using Part = typename MachineVector<T, kBytes>::type;
  using Mask = Vec<LaneMask<T>, n>;

  Part part[kParts];

  D3D_INLINE static Vec splat(T value) {
    Vec x;
    for (Part& p : x.part) p = Part{} + value;
    return x;
  }

  // Part by part: a copy of the whole would go through narrower registers.
  D3D_INLINE static Vec load(const T* from) {
    Vec x;
    for (int i = 0; i < kParts; ++i) memcpy(&x.part[i], from + i * (kBytes / sizeof(T)), kBytes);
    return x;
  }

  template <class U>
  D3D_INLINE Vec<U, n> convert() const;

#define D3D_LANEWISE(op)                                                 \
  D3D_INLINE friend Vec operator op(Vec a, Vec b) {                      \
    for (int i = 0; i < kParts; ++i) a.part[i] = a.part[i] op b.part[i]; \
    return a;                                                            \
  }                                                                      \
  D3D_INLINE friend Vec operator op(Vec a, T b) {                        \
    return a op splat(b);                                                \
  }                                                                      \
  D3D_INLINE friend Vec operator op(T a, Vec b) {                        \
    return splat(a) op b;                                                \
  }
  D3D_LANEWISE(+)
  D3D_LANEWISE(-)
  D3D_LANEWISE(*)
  D3D_LANEWISE(/)
  D3D_LANEWISE(&)
  D3D_LANEWISE(|)
  D3D_LANEWISE(^)
#undef D3D_LANEWISE

#define D3D_COMPARISON(op)                                                                         \
  D3D_INLINE friend Mask operator op(Vec a, Vec b) {                                               \
    Mask mask;                                                                                     \
    for (int i = 0; i < kParts; ++i) mask.part[i] = (typename Mask::Part)(a.part[i] op b.part[i]); \
    return mask;                                                                                   \
  }                                                                                                \
  D3D_INLINE friend Mask operator op(Vec a, T b) {                                                 \
    return a op splat(b);                                                                          \
  }
  D3D_COMPARISON(==)
  D3D_COMPARISON(<)
  D3D_COMPARISON(<=)
  D3D_COMPARISON(>)
  D3D_COMPARISON(>=)
#undef D3D_COMPARISON

  D3D_INLINE friend Vec operator-(Vec a) {
    for (Part& p : a.part) p = -p;
    return a;
  }
  D3D_INLINE friend Vec operator<<(Vec a, int bits) {
    for (Part& p : a.part) p = p << bits;
    return a;
  }
  D3D_INLINE friend Vec operator>>(Vec a, int bits) {
    for (Part& p : a.part) p = p >> bits;
    return a;
  }
  D3D_INLINE Vec& operator+=(Vec other) { return *this = *this + other; }
};

template <class T, int n>
struct PackTraits<Vec<T, n>> {
  using Lane = T;
  static constexpr int kLanes = n;
};

template <class T, int n>
D3D_INLINE void store(T* to, Vec<T, n> x) {
  for (int i = 0; i < x.kParts; ++i) memcpy(to + i * (x.kBytes / sizeof(T)), &x.part[i], x.kBytes);
}

namespace machine {

template <class To, class From>
D3D_INLINE To convert(From x) {
  return __builtin_convertvector(x, To);
}

template <class V>
D3D_INLINE V larger(V a, V b) {
  return a > b ? a : b;
}

template <class V>
D3D_INLINE V smaller(V a, V b) {
  return a < b ? a : b;
}

template <class V>
D3D_INLINE V fused(V a, V b, V c) {
  for (unsigned i = 0; i < sizeof(V) / sizeof(float); ++i) a[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return a;
}

#if defined(__SSE2__)
template <class T, int bytes = kVectorBytes>
using V = typename MachineVector<T, bytes>::type;

  #if defined(__AVX512F__)
template <>
D3D_INLINE V<double> convert(V<float, 32> x) {
  return _mm512_cvtps_pd(x);
}
D3D_INLINE V<float> larger(V<float> a, V<float> b) {
  return _mm512_max_ps(a, b);
}
D3D_INLINE V<float> smaller(V<float> a, V<float> b) {
  return _mm512_min_ps(a, b);
}
D3D_INLINE V<float> fused(V<float> a, V<float> b, V<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
D3D_INLINE V<uint64_t> low_product(V<uint64_t> a, V<uint64_t> b) {
  return (V<uint64_t>)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
  #elif defined(__AVX2__)
template <>
D3D_INLINE V<double> convert(V<float, 16> x) {
  return _mm256_cvtps_pd(x);
}
D3D_INLINE V<float> larger(V<float> a, V<float> b) {
  return _mm256_max_ps(a, b);
}
D3D_INLINE V<float> smaller(V<float> a, V<float> b) {
  return _mm256_min_ps(a, b);
}
D3D_INLINE V<float> fused(V<float> a, V<float> b, V<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
D3D_INLINE V<uint64_t> low_product(V<uint64_t> a, V<uint64_t> b) {
  return (V<uint64_t>)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
  #else
D3D_INLINE V<float> larger(V<float> a, V<float> b) {
  return _mm_max_ps(a, b);
}
D3D_INLINE V<float> smaller(V<float> a, V<float> b) {
  return _mm_min_ps(a, b);
}
D3D_INLINE V<uint64_t> low_product(V<uint64_t> a, V<uint64_t> b) {
  return (V<uint64_t>)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
  #endif
#else
template <class V>
D3D_INLINE V low_product(V a, V b) {
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
}
#endif

}  // namespace machine

// Parts hold as many bytes, so a conversion to another width turns pieces of parts into parts or back.
template <class T, int n>
template <class U>
D3D_INLINE Vec<U, n> Vec<T, n>::convert() const {
  using To = Vec<U, n>;
  constexpr int kPieces = kParts > To::kParts ? kParts : To::kParts;
  using FromPiece = typename MachineVector<T, n / kPieces * sizeof(T)>::type;
  using ToPiece = typename MachineVector<U, n / kPieces * sizeof(U)>::type;
  FromPiece from[kPieces];
  ToPiece to[kPieces];
  memcpy(from, part, sizeof from);
  for (int i = 0; i < kPieces; ++i) to[i] = machine::convert<ToPiece>(from[i]);
  To result;
  memcpy(result.part, to, sizeof to);
  return result;
}

template <class T, int n>
D3D_INLINE Vec<T, n> larger(Vec<T, n> a, Vec<T, n> b) {
  for (int i = 0; i < a.kParts; ++i) a.part[i] = machine::larger(a.part[i], b.part[i]);
  return a;
}

template <class T, int n>
D3D_INLINE Vec<T, n> smaller(Vec<T, n> a, Vec<T, n> b) {
  for (int i = 0; i < a.kParts; ++i) a.part[i] = machine::smaller(a.part[i], b.part[i]);
  return a;
}

template <int n>
D3D_INLINE Vec<float, n> fused(Vec<float, n> a, Vec<float, n> b, Vec<float, n> c) {
  for (int i = 0; i < a.kParts; ++i) a.part[i] = machine::fused(a.part[i], b.part[i], c.part[i]);
  return a;
}

template <class M, class T, int n>
D3D_INLINE Vec<T, n> choose(Vec<M, n> mask, Vec<T, n> a, Vec<T, n> b) {
  for (int i = 0; i < a.kParts; ++i) a.part[i] = mask.part[i] ? a.part[i] : b.part[i];
  return a;
}

template <class T, class M, int n>
D3D_INLINE auto mask_for(Vec<M, n> mask) {
  if constexpr (sizeof(T) == sizeof(M))
    return mask;
  else
    return mask.template convert<LaneMask<T>>();
}

// Folds part by part, then lane by lane.
template <class T, int n, class Op>
D3D_INLINE T fold_lanes(Vec<T, n> x, Op op) {
  if constexpr (n == 2) {
    T lane[2];
    store(lane, x);
    return op(lane[0], lane[1]);
  } else {
    Vec<T, n / 2> half[2];
    memcpy(half, &x, sizeof x);
    return fold_lanes(op(half[0], half[1]), op);
  }
}

template <class M, int n>
D3D_INLINE bool any(Vec<M, n> mask) {
  auto folded = mask.part[0];
  for (int i = 1; i < mask.kParts; ++i) folded = folded | mask.part[i];
#if defined(__AVX512F__)
  if constexpr (sizeof folded == 64) return _mm512_test_epi32_mask((__m512i)folded, (__m512i)folded) != 0;
#elif defined(__AVX2__)
  if constexpr (sizeof folded == 32) return !_mm256_testz_si256((__m256i)folded, (__m256i)folded);
#elif defined(__SSE2__)
  if constexpr (sizeof folded == 16) return _mm_movemask_epi8((__m128i)folded) != 0;
#endif
  return fold_lanes(mask, [](auto a, auto b) D3D_INLINE_LAMBDA { return a | b; }) != 0;
}

D3D_NAMESPACE_END
