// sample and draft_candidates: rows shared among threads.
#include <atomic>

#include "check.h"
#include "parallel.h"
#include "rows.h"

namespace d3d::cpu {
namespace {

// Below this many logits a helper is woken for less than it takes to wake it.
constexpr int64_t kLogitsWorthSharing = 1 << 17;

int threads_for(int64_t rows, int32_t vocab, int num_threads) {
  return rows * vocab < kLogitsWorthSharing ? 1 : num_threads;
}

const void* offset(const void* data, int32_t dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * dtype_bytes(dtype);
}

int64_t request_of(const int32_t* request_ids, int64_t row, const d3d_sampling& sampling) {
  const int64_t request = request_ids ? request_ids[row] : row;
  return request >= 0 && request < sampling.num_requests ? request : -1;
}

int sample(const d3d_sample_args& a, int num_threads) {
  std::atomic<int> error{D3D_OK};
  parallel_for(a.num_rows, threads_for(a.num_rows, a.vocab, num_threads), [&](int64_t row) {
    RowScratch scratch;
    if (!row_scratch(a.vocab, a.penalties, 0, scratch)) {
      error = D3D_ERROR_MEMORY;
      return;
    }
    const int64_t request = request_of(a.request_ids, row, a.sampling);
    int32_t token = -1;
    if (request >= 0)
      token = row_kernels().sample({offset(a.logits, a.dtype, row * a.row_stride), a.dtype, a.vocab, -1,
                                    &a.sampling, a.penalties, request, a.positions[row], nullptr, 0},
                                   scratch);
    a.token_ids[row] = token < 0 ? 0 : token;
    a.status[row] = token < 0 ? D3D_STATUS_NO_FINITE_LOGIT : 0;
  });
  return error;
}

int draft_candidates(const d3d_draft_args& a, int num_threads) {
  std::atomic<int> error{D3D_OK};
  const int64_t rows = a.num_rows * a.num_positions;
  parallel_for(rows, threads_for(rows, a.vocab, num_threads), [&](int64_t i) {
    if (!draft_position(a, i, 0)) error = D3D_ERROR_MEMORY;
  });
  return error;
}

}  // namespace

bool draft_position(const d3d_draft_args& a, int64_t i, int64_t first) {
  RowScratch scratch;
  if (!row_scratch(a.vocab, a.penalties, a.num_candidates, scratch)) return false;
  const int64_t row = i / a.num_positions, slot = i % a.num_positions;
  const int64_t request = request_of(a.request_ids, row, a.sampling);
  const DraftOutput out{a.num_candidates, a.beta, a.token_ids + i * a.num_candidates,
                        a.log_probs + i * a.num_candidates, a.scores + i * a.num_candidates};
  if (request < 0) {
    for (int32_t k = 0; k < out.k; ++k) {
      out.token_ids[k] = -1;
      out.log_probs[k] = out.scores[k] = -__builtin_inff();
    }
    return true;
  }
  const auto logits_of = [&](int64_t position) {
    const int64_t b = position / a.num_positions, l = position % a.num_positions;
    return offset(a.logits, a.dtype, b * a.row_stride + l * a.position_stride);
  };
  const void* next = i + 1 < a.num_rows * a.num_positions ? logits_of(i + 1) : nullptr;
  row_kernels().draft({logits_of(i), a.dtype, a.vocab, a.mask_token_id, &a.sampling, a.penalties, request,
                       a.positions[row] + first + slot, nullptr, 0, next},
                      scratch, out);
  return true;
}

}  // namespace d3d::cpu

int d3d_sample_cpu(const d3d_sample_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_sample(*args)) return error;
  return cpu::sample(*args, num_threads);
}

int d3d_draft_candidates_cpu(const d3d_draft_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_draft_candidates(*args)) return error;
  return args->num_candidates > 0 ? cpu::draft_candidates(*args, num_threads) : D3D_OK;
}
