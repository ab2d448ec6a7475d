// A thread block as a team: one token a lane, one Philox block of four tokens at a time for each thread.
#pragma once

#include "d3d/philox.h"
#include "d3d/row.h"

D3D_NAMESPACE_BEGIN

template <int kThreads>
struct BlockTeam {
  static constexpr int kLanes = 1;
  static constexpr int kTile = 4;
  static constexpr int kHeapLimit = 0;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSlotBytes = 24;  // the largest thing that is reduced, Token<double>

  // Shared memory: one value a warp.
  struct Slots {
    alignas(8) unsigned char bytes[kWarps][kSlotBytes];
  };
  Slots& slots;

  __device__ static int rank() { return threadIdx.x; }
  __device__ static int size() { return kThreads; }
  __device__ static void sync() { __syncthreads(); }

  template <class T, class Op>
  __device__ __forceinline__ T reduce(T value, Op op) const {
    for (int distance = 1; distance < 32; distance *= 2) value = op(value, shuffle_down(value, distance));
    share(value, 0);
    T total;
    memcpy(&total, slots.bytes[0], sizeof total);
    for (int warp = 1; warp < kWarps; ++warp) {
      T next;
      memcpy(&next, slots.bytes[warp], sizeof next);
      total = op(total, next);
    }
    __syncthreads();  // the slots are free again
    return total;
  }

  template <class T>
  __device__ __forceinline__ T scan(T value) const {
    T inclusive = value;
    for (int distance = 1; distance < 32; distance *= 2) {
      const T before = __shfl_up_sync(0xFFFFFFFFu, inclusive, distance);
      if (lane() >= distance) inclusive += before;
    }
    share(inclusive, 31);
    T before = inclusive - value;
    for (int warp = 0; warp < kWarps; ++warp) {
      T sum;
      memcpy(&sum, slots.bytes[warp], sizeof sum);
      if (warp < rank() / 32) before += sum;
    }
    __syncthreads();
    return before;
  }

  __device__ static void add(uint64_t& target, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&target), static_cast<unsigned long long>(value));
  }

  __device__ __forceinline__ static void draw(const Noise& noise, int32_t first,
                                              Tile<uint32_t, BlockTeam>& words) {
    draw_block(noise, static_cast<uint32_t>(first) / 4, words.pack);
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }

  // One lane of each warp leaves its value in the warp's slot, for all to see.
  template <class T>
  __device__ __forceinline__ void share(const T& value, int from) const {
    static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
    if (lane() == from) memcpy(slots.bytes[rank() / 32], &value, sizeof value);
    __syncthreads();
  }

  template <class T>
  __device__ __forceinline__ static T shuffle_down(const T& value, int distance) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t word[sizeof(T) / 4];
    memcpy(word, &value, sizeof value);
    for (uint32_t& w : word) w = __shfl_down_sync(0xFFFFFFFFu, w, distance);
    T moved;
    memcpy(&moved, word, sizeof moved);
    return moved;
  }
};

D3D_NAMESPACE_END
