// sample and draft_candidates: a team for each row, running the bodies that the CPU runs.
//
// Few rows are shared by clusters, so that one row still fills several multiprocessors; from as many rows as
// blocks are resident on, each is a block's. With penalties, the teams that fit stride over the rows, and each
// writes the row that it works on to the workspace first.
#include "rows.cuh"

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
    if (request >= 0)
      token = sample_task<Real>(
          team, shared,
          {a.logits, row * a.row_stride, a.dtype, a.vocab, -1, launched.get(), request, {nullptr, 0}, a.workspace}, a.sampling,
          a.positions[row]);
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
  const int32_t k = a.num_candidates;
  for (int64_t i = team.index(); i < a.num_rows * a.num_positions; i += team.count()) {
    const int64_t row = i / a.num_positions, slot = i % a.num_positions;
    const int64_t request = request_of(a.request_ids, row, a.sampling);
    if (request < 0) {
      for (int64_t j = i * k + team.rank(); j < (i + 1) * k; j += team.size()) {
        a.token_ids[j] = -1;
        a.log_probs[j] = a.scores[j] = Limits<float>::kNone;
      }
      continue;
    }
    const SamplingParams& params = load_params<Real>(team, shared, a.sampling, request);
    const int64_t offset = row * a.row_stride + slot * a.position_stride;
    const AnyRow<Real> logits = open_row<Real>(
        team,
        {a.logits, offset, a.dtype, a.vocab, a.mask_token_id, launched.get(), request, {nullptr, 0}, a.workspace},
        params);
    draft_row(team, logits, params, a.positions[row] + slot, a.beta, k, team.common(shared.tokens),
              team.common(shared.histogram), a.token_ids + i * k, a.log_probs + i * k, a.scores + i * k);
    team.sync();
  }
}

Grid row_grid(const Device& device, int at_once, int64_t rows, const d3d_penalties* penalties) {
  return penalties ? grid_for(device, at_once, rows, int64_t{at_once} * device.multiprocessors)
                   : grid_for(device, at_once, rows);
}

int64_t row_workspace(int at_once, int64_t rows, int32_t vocab, int32_t dtype, const d3d_penalties* penalties) {
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
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.num_rows, a.sampling, a.penalties)) return error;
  if (a.num_rows == 0) return D3D_OK;
  if (!all_set(a.positions, a.token_ids, a.status) || (a.penalties && !a.workspace)) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  return gpu::with_compute_type(a.dtype, [&]<class Real>() {
    return gpu::launch(gpu::sample_kernel<Real>, gpu::WithPenalties(a),
                        gpu::row_grid(device, gpu::kScans, a.num_rows, a.penalties), gpu::kThreads, 0, stream);
  });
}

int64_t d3d_draft_candidates_workspace_bytes(const d3d_draft_args* args) {
  using namespace d3d::gpu;
  return args ? row_workspace(kDrafts, args->num_rows * args->num_positions, args->vocab, args->dtype, args->penalties)
              : 0;
}

int d3d_draft_candidates_cuda(const d3d_draft_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_draft_args& a = *args;
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.num_rows, a.sampling, a.penalties)) return error;
  if (a.num_positions < 0 || a.num_candidates < 0 || a.num_candidates > kMostSelected || !(a.beta > 0))
    return D3D_ERROR_ARGUMENT;
  const int64_t rows = a.num_rows * a.num_positions;
  if (rows * a.num_candidates == 0) return D3D_OK;
  if (!all_set(a.positions, a.token_ids, a.log_probs, a.scores) || (a.penalties && !a.workspace))
    return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  return gpu::with_compute_type(a.dtype, [&]<class Real>() {
    return gpu::launch(gpu::draft_kernel<Real>, gpu::WithPenalties(a), gpu::row_grid(device, gpu::kDrafts, rows, a.penalties),
                        gpu::kThreads, 0, stream);
  });
}
