// sample and draft_candidates: a team for each row, running the bodies that the CPU runs.
//
// Few rows are shared by clusters, so that one row still fills several multiprocessors; from as many rows as
// blocks are resident on, each is a block's. With penalties, the teams that fit stride over the rows, and
// each writes the row that it works on to the workspace first.
#include "draft.cuh"

namespace d3d::gpu {
namespace {

template <class Real>
__global__ void __launch_bounds__(kThreads, kAtOnce<Real, kScans>)
    sample_kernel(const __grid_constant__ WithPenalties<d3d_sample_args> launched) {
  D3D_SHARED(RowShared<Real>, shared);
  RowTeam<Real> team(shared.team);
  const d3d_sample_args& a = launched.args;
  for (int64_t row = team.index(); row < a.num_rows; row += team.count()) {
    const int64_t request = request_of(a.request_ids, row, a.sampling);
    int32_t token = -1;
    if (request >= 0) {
      const RowTask task{a.logits, row * a.row_stride, a.dtype,    a.vocab, -1, launched.get(),
                         request,  {nullptr, 0},       a.workspace};
      token = sample_task<Real>(team, shared, task, a.sampling, a.positions[row]);
    }
    if (team.rank() == 0) {
      a.token_ids[row] = token < 0 ? 0 : token;
      a.status[row] = token < 0 ? D3D_STATUS_NO_FINITE_LOGIT : 0;
    }
    team.sync();  // the shared memory is free for the next row, and stays as long as another block reads it
  }
}

template <class Real>
__global__ void __launch_bounds__(kThreads, kAtOnce<Real, kDrafts>)
    draft_kernel(const __grid_constant__ WithPenalties<d3d_draft_args> launched) {
  D3D_SHARED(RowShared<Real>, shared);
  RowTeam<Real> team(shared.team);
  const d3d_draft_args& a = launched.args;
  for (int64_t unit = team.index(); unit < a.num_rows * a.num_positions; unit += team.count()) {
    draft_unit<Real>(team, shared, a, launched.get(), a.workspace, unit, 0);
    team.sync();
  }
}

int64_t row_workspace(int at_once, int64_t rows, int32_t vocab, int32_t dtype,
                      const d3d_penalties* penalties) {
  Device device;
  if (!penalties || rows < 1 || !current_device(device)) return 0;
  return penalised_bytes(row_grid(device, at_once, rows, penalties).teams, vocab, dtype);
}

}  // namespace
}  // namespace d3d::gpu

int64_t d3d_sample_workspace_bytes(const d3d_sample_args* args) {
  using namespace d3d::gpu;
  return args ? row_workspace(kScans, args->num_rows, args->vocab, args->dtype, args->penalties) : 0;
}

int d3d_sample_cuda(const d3d_sample_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_sample_args& a = *args;
  if (const int error = check_sample(a)) return error;
  if (a.num_rows == 0) return D3D_OK;
  if (a.penalties && !a.workspace) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  return gpu::with_compute_type(a.dtype, [&]<class Real>() {
    return gpu::launch(gpu::sample_kernel<Real>, gpu::WithPenalties(a),
                       gpu::row_grid(device, gpu::kScans, a.num_rows, a.penalties), gpu::kThreads, stream);
  });
}

int64_t d3d_draft_candidates_workspace_bytes(const d3d_draft_args* args) {
  using namespace d3d::gpu;
  if (!args) return 0;
  return row_workspace(kDrafts, args->num_rows * args->num_positions, args->vocab, args->dtype,
                       args->penalties);
}

int d3d_draft_candidates_cuda(const d3d_draft_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_draft_args& a = *args;
  if (const int error = check_draft_candidates(a)) return error;
  if (a.num_candidates > D3D_CUDA_MAX_CANDIDATES) return D3D_ERROR_ARGUMENT;
  const int64_t rows = a.num_rows * a.num_positions;
  if (rows == 0 || a.num_candidates == 0) return D3D_OK;
  if (a.penalties && !a.workspace) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  return gpu::with_compute_type(a.dtype, [&]<class Real>() {
    return gpu::launch(gpu::draft_kernel<Real>, gpu::WithPenalties(a),
                       gpu::row_grid(device, gpu::kDrafts, rows, a.penalties), gpu::kThreads, stream);
  });
}
