// Devices and errors.
#include "launch.cuh"

#include <atomic>

#include "d3d.h"

namespace d3d::gpu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr int kKnownDevices = 64;

}  // namespace

int outcome(cudaError_t error) {
  if (error == cudaSuccess) return D3D_OK;
  last_error = error;
  cudaGetLastError();  // it has been reported: the next launch starts clean
  return D3D_ERROR_LAUNCH;
}

bool current_device(Device& device) {
  static std::atomic<int> known[kKnownDevices];  // multiprocessors * 2 + clusters; 0: not asked yet
  int id = 0;
  if (outcome(cudaGetDevice(&id)) != D3D_OK) return false;
  int packed = id < kKnownDevices ? known[id].load(std::memory_order_relaxed) : 0;
  if (packed == 0) {
    int multiprocessors = 0, clusters = 0;
    if (outcome(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, id)) != D3D_OK ||
        outcome(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, id)) != D3D_OK)
      return false;
    packed = multiprocessors * 2 + (clusters != 0);
    if (id < kKnownDevices) known[id].store(packed, std::memory_order_relaxed);
  }
  device = {packed / 2, packed % 2 != 0};
  return true;
}

}  // namespace d3d::gpu

const char* d3d_cuda_error_string(void) {
  return cudaGetErrorString(d3d::gpu::last_error);
}
