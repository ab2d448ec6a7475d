// draft_tree: drafted positions shared among threads; build_tree, verify_tree, select_outcome: requests.
#include "d3d/tree.h"

#include <algorithm>
#include <atomic>

#include "check.h"
#include "parallel.h"
#include "rows.h"
#include "scratch.h"

namespace d3d::cpu {
namespace {

constexpr int64_t kNodesWorthSharing = 512;       // about 50 us of building
constexpr int64_t kLogitsWorthSharing = 1 << 16;  // of one row a request; a walk reads several

// What growing a tree of N nodes needs, of the calling thread.
struct GrowthScratch {
  TreeEntry* entries;
  float* values;

  explicit GrowthScratch(int32_t nodes) {
    static thread_local Buffer heap, sums;
    entries = heap.reserve<TreeEntry>(nodes);
    values = sums.reserve<float>(nodes);
  }
  explicit operator bool() const { return entries && values; }
};

int build_tree(const d3d_build_tree_args& a, int num_threads) {
  std::atomic<int> error{D3D_OK};
  const int64_t size = a.num_requests * (a.num_nodes + a.num_outcomes);
  parallel_for(a.num_requests, size < kNodesWorthSharing ? 1 : num_threads, [&](int64_t request) {
    const GrowthScratch scratch(a.num_nodes);
    if (!scratch) {
      error = D3D_ERROR_MEMORY;
      return;
    }
    SoloTeam team;
    build_tree_request(team, a, request, scratch.entries, scratch.values);
  });
  return error;
}

// The draft's outputs that the caller does not want, in scratch of the calling thread.
bool keep_candidates(d3d_draft_args& draft) {
  static thread_local Buffer token_ids, log_probs, scores;
  const int64_t size = draft.num_rows * draft.num_positions * draft.num_candidates;
  if (!draft.token_ids) draft.token_ids = token_ids.reserve<int64_t>(size + 1);
  if (!draft.log_probs) draft.log_probs = log_probs.reserve<float>(size + 1);
  if (!draft.scores) draft.scores = scores.reserve<float>(size + 1);
  return draft.token_ids && draft.log_probs && draft.scores;
}

// One pass over the drafted positions: whoever finishes a request's last grows its tree.
int draft_tree(d3d_draft_tree_args a, int num_threads) {
  static thread_local Buffer counters;
  auto* arrivals = counters.reserve<uint32_t>(a.draft.num_rows);
  if (!arrivals || !keep_candidates(a.draft)) return D3D_ERROR_MEMORY;
  std::fill_n(arrivals, a.draft.num_rows, 0u);
  a.tree.candidate_token_ids = a.draft.token_ids;
  a.tree.candidate_scores = a.draft.scores;

  std::atomic<int> error{D3D_OK};
  const int64_t units = a.draft.num_rows * larger<int64_t>(a.draft.num_positions, 1);
  parallel_for(units, units * a.draft.vocab < kLogitsWorthSharing ? 1 : num_threads, [&](int64_t unit) {
    const GrowthScratch scratch(a.tree.num_nodes);
    if (!scratch) {
      error = D3D_ERROR_MEMORY;
      return;
    }
    SoloTeam team;
    draft_tree_unit(team, a.tree, unit, arrivals, scratch.entries, scratch.values, [&] {
      if (!draft_position(a.draft, unit, 1)) error = D3D_ERROR_MEMORY;
    });
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
  if (const int error = check_build_tree(*args)) return error;
  return cpu::build_tree(*args, num_threads);
}

int d3d_draft_tree_cpu(const d3d_draft_tree_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  d3d_draft_tree_args joined = *args;
  join_draft_and_tree(joined);
  if (const int error = check_draft_tree(joined)) return error;
  return joined.draft.num_rows > 0 ? cpu::draft_tree(joined, num_threads) : D3D_OK;
}

int d3d_verify_tree_cpu(const d3d_verify_tree_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_verify_tree(*args)) return error;
  return cpu::verify_tree(*args, num_threads);
}

int d3d_select_outcome_cpu(const d3d_select_outcome_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_select_outcome(*args)) return error;
  SoloTeam team;
  for (int64_t request = 0; request < args->num_requests; ++request)
    select_outcome_request(team, *args, request);
  return D3D_OK;
}
