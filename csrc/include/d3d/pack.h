// Packs: the values of one or several tokens that go through the same arithmetic.
//
// What is done to each token is written once, over a pack type P: plain float, double, uint32_t, ... for a
// GPU thread, Vec<float, n>, Vec<double, n>, ... (vec.h) on a CPU. Operators mean the same for both; what has
// no operator is named here:
//
//     splat<P>(x)           x in every lane              load<P>(p), store(p, x)
//     choose(mask, a, b)    lane by lane                 any(mask)
//     convert<U>(x)         value, as a pack of U's      bits_as<Q>(x)   same bits
//     larger(a, b), smaller(a, b)                        b where either is NaN
//     fused(a, b, c)        a * b + c, rounded once      fold_lanes(x, op)
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// D3D_INLINE: everything that takes packs; a vector that is passed to a real call goes through memory.
// D3D_INLINE_LAMBDA: the same, behind the parameters of a lambda.
// D3D_PASS: a loop over a row; one copy for each row type will do.
// D3D_ROLLED: a long loop of few rounds, which nvcc would copy out.
#if defined(__CUDACC__)
  #define D3D_INLINE __device__ __forceinline__
  #define D3D_INLINE_LAMBDA
  #if !defined(D3D_PASS)
    #define D3D_PASS __device__ __forceinline__
  #endif
  #define D3D_ROLLED _Pragma("unroll 1")
#else
  #define D3D_INLINE [[gnu::always_inline]] inline
  #define D3D_INLINE_LAMBDA __attribute__((always_inline))
  #define D3D_PASS [[gnu::noinline]]
  #define D3D_ROLLED
#endif

// The CPU library compiles these headers once per instruction set. A namespace for each keeps the linker from
// merging a baseline function with one that needs AVX-512.
#if !defined(D3D_TARGET)
  #define D3D_TARGET generic
#endif
#define D3D_NAMESPACE_BEGIN \
  namespace d3d {           \
  inline namespace D3D_TARGET {
#define D3D_NAMESPACE_END \
  }                       \
  }

D3D_NAMESPACE_BEGIN

template <class T, int kLanes>
struct Vec;

template <class T, int kLanes>
using Pack = std::conditional_t<kLanes == 1, T, Vec<T, kLanes>>;

template <class P>
struct PackTraits {
  using Lane = P;
  static constexpr int kLanes = 1;
};

template <class P>
constexpr bool kScalar = std::is_arithmetic_v<P>;

// The pack of U's with as many lanes as P.
template <class P, class U>
using Rebind = Pack<U, PackTraits<P>::kLanes>;

template <class To, class From>
D3D_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

template <class P, class T>
D3D_INLINE P splat(T value) {
  if constexpr (kScalar<P>)
    return static_cast<P>(value);
  else
    return P::splat(value);
}

template <class U, class P>
D3D_INLINE Rebind<P, U> convert(P x) {
  if constexpr (kScalar<P>)
    return static_cast<U>(x);
  else
    return x.template convert<U>();
}

template <class P, class T>
D3D_INLINE P load(const T* from) {
  if constexpr (kScalar<P>)
    return *from;
  else
    return P::load(from);
}

template <class T>
D3D_INLINE void store(T* to, T x) {
  *to = x;
}

template <class T, class = std::enable_if_t<kScalar<T>>>
D3D_INLINE constexpr T larger(T a, T b) {
  return a > b ? a : b;
}

template <class T, class = std::enable_if_t<kScalar<T>>>
D3D_INLINE constexpr T smaller(T a, T b) {
  return a < b ? a : b;
}

template <class T>
D3D_INLINE T choose(bool mask, T a, T b) {
  return mask ? a : b;
}

D3D_INLINE bool any(bool mask) {
  return mask;
}

// A comparison of U's, as a mask for packs of T's: masks are as wide as what was compared.
template <class T>
D3D_INLINE bool mask_for(bool mask) {
  return mask;
}

template <class T, class Op, class = std::enable_if_t<kScalar<T>>>
D3D_INLINE T fold_lanes(T x, Op) {
  return x;
}

D3D_INLINE float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

template <class P>
D3D_INLINE P fused(P a, float b, float c) {
  return fused(a, splat<P>(b), splat<P>(c));
}

template <class P>
D3D_INLINE P fused(P a, P b, float c) {
  return fused(a, b, splat<P>(c));
}

D3D_NAMESPACE_END

#if !defined(__CUDACC__)
  #include "vec.h"
#endif
