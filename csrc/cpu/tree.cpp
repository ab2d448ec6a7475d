// build_tree, verify_tree and select_outcome: requests shared among threads.
#include "d3d/tree.h"

#include <atomic>

#include "check.h"
#include "parallel.h"
#include "rows.h"
#include "scratch.h"

namespace d3d::cpu {
namespace {

constexpr int64_t kNodesWorthSharing = 512;       // about 50 us of building
constexpr int64_t kLogitsWorthSharing = 1 << 16;  // of one row a request; a walk reads several

int build_tree(const d3d_build_tree_args& a, int num_threads) {
  std::atomic<int> error{D3D_OK};
  const int64_t size = a.num_requests * (a.num_nodes + a.num_outcomes);
  parallel_for(a.num_requests, size < kNodesWorthSharing ? 1 : num_threads, [&](int64_t request) {
    static thread_local Buffer entries, values;
    auto* heap = entries.reserve<TreeEntry>(a.num_nodes);
    auto* sums = values.reserve<float>(a.num_nodes);
    if (!heap || !sums) {
      error = D3D_ERROR_MEMORY;
      return;
    }
    SoloTeam team;
    build_tree_request(team, a, request, heap, sums);
  });
  return error;
}

int verify_tree(const d3d_verify_tree_args& a, int num_threads) {
  std::atomic<int> error{D3D_OK};
  const int64_t size = a.num_requests * a.vocab;
  parallel_for(a.num_requests, size < kLogitsWorthSharing ? 1 : num_threads, [&](int64_t request) {
    static thread_local Buffer paths;
    auto* path = paths.reserve<int64_t>(a.num_nodes);
    RowScratch scratch;
    if (!path || !row_scratch(a.vocab, a.penalties, 0, scratch)) {
      error = D3D_ERROR_MEMORY;
      return;
    }
    SoloTeam team;
    const int64_t first = a.row_starts ? 0 : request * a.request_stride;
    verify_tree_request(
        team, a, request, path, [&](int64_t row, int64_t position, const int64_t* tokens, int32_t length) {
          const char* logits =
              static_cast<const char*>(a.logits) + (first + row * a.row_stride) * dtype_bytes(a.dtype);
          return row_kernels().sample(
              {logits, a.dtype, a.vocab, -1, &a.sampling, a.penalties, request, position, tokens, length},
              scratch);
        });
  });
  return error;
}

}  // namespace
}  // namespace d3d::cpu

int d3d_build_tree_cpu(const d3d_build_tree_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_build_tree_args& a = *args;
  if (a.num_requests < 0 || a.num_positions < 0 || a.num_candidates < 0 || a.num_nodes < 1 ||
      a.num_outcomes < 0)
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0) return D3D_OK;
  if (!all_set(a.root_ids, a.token_ids, a.parents, a.depths, a.node_counts, a.mask_bits))
    return D3D_ERROR_ARGUMENT;
  if (a.num_positions * a.num_candidates > 0 && !all_set(a.candidate_token_ids, a.candidate_scores))
    return D3D_ERROR_ARGUMENT;
  if (a.num_outcomes > 0 && !all_set(a.outcome_parents, a.outcome_token_ids, a.outcome_scores))
    return D3D_ERROR_ARGUMENT;
  return cpu::build_tree(a, num_threads);
}

int d3d_verify_tree_cpu(const d3d_verify_tree_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_verify_tree_args& a = *args;
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.row_starts ? a.num_rows : a.num_requests,
                                   a.sampling, a.penalties))
    return error;
  if (a.num_requests < 0 || a.num_nodes < 1 || a.sampling.num_requests < a.num_requests)
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests > 0 && !all_set(a.token_ids, a.parents, a.node_counts, a.root_positions,
                                     a.accepted_nodes, a.num_accepted, a.bonus_ids, a.status))
    return D3D_ERROR_ARGUMENT;
  return cpu::verify_tree(a, num_threads);
}

int d3d_select_outcome_cpu(const d3d_select_outcome_args* args, int) {
  using namespace d3d;
  if (!args || args->num_requests < 0 || args->num_nodes < 1 || args->num_outcomes < 0)
    return D3D_ERROR_ARGUMENT;
  const d3d_select_outcome_args& a = *args;
  if (a.num_requests > 0 && !all_set(a.accepted_nodes, a.num_accepted, a.bonus_ids, a.index))
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests * a.num_outcomes > 0 && !all_set(a.outcome_parents, a.outcome_token_ids))
    return D3D_ERROR_ARGUMENT;
  SoloTeam team;
  for (int64_t request = 0; request < a.num_requests; ++request) select_outcome_request(team, a, request);
  return D3D_OK;
}
