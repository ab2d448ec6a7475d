// As much of CUDA as csrc/cuda uses, on one CPU thread, so that its kernels run where there is no GPU.
//
// A cluster's threads are fibers. They run one at a time, in another order after every barrier, from one
// barrier or shuffle to the next; so a kernel that counts on an order that CUDA does not promise meets one in
// which that fails. Threads that wait for different barriers end the program. What this cannot show: the
// memory model (fences, caches), alignment, and everything about time.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDACC__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define D3D_SHARED(type, name) type& name = *static_cast<type*>(emulation::shared_memory(sizeof(type)))

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned size = 1) : x(size), y(1), z(1) {}
};

struct alignas(16) int4 {
  int x, y, z, w;
};

inline dim3 gridDim, blockDim, blockIdx;

namespace emulation {

constexpr size_t kStackBytes = 128 << 10, kSharedBytes = 48 << 10;

struct Barrier {
  unsigned expected = 0, arrived = 0, generation = 0;
};

struct Warp {
  Barrier barrier;
  uint64_t slot[32];
};

struct Block {
  Barrier barrier;
  std::vector<Warp> warps;
  std::unique_ptr<unsigned char[]> shared{new unsigned char[kSharedBytes]};
};

struct Cluster {
  Barrier barrier;
  std::vector<Block> blocks;
};

struct Fiber {
  ucontext_t start;
  jmp_buf context;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  bool started = false, done = false;
  const unsigned* generation = nullptr;  // what it waits for to change
  unsigned seen = 0;
  unsigned thread = 0, block = 0;  // block: in the cluster
};

inline Cluster cluster;
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline Fiber* running = nullptr;
inline jmp_buf scheduler;
inline void (*body)() = nullptr;
inline unsigned first_block = 0;

[[noreturn]] inline void fail(const char* reason) {
  std::fprintf(stderr, "CUDA emulation: %s\n", reason);
  std::abort();
}

inline Block& block() {
  return cluster.blocks[running->block];
}

inline Warp& warp() {
  return block().warps[running->thread / 32];
}

inline unsigned lane() {
  return running->thread % 32;
}

inline void wait(Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  running->generation = &barrier.generation;
  running->seen = barrier.generation;
  if (_setjmp(running->context) == 0) _longjmp(scheduler, 1);
}

inline void enter() {
  body();
  running->done = true;
  _longjmp(scheduler, 1);
}

inline void resume(Fiber& fiber) {
  running = &fiber;
  blockIdx.x = first_block + fiber.block;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.context, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

inline void run_cluster(unsigned blocks, unsigned threads) {
  cluster.barrier = {blocks * threads, 0, 0};
  cluster.blocks.resize(std::max<size_t>(cluster.blocks.size(), blocks));
  while (fibers.size() < size_t{blocks} * threads) fibers.push_back(std::make_unique<Fiber>());
  std::vector<Fiber*> left;
  for (unsigned b = 0; b < blocks; ++b) {
    cluster.blocks[b].barrier = {threads, 0, 0};
    cluster.blocks[b].warps.assign(threads / 32, Warp{});
    for (Warp& warp : cluster.blocks[b].warps) warp.barrier.expected = 32;
    std::memset(cluster.blocks[b].shared.get(), 0xA5, kSharedBytes);
    for (unsigned t = 0; t < threads; ++t) {
      Fiber& fiber = *fibers[size_t{b} * threads + t];
      fiber.started = fiber.done = false;
      fiber.generation = nullptr;
      fiber.thread = t;
      fiber.block = b;
      left.push_back(&fiber);
    }
  }
  std::minstd_rand order(first_block + 1);
  while (!left.empty()) {
    std::shuffle(left.begin(), left.end(), order);
    bool progress = false;
    for (Fiber* fiber : left) {
      if (fiber->generation && *fiber->generation == fiber->seen) continue;
      fiber->generation = nullptr;
      resume(*fiber);
      progress = true;
    }
    if (!progress) fail("threads wait at different barriers");
    std::erase_if(left, [](const Fiber* fiber) { return fiber->done; });
  }
}

inline void* shared_memory(size_t bytes) {
  if (bytes > kSharedBytes) fail("more static shared memory than a block has");
  return block().shared.get();
}

// The value of another lane; `from` outside the warp: one's own.
template <class T>
T exchange(T value, int from) {
  static_assert(sizeof(T) <= 8);
  std::memcpy(&warp().slot[lane()], &value, sizeof value);
  wait(warp().barrier);
  T other = value;
  if (from >= 0 && from < 32) std::memcpy(&other, &warp().slot[from], sizeof other);
  wait(warp().barrier);
  return other;
}

template <class T, class Op>
T fold(T value, Op op) {
  warp().slot[lane()] = 0;
  std::memcpy(&warp().slot[lane()], &value, sizeof value);
  wait(warp().barrier);
  T total;
  std::memcpy(&total, &warp().slot[0], sizeof total);
  for (int i = 1; i < 32; ++i) {
    T next;
    std::memcpy(&next, &warp().slot[i], sizeof next);
    total = op(total, next);
  }
  wait(warp().barrier);
  return total;
}

inline int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

}  // namespace emulation

#define threadIdx (dim3{emulation::running->thread})

inline void __syncthreads() {
  emulation::wait(emulation::block().barrier);
}

inline void __syncwarp() {
  emulation::wait(emulation::warp().barrier);
}

inline void __threadfence() {}

template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  return emulation::exchange(value, static_cast<int>(emulation::lane()) + distance);
}

template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return emulation::exchange(value, static_cast<int>(emulation::lane()) - distance);
}

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulation::exchange(value, lane);
}

template <class T>
T __reduce_max_sync(unsigned, T value) {
  return emulation::fold(value, [](T a, T b) { return a > b ? a : b; });
}

template <class T>
T __reduce_min_sync(unsigned, T value) {
  return emulation::fold(value, [](T a, T b) { return a < b ? a : b; });
}

template <class T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  const T old = *target;
  *target += value;
  return old;
}

template <class T>
T atomicOr(T* target, std::type_identity_t<T> value) {
  const T old = *target;
  *target |= value;
  return old;
}

template <class T>
T atomicMax(T* target, std::type_identity_t<T> value) {
  const T old = *target;
  *target = std::max(old, value);
  return old;
}

template <class T>
T atomicExch(T* target, std::type_identity_t<T> value) {
  return std::exchange(*target, value);
}

template <class T>
T __ldcg(const T* from) {
  return *from;
}

// ---- the runtime ----

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrClusterLaunch };
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension };
using cudaStream_t = void*;

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrClusterLaunch ? emulation::setting("D3D_EMULATED_CLUSTERS", 1)
                                                 : emulation::setting("D3D_EMULATED_MULTIPROCESSORS", 4);
  return cudaSuccess;
}

template <class Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Args), const Args& args) {
  using namespace emulation;
  static const Args* arguments;
  static void (*function)(Args);
  arguments = &args;
  function = kernel;
  body = [] { function(*arguments); };
  const unsigned blocks = config->numAttrs ? config->attrs[0].val.clusterDim.x : 1;
  if (config->blockDim.x % 32 != 0 || config->gridDim.x % blocks != 0 || blocks > 8 || config->gridDim.x == 0)
    return cudaErrorInvalidValue;
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  for (first_block = 0; first_block < gridDim.x; first_block += blocks) run_cluster(blocks, blockDim.x);
  return cudaSuccess;
}
