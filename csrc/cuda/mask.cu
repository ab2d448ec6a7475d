// frontier, dense_mask and packed_mask: a block for each request, or row.
#include <algorithm>

#include "d3d/frontier.h"
#include "launch.cuh"

namespace d3d::gpu {
namespace {

constexpr int kMaskThreads = 128;
using Team = GpuTeam<kMaskThreads>;

__global__ void __launch_bounds__(kMaskThreads) frontier_kernel(const __grid_constant__ d3d_frontier_args a) {
  D3D_SHARED(Team::Shared, shared);
  Team team(shared);
  frontier_request(team, a, team.index());
}

template <class Element>
__global__ void __launch_bounds__(kMaskThreads)
    dense_mask_kernel(const __grid_constant__ d3d_dense_mask_args a) {
  D3D_SHARED(Team::Shared, shared);
  Team team(shared);
  dense_mask_row<Element>(team, a, team.index());
}

__global__ void __launch_bounds__(kMaskThreads)
    packed_mask_kernel(const __grid_constant__ d3d_packed_mask_args a) {
  D3D_SHARED(Team::Shared, shared);
  Team team(shared);
  if (a.num_requests > 0)
    packed_mask_request(team, a, team.index());
  else if (team.rank() == 0)
    a.byte_starts[0] = 0;
}

}  // namespace
}  // namespace d3d::gpu

int d3d_frontier_cuda(const d3d_frontier_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_frontier(*args)) return error;
  if (args->num_requests == 0 || (args->num_nodes == 1 && args->num_outcomes == 0)) return D3D_OK;
  return gpu::launch(gpu::frontier_kernel, *args, {args->num_requests, 1}, gpu::kMaskThreads, stream);
}

int d3d_dense_mask_cuda(const d3d_dense_mask_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_dense_mask(*args)) return error;
  const int64_t rows = args->num_requests * args->num_rows;
  if (rows * args->num_columns == 0) return D3D_OK;
  const auto queue = [&](auto kernel) {
    return gpu::launch(kernel, *args, {rows, 1}, gpu::kMaskThreads, stream);
  };
  switch (args->element_bytes) {
    case 1:
      return queue(gpu::dense_mask_kernel<uint8_t>);
    case 2:
      return queue(gpu::dense_mask_kernel<uint16_t>);
    case 4:
      return queue(gpu::dense_mask_kernel<uint32_t>);
    default:
      return queue(gpu::dense_mask_kernel<uint64_t>);
  }
}

int d3d_packed_mask_cuda(const d3d_packed_mask_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_packed_mask(*args)) return error;
  const int64_t teams = std::max<int64_t>(args->num_requests, 1);
  return gpu::launch(gpu::packed_mask_kernel, *args, {teams, 1}, gpu::kMaskThreads, stream);
}
