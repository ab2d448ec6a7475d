// Clusters for cuda_runtime.h beside this.
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct cluster_group {
  static unsigned block_rank() { return emulation::running->block; }

  static unsigned num_blocks() { return emulation::cluster.barrier.expected / blockDim.x; }

  static void sync() { emulation::wait(emulation::cluster.barrier); }

  template <class T>
  static T* map_shared_rank(T* mine, int block) {
    using namespace emulation;
    const size_t offset = reinterpret_cast<unsigned char*>(mine) - emulation::block().shared.get();
    if (offset >= kSharedBytes) fail("not in shared memory");
    return reinterpret_cast<T*>(cluster.blocks[static_cast<size_t>(block)].shared.get() + offset);
  }
};

inline cluster_group this_cluster() {
  return {};
}

}  // namespace cooperative_groups
