// The threads of a block, or of a cluster of up to eight blocks (sm_90 and later), as a team.
//
// A rank takes one Philox block of four tokens at a time, or two where 16 bytes hold eight. With a cluster, a
// row is shared by as many multiprocessors as it has blocks, and every body, filters and walks included, runs
// on all of them; without (sm_80), a team is one block.
//
// reduce and scan fold a warp by shuffles, a block through shared memory, and a cluster by telling every
// block each other's total. The slots alternate between two sets: a set is written again two calls later,
// behind a barrier that everyone passed after reading it, so one barrier a level is enough.
#pragma once

#include <cooperative_groups.h>

#include "d3d/philox.h"
#include "d3d/select.h"

// Shared memory of a block. A macro, so that the CPU emulation of the tests can hand out its own.
#if !defined(D3D_SHARED)
  #define D3D_SHARED(type, name) __shared__ type name
#endif

// Clusters exist in device code from sm_90; the host's pass over this file must agree with itself only.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  #define D3D_CLUSTERS 1
#else
  #define D3D_CLUSTERS 0
#endif

D3D_NAMESPACE_BEGIN

constexpr int kMaxClusterBlocks = 8;  // what every device with clusters offers

// Keeps the best token of a rank and raises the bar for the whole block, so that after a few tiles nearly all
// of them are skipped. What another rank found is reached, not beaten: ties go to the lowest id, whoever
// found it.
template <class Real>
struct BlockBestToken {
  using Key = KeyOf<Real>;
  using Word = std::conditional_t<sizeof(Key) == 4, unsigned int, unsigned long long>;  // of atomicMax

  Token<Real> best;
  Word& shared_key;

  D3D_INLINE Real bar() const {
    const Key key = *const_cast<volatile Word*>(&shared_key);
    return larger(best.x, value_of(static_cast<Key>(key - 1)));
  }

  D3D_INLINE void offer(Token<Real> token) {
    best = token;
    atomicMax(&shared_key, static_cast<Word>(key_of<Real>(token.x)));
  }
};

template <int kThreads, int kTileTokens = 4>
class GpuTeam {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kSlotBytes = 24;  // the largest thing that is reduced, Token<double>
  static constexpr unsigned kAllLanes = 0xFFFFFFFFu;
  static_assert(kThreads % 32 == 0 && 32 % kWarps == 0 && kTileTokens % 4 == 0);

  struct Slot {
    alignas(8) unsigned char bytes[kSlotBytes];
  };

 public:
  static constexpr int kLanes = 1;
  static constexpr int kTile = kTileTokens;
  static constexpr int kHeapLimit = 0;

  struct Shared {
    Slot warps[2][kWarps];
    Slot blocks[2][kMaxClusterBlocks];
    unsigned long long bar;
    uint32_t flag;
  };

  D3D_INLINE explicit GpuTeam(Shared& shared) : shared_(shared) {
#if D3D_CLUSTERS
    block_ = cooperative_groups::this_cluster().block_rank();
    num_blocks_ = cooperative_groups::this_cluster().num_blocks();
    if (num_blocks_ > 1) sync_cluster();  // no block reaches into one that has not started
#endif
  }

  // Teams of the grid.
  D3D_INLINE int64_t index() const { return blockIdx.x / num_blocks_; }
  D3D_INLINE int64_t count() const { return gridDim.x / num_blocks_; }

  D3D_INLINE int rank() const { return static_cast<int>(block_) * kThreads + static_cast<int>(threadIdx.x); }
  D3D_INLINE int size() const { return static_cast<int>(num_blocks_) * kThreads; }

  D3D_INLINE void sync() const {
    if (num_blocks_ == 1)
      __syncthreads();
    else
      sync_cluster();
  }

  D3D_INLINE static void sync_block() { __syncthreads(); }

  // The team's copy of something in shared memory: the first block's.
  template <class T>
  D3D_INLINE T* common(T* mine) const {
#if D3D_CLUSTERS
    if (num_blocks_ > 1) return cooperative_groups::this_cluster().map_shared_rank(mine, 0);
#endif
    return mine;
  }

  template <class T, class Op>
  D3D_INLINE T reduce(T value, Op op) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) value = op(value, shuffle_down(value, distance));
    Slot* const warps = shared_.warps[phase_];
    if (lane() == 0) put(warps[warp()], value);
    __syncthreads();
    T total = get<T>(warps[lane() % kWarps]);  // every warp folds the slots for itself
