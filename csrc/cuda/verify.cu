// verify_tree in one launch, in two forms that give the same verdicts.
//
// all rows   A team for each node computes the node's y; the team that arrives last at a request walks the
// tree
//            over what the others found. Latency: one row, and a walk that reads no logits.
// lazy       A team for each request walks, computing y where the walk arrives, so that rows off the accepted
//            path are never read.
//
// All rows is the faster one while the nodes fill the device not more than once. Penalised rows depend on the
// path, and each is written out before it is sampled: they are always walked lazily, with room for one row a
// team.
#include "d3d/tree.h"
#include "rows.cuh"

namespace d3d::gpu {
namespace {

// The workspace.
struct VerifyWorkspace {
  int64_t* paths;    // [B, N], or [teams, N] of the lazy form
  int32_t* choices;  // [B, N], all rows: y of each node
  void* penalised;   // lazy: penalised rows
};

struct VerifyLaunch : WithPenalties<d3d_verify_tree_args> {
  VerifyWorkspace workspace;
};

D3D_INLINE int64_t row_offset(const d3d_verify_tree_args& a, int64_t request, int64_t row) {
  return (a.row_starts ? 0 : request * a.request_stride) + row * a.row_stride;
}

// How far a node lies below the root, or -1 if no path leads there.
D3D_INLINE int32_t depth_of(const int32_t* parents, int32_t node) {
  int32_t depth = 0;
  while (node > 0) {
    const int32_t parent = parents[node];
    if (parent < 0 || parent >= node) return -1;
    node = parent;
    ++depth;
  }
  return depth;
}

// y of one node, or -1: it has no finite logit, or no walk gets there.
template <class Real>
D3D_INLINE int32_t choose_at(RowTeam<Real>& team, RowShared<Real>& shared, const d3d_verify_tree_args& a,
                             int64_t request, int32_t node) {
  if (node >= a.node_counts[request]) return -1;
  const int32_t depth = depth_of(a.parents + request * a.num_nodes, node);
  const int64_t row = a.row_starts ? static_cast<int64_t>(a.row_starts[request]) + node : node;
  if (depth < 0 || row < 0 || (a.row_starts && row >= a.num_rows)) return -1;
  const RowTask task{
      a.logits, row_offset(a, request, row), a.dtype, a.vocab, -1, nullptr, request, {nullptr, 0}, nullptr};
  return sample_task<Real>(team, shared, task, a.sampling, a.root_positions[request] + depth + 1);
}

template <class Real>
__global__ void __launch_bounds__(kThreads, kAtOnce<Real, kScans>)
    verify_all_rows_kernel(const __grid_constant__ VerifyLaunch launched) {
  D3D_SHARED(RowShared<Real>, shared);
  RowTeam<Real> team(shared.team);
  const d3d_verify_tree_args& a = launched.args;
  const int64_t request = team.index() / a.num_nodes;
  int32_t* const choices = launched.workspace.choices + request * a.num_nodes;
  const int32_t node = static_cast<int32_t>(team.index() % a.num_nodes);
  const int32_t choice = choose_at<Real>(team, shared, a, request, node);
  if (team.rank() == 0) choices[node] = choice;
  if (!team.arrives_last(a.arrivals[request], static_cast<uint32_t>(a.num_nodes))) return;
  verify_tree_request(team, a, request, launched.workspace.paths + request * a.num_nodes,
                      [&](int64_t row, int64_t, const int64_t*, int32_t) {
                        return __ldcg(choices + (a.row_starts ? row - a.row_starts[request] : row));
                      });
}

template <class Real>
__global__ void __launch_bounds__(kThreads, kAtOnce<Real, kScans>)
    verify_lazily_kernel(const __grid_constant__ VerifyLaunch launched) {
  D3D_SHARED(RowShared<Real>, shared);
  RowTeam<Real> team(shared.team);
  const d3d_verify_tree_args& a = launched.args;
  for (int64_t request = team.index(); request < a.num_requests; request += team.count()) {
    verify_tree_request(
        team, a, request, launched.workspace.paths + team.index() * a.num_nodes,
        [&](int64_t row, int64_t position, const int64_t* path, int32_t length) {
          const RowTask task{
              a.logits,       row_offset(a, request, row), a.dtype, a.vocab, -1, launched.get(), request,
              {path, length}, launched.workspace.penalised};
          return sample_task<Real>(team, shared, task, a.sampling, position);
        });
    team.sync();
  }
}

bool reads_all_rows(const Device& device, const d3d_verify_tree_args& a) {
  return !a.penalties && 6 * a.num_requests * a.num_nodes <= 5 * int64_t{device.multiprocessors};
}

Grid verify_grid(const Device& device, const d3d_verify_tree_args& a) {
  if (reads_all_rows(device, a)) return grid_for(device, kScans, a.num_requests * a.num_nodes);
  return grid_for(device, kScans, a.num_requests, int64_t{kScans} * device.multiprocessors);
}

// Cuts the workspace up and returns how much of it is used.
int64_t lay_out(const Device& device, const d3d_verify_tree_args& a, VerifyWorkspace& workspace) {
  const auto whole = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  const bool all = reads_all_rows(device, a);
  const int64_t teams = verify_grid(device, a).teams;
  const int64_t paths = whole((all ? a.num_requests : teams) * a.num_nodes * int64_t{sizeof(int64_t)});
  auto* const rest = static_cast<char*>(a.workspace) + paths;
  workspace = {static_cast<int64_t*>(a.workspace), reinterpret_cast<int32_t*>(rest), rest};
  if (all) return paths + whole(a.num_requests * a.num_nodes * int64_t{sizeof(int32_t)});
  return paths + (a.penalties ? penalised_bytes(teams, a.vocab, a.dtype) : 0);
}

}  // namespace
}  // namespace d3d::gpu

int64_t d3d_verify_tree_workspace_bytes(const d3d_verify_tree_args* args) {
  d3d::gpu::Device device;
  d3d::gpu::VerifyWorkspace workspace;
  if (!args || args->num_requests < 1 || !d3d::gpu::current_device(device)) return 0;
  return d3d::gpu::lay_out(device, *args, workspace);
}

int d3d_verify_tree_cuda(const d3d_verify_tree_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_verify_tree_args& a = *args;
  if (const int error = check_verify_tree(a)) return error;
  if (a.num_requests == 0) return D3D_OK;
  if (!all_set(a.workspace, a.arrivals)) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  gpu::VerifyLaunch launched{gpu::WithPenalties(a), {}};
  gpu::lay_out(device, a, launched.workspace);
  return gpu::with_compute_type(a.dtype, [&]<class Real>() {
    const auto kernel =
        gpu::reads_all_rows(device, a) ? gpu::verify_all_rows_kernel<Real> : gpu::verify_lazily_kernel<Real>;
    return gpu::launch(kernel, launched, gpu::verify_grid(device, a), gpu::kThreads, stream);
  });
}
