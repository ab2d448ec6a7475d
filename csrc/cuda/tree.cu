// build_tree and select_outcome: a block for each request.
#include "d3d/tree.h"
#include "launch.cuh"

namespace d3d::gpu {
namespace {

constexpr int kTreeThreads = 64;  // they share the masks; the search is one thread's
constexpr int kMatchThreads = 32;

constexpr int64_t kBytesPerNode = sizeof(TreeEntry) + sizeof(float);

__global__ void __launch_bounds__(kTreeThreads) build_tree_kernel(const __grid_constant__ d3d_build_tree_args a) {
  using Team = GpuTeam<kTreeThreads>;
  D3D_SHARED(Team::Shared, shared);
  D3D_DYNAMIC_SHARED(memory);
  Team team(shared);
  auto* const entries = reinterpret_cast<TreeEntry*>(memory);
  auto* const values = reinterpret_cast<float*>(entries + a.num_nodes);
  build_tree_request(team, a, team.index(), entries, values);
}

__global__ void __launch_bounds__(kMatchThreads)
    select_outcome_kernel(const __grid_constant__ d3d_select_outcome_args a) {
  using Team = GpuTeam<kMatchThreads>;
  D3D_SHARED(Team::Shared, shared);
  Team team(shared);
  select_outcome_request(team, a, team.index());
}

}  // namespace
}  // namespace d3d::gpu

int d3d_build_tree_cuda(const d3d_build_tree_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_build_tree_args& a = *args;
  if (const int error = check_build_tree(a)) return error;
  if (a.num_nodes > D3D_CUDA_MAX_NODES) return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0) return D3D_OK;
  return gpu::launch(gpu::build_tree_kernel, a, {a.num_requests, 1}, gpu::kTreeThreads,
                     a.num_nodes * gpu::kBytesPerNode, stream);
}

int d3d_select_outcome_cuda(const d3d_select_outcome_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_select_outcome(*args)) return error;
  if (args->num_requests == 0) return D3D_OK;
  return gpu::launch(gpu::select_outcome_kernel, *args, {args->num_requests, 1}, gpu::kMatchThreads, 0, stream);
}
