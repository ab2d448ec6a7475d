// draft_tree, build_tree and select_outcome.
//
// draft_tree: a team for each drafted position leaves its candidates; the one that arrives last at a request
// grows its tree, in the shared memory that the histogram of a row has no more use for. The others: a block
// for each request. The search itself is one thread's.
#include <algorithm>

#include "d3d/tree.h"
#include "draft.cuh"

namespace d3d::gpu {
namespace {

constexpr int kTreeThreads = 64;  // they share masks and positions
constexpr int kMatchThreads = 64;

struct Search {
  TreeEntry entries[D3D_CUDA_MAX_NODES];
  float values[D3D_CUDA_MAX_NODES];
};
static_assert(sizeof(Search) <= sizeof(RowShared<float>::histogram));

struct BuildShared {
  GpuTeam<kTreeThreads>::Shared team;
  Search search;
};

__global__ void __launch_bounds__(kTreeThreads)
    build_tree_kernel(const __grid_constant__ d3d_build_tree_args a) {
  D3D_SHARED(BuildShared, shared);
  GpuTeam<kTreeThreads> team(shared.team);
  build_tree_request(team, a, team.index(), shared.search.entries, shared.search.values);
}

template <class Real>
__global__ void __launch_bounds__(kThreads, kAtOnce<Real, kDrafts>)
    draft_tree_kernel(const __grid_constant__ WithPenalties<d3d_draft_tree_args> launched) {
  D3D_SHARED(RowShared<Real>, shared);
  RowTeam<Real> team(shared.team);
  const d3d_draft_tree_args& a = launched.args;
  auto& search = *reinterpret_cast<Search*>(shared.histogram);
  const int64_t units = a.tree.num_requests * larger<int64_t>(a.tree.num_positions, 1);
  for (int64_t unit = team.index(); unit < units; unit += team.count()) {
    draft_tree_unit(team, a.tree, unit, a.arrivals, search.entries, search.values, [&] {
      draft_unit<Real>(team, shared, a.draft, launched.get(), a.draft.workspace, unit, 1);
    });
    team.sync();
  }
}

__global__ void __launch_bounds__(kMatchThreads)
    select_outcome_kernel(const __grid_constant__ d3d_select_outcome_args a) {
  using Team = GpuTeam<kMatchThreads>;
  D3D_SHARED(Team::Shared, shared);
  Team team(shared);
  select_outcome_request(team, a, team.index());
}

Grid draft_tree_grid(const Device& device, const d3d_draft_args& a) {
  return row_grid(device, kDrafts, a.num_rows * std::max<int64_t>(a.num_positions, 1), a.penalties);
}

// Places the candidates that the caller does not want to keep, and the penalised rows, in the workspace;
// returns how much of it is used.
int64_t lay_out(const Device& device, d3d_draft_tree_args& a) {
  d3d_draft_args& draft = a.draft;
  const int64_t candidates = draft.num_rows * draft.num_positions * draft.num_candidates;
  char* const begin = static_cast<char*>(a.workspace);
  int64_t used = 0;
  const auto place = [&](auto*& array) {
    if (array) return;
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(begin + used);
    used += (candidates * static_cast<int64_t>(sizeof *array) + 15) / 16 * 16;
  };
  place(draft.token_ids);
  place(draft.log_probs);
  place(draft.scores);
  a.tree.candidate_token_ids = draft.token_ids;
  a.tree.candidate_scores = draft.scores;
  draft.workspace = begin + used;
  if (draft.penalties)
    used += penalised_bytes(draft_tree_grid(device, draft).teams, draft.vocab, draft.dtype);
  return used;
}

}  // namespace
}  // namespace d3d::gpu

int d3d_build_tree_cuda(const d3d_build_tree_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_build_tree(*args)) return error;
  if (args->num_nodes > D3D_CUDA_MAX_NODES) return D3D_ERROR_ARGUMENT;
  if (args->num_requests == 0) return D3D_OK;
  return gpu::launch(gpu::build_tree_kernel, *args, {args->num_requests, 1}, gpu::kTreeThreads, stream);
}

int64_t d3d_draft_tree_workspace_bytes(const d3d_draft_tree_args* args) {
  d3d::gpu::Device device;
  if (!args || args->draft.num_rows < 1 || !d3d::gpu::current_device(device)) return 0;
  d3d_draft_tree_args joined = *args;
  d3d::join_draft_and_tree(joined);
  return d3d::gpu::lay_out(device, joined);
}

int d3d_draft_tree_cuda(const d3d_draft_tree_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  d3d_draft_tree_args a = *args;
  join_draft_and_tree(a);
  if (const int error = check_draft_tree(a)) return error;
  if (a.draft.num_candidates > D3D_CUDA_MAX_CANDIDATES || a.tree.num_nodes > D3D_CUDA_MAX_NODES)
    return D3D_ERROR_ARGUMENT;
  if (a.draft.num_rows == 0) return D3D_OK;
  if (!a.arrivals) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  if (gpu::lay_out(device, a) > 0 && !a.workspace) return D3D_ERROR_ARGUMENT;
  return gpu::with_compute_type(a.draft.dtype, [&]<class Real>() {
    return gpu::launch(gpu::draft_tree_kernel<Real>, gpu::WithPenalties(a),
                       gpu::draft_tree_grid(device, a.draft), gpu::kThreads, stream);
  });
}

int d3d_select_outcome_cuda(const d3d_select_outcome_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_select_outcome(*args)) return error;
  if (args->num_requests == 0) return D3D_OK;
  return gpu::launch(gpu::select_outcome_kernel, *args, {args->num_requests, 1}, gpu::kMatchThreads, stream);
}