#pragma unroll
    for (int distance = 1; distance < kWarps; distance *= 2) total = op(total, shuffle_down(total, distance));
    total = of_first_lane(total);
    if (num_blocks_ > 1) {
      const Slot* const blocks = tell_blocks(total);
      total = get<T>(blocks[0]);
      for (unsigned i = 1; i < num_blocks_; ++i) total = op(total, get<T>(blocks[i]));
    }
    phase_ ^= 1;
    return total;
  }

  template <class T>
  D3D_INLINE T scan(T value) {
    T inclusive = value;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const T before = __shfl_up_sync(kAllLanes, inclusive, distance);
      if (lane() >= distance) inclusive += before;
    }
    Slot* const warps = shared_.warps[phase_];
    if (lane() == 31) put(warps[warp()], inclusive);
    __syncthreads();
    T before = inclusive - value, total{};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const T sum = get<T>(warps[i]);
      if (i < warp()) before += sum;
      total += sum;
    }
    if (num_blocks_ > 1) {
      const Slot* const blocks = tell_blocks(total);
      for (unsigned i = 0; i < block_; ++i) before += get<T>(blocks[i]);
    }
    phase_ ^= 1;
    return before;
  }

  D3D_INLINE static void add(uint64_t& target, uint64_t value) { claim(target, value); }

  D3D_INLINE static uint64_t claim(uint64_t& counter, uint64_t amount = 1) {
    return atomicAdd(reinterpret_cast<unsigned long long*>(&counter),
                     static_cast<unsigned long long>(amount));
  }

  // Whoever finds itself last sees all that the other teams wrote: they put a fence before their arrival, it
  // puts one behind its own, and barriers carry both to the other ranks.
  D3D_INLINE bool arrives_last(uint32_t& counter, uint32_t count) {
    sync();
    if (rank() == 0) {
      __threadfence();
      const uint32_t last = atomicAdd(&counter, 1u) == count - 1;
      if (last) {
        atomicExch(&counter, 0u);  // as the next launch, or the next replay of a graph, must find it
        __threadfence();
      }
      for (unsigned i = 0; i < num_blocks_; ++i) *in_block(&shared_.flag, i) = last;
    }
    sync();
    return shared_.flag != 0;
  }

  D3D_INLINE static void draw(const Noise& noise, int32_t first, Tile<uint32_t, GpuTeam>& words) {
#pragma unroll
    for (int i = 0; i < kTile; i += 4) {
      uint32_t block[4];
      draw_block(noise, static_cast<uint32_t>(first + i) / 4, block);
#pragma unroll
      for (int j = 0; j < 4; ++j) words.pack[i + j] = block[j];
    }
  }

  template <class Real>
  D3D_INLINE BlockBestToken<Real> best_sink() const {
    using Word = typename BlockBestToken<Real>::Word;
    Word& key = reinterpret_cast<Word&>(shared_.bar);
    if (threadIdx.x == 0) key = static_cast<Word>(key_of<Real>(Limits<Real>::kLowest));
    __syncthreads();
    return {no_token<Real>(), key};
  }

 private:
  D3D_INLINE static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  D3D_INLINE static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  D3D_INLINE static void sync_cluster() {
#if D3D_CLUSTERS
    cooperative_groups::this_cluster().sync();
#endif
  }

  // Something in shared memory, as the given block of the cluster has it.
  template <class T>
  D3D_INLINE T* in_block(T* mine, unsigned block) const {
#if D3D_CLUSTERS
    if (num_blocks_ > 1)
      return cooperative_groups::this_cluster().map_shared_rank(mine, static_cast<int>(block));
#endif
    static_cast<void>(block);
    return mine;
  }

  // Every block's value, in this block's memory.
  template <class T>
  D3D_INLINE const Slot* tell_blocks(const T& mine) const {
    if (threadIdx.x < num_blocks_) put(*in_block(&shared_.blocks[phase_][block_], threadIdx.x), mine);
    sync_cluster();
    return shared_.blocks[phase_];
  }

  template <class T>
  D3D_INLINE static void put(Slot& slot, const T& value) {
    static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
    memcpy(slot.bytes, &value, sizeof value);
  }

  template <class T>
  D3D_INLINE static T get(const Slot& slot) {
    T value;
    memcpy(&value, slot.bytes, sizeof value);
    return value;
  }

  template <class T>
  D3D_INLINE static T shuffle_down(const T& value, int distance) {
    return by_words(value, [=](uint32_t word) { return __shfl_down_sync(kAllLanes, word, distance); });
  }

  template <class T>
  D3D_INLINE static T of_first_lane(const T& value) {
    return by_words(value, [](uint32_t word) { return __shfl_sync(kAllLanes, word, 0); });
  }

  template <class T, class Shuffle>
  D3D_INLINE static T by_words(const T& value, Shuffle shuffle) {
    static_assert(sizeof(T) % 4 == 0);
    uint32_t word[sizeof(T) / 4];
    memcpy(word, &value, sizeof value);
#pragma unroll
    for (uint32_t& w : word) w = shuffle(w);
    T moved;
    memcpy(&moved, word, sizeof moved);
    return moved;
  }

  Shared& shared_;
  unsigned block_ = 0, num_blocks_ = 1;
  int phase_ = 0;
};

D3D_NAMESPACE_END
