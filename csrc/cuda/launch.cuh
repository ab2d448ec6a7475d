// Launching: one place for devices, grids, dtypes and errors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "check.h"
#include "team.cuh"

namespace d3d::gpu {

// What a launch needs to know about the current device; asked once, then kept. Never synchronises.
struct Device {
  int multiprocessors;
  bool clusters;
};

// False: no device, and the reason is kept for d3d_cuda_error_string.
bool current_device(Device& device);

// D3D_OK or D3D_ERROR_LAUNCH, and the reason is kept.
int outcome(cudaError_t error);

// How many teams run, and how many blocks each has.
struct Grid {
  int64_t teams;
  int blocks;
};

constexpr int kThreads = 256;  // of a block that works on rows

// As many blocks for each of `units` teams as run at once, `at_once` on a multiprocessor; if there is a
// limit, `most` teams that stride over the units.
inline Grid grid_for(const Device& device, int at_once, int64_t units, int64_t most = int64_t{1} << 27) {
  Grid grid{units < most ? units : most, 1};
  const int64_t running = int64_t{at_once} * device.multiprocessors;
  while (device.clusters && 2 * grid.blocks <= kMaxClusterBlocks && 2 * grid.blocks * grid.teams <= running)
    grid.blocks *= 2;
  return grid;
}

// Queues kernel(args) on `threads` threads a block.
template <class Args>
int launch(void (*kernel)(Args), const Args& args, Grid grid, int threads, void* stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(grid.blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid.teams * grid.blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = grid.blocks > 1;
  return outcome(cudaLaunchKernelEx(&config, kernel, args));
}

// act.operator()<Real>() for the compute type of a dtype that has been checked.
template <class Act>
int with_compute_type(int32_t dtype, Act act) {
  return dtype == D3D_F64 ? act.template operator()<double>() : act.template operator()<float>();
}

}  // namespace d3d::gpu
