// A team: the threads that work on one request or one row together.
//
// The algorithms of this folder are written once, as templates over a team, and run as
//
//     Solo             one CPU thread; parallelism lies across rows and requests, SIMD inside a tile
//     a thread block   on CUDA
//     N std::threads   in tests, so that a sanitizer sees the same body that the GPU runs
//
// What a team offers:
//
//     kLanes, kTile         tokens of a pack (pack.h), and tokens that one rank takes at a time: 1 and one
//     Philox
//                           block of four for a GPU thread, a vector and a few cache lines on a CPU
//     kHeapLimit            largest heap of tokens that is worth keeping; 0 unless the team is of one
//     rank(), size()        every loop over shared work is `for (i = rank(); i < n; i += size())`
//     sync()                what ranks wrote before it is seen by all after it
//     reduce(value, op)     op over all ranks, in rank order, to every rank; implies a sync
//     scan(value)           exclusive prefix sum in rank order; implies a sync
//     add(target, value)    atomic for ranks of the team; integers only, so that the order does not matter
//     arrives_last(counter, count)
//                           true for the last of `count` teams that call it, which then sees what the others
//                           wrote before; the counter is 0 again afterwards
//     draw(noise, v, words) the random words of tokens [v, v + kTile)
//
// Results must not depend on size(): sums are integers, comparisons have total orders (ties: lowest id).
#pragma once

#include "pack.h"

D3D_NAMESPACE_BEGIN

// A team of one.
struct SoloTeam {
  D3D_INLINE static constexpr int rank() { return 0; }
  D3D_INLINE static constexpr int size() { return 1; }
  D3D_INLINE static void sync() {}

  template <class T, class Op>
  D3D_INLINE static T reduce(T value, Op) {
    return value;
  }

  template <class T>
  D3D_INLINE static T scan(T) {
    return T{};
  }

  D3D_INLINE static void add(uint64_t& target, uint64_t value) { target += value; }

#if !defined(__CUDACC__)
  D3D_INLINE static bool arrives_last(uint32_t& counter, uint32_t count) {
    if (__atomic_add_fetch(&counter, 1, __ATOMIC_ACQ_REL) < count) return false;
    __atomic_store_n(&counter, 0, __ATOMIC_RELAXED);
    return true;
  }
#endif
};

D3D_NAMESPACE_END
