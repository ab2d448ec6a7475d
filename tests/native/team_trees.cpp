// The structural ops and verify_tree by teams of threads.
#include "d3d/frontier.h"
#include "d3d/kv.h"
#include "d3d/mask.h"
#include "d3d/tree.h"
#include "team_rows.h"

namespace {

using namespace d3d;
using namespace proof;

struct GrowthScratch {
  std::vector<TreeEntry> entries;
  std::vector<float> values;

  explicit GrowthScratch(int32_t nodes)
      : entries(static_cast<size_t>(nodes)), values(static_cast<size_t>(nodes)) {}
};

void build_tree(int size, const d3d_build_tree_args& a) {
  GrowthScratch scratch(a.num_nodes);
  by_team(size, a.num_requests, [&](ThreadTeam& team, int64_t request) {
    build_tree_request(team, a, request, scratch.entries.data(), scratch.values.data());
  });
}

// A team for each drafted position; the last of a request grows its tree.
void draft_tree(int size, const d3d_draft_tree_args& a) {
  d3d_draft_args draft = a.draft;
  d3d_build_tree_args tree = a.tree;
  const int64_t candidates = draft.num_rows * draft.num_positions * draft.num_candidates;
  std::vector<int64_t> token_ids(static_cast<size_t>(candidates));
  std::vector<float> log_probs(static_cast<size_t>(candidates)), scores(static_cast<size_t>(candidates));
  if (!draft.token_ids) draft.token_ids = token_ids.data();
  if (!draft.log_probs) draft.log_probs = log_probs.data();
  if (!draft.scores) draft.scores = scores.data();
  tree.num_requests = draft.num_rows;
  tree.num_positions = draft.num_positions;
  tree.num_candidates = draft.num_candidates;
  tree.candidate_token_ids = draft.token_ids;
  tree.candidate_scores = draft.scores;

  const int64_t units = draft.num_rows * larger<int64_t>(draft.num_positions, 1);
  std::vector<uint32_t> arrivals(static_cast<size_t>(draft.num_rows), 0);
  std::deque<TeamScratch> rows;
  std::deque<GrowthScratch> growth;
  for (int64_t unit = 0; unit < units; ++unit) {
    rows.emplace_back(draft.vocab, static_cast<int64_t>(size) * draft.num_candidates);
    growth.emplace_back(tree.num_nodes);
  }
  run_teams(units, size, [&](ThreadTeam& team, int64_t unit) {
    const auto index = static_cast<size_t>(unit);
    draft_tree_unit(
        team, tree, unit, arrivals.data(), growth[index].entries.data(), growth[index].values.data(),
        [&] { draft_by_team<Float32>(team, draft, unit, unit / draft.num_positions, 1, rows[index]); });
  });
  for (const uint32_t left : arrivals) expect(left == 0, "draft_tree: a counter of arrivals was left behind");
}

void verify_tree(int size, const d3d_verify_tree_args& a) {
  TeamScratch scratch(a.vocab, 0);
  std::vector<int64_t> path(static_cast<size_t>(a.num_nodes));
  by_team(size, a.num_requests, [&](ThreadTeam& team, int64_t request) {
    const auto* first = static_cast<const float*>(a.logits) + (a.row_starts ? 0 : request * a.request_stride);
    verify_tree_request(
        team, a, request, path.data(),
        [&](int64_t row, int64_t position, const int64_t* tokens, int32_t length) {
          const TeamRow task{
              first + row * a.row_stride, a.vocab, -1, a.sampling, a.penalties, request, {tokens, length}};
          return sample_by_team<Float32>(team, task, position, scratch);
        });
  });
}

void select_outcome(int size, const d3d_select_outcome_args& a) {
  by_team(size, a.num_requests,
          [&](ThreadTeam& team, int64_t request) { select_outcome_request(team, a, request); });
}

void frontier(int size, const d3d_frontier_args& a) {
  by_team(size, a.num_requests,
          [&](ThreadTeam& team, int64_t request) { frontier_request(team, a, request); });
}

template <class Element>
void dense_mask_as(int size, const d3d_dense_mask_args& a) {
  by_team(size, a.num_requests * a.num_rows,
          [&](ThreadTeam& team, int64_t row) { dense_mask_row<Element>(team, a, row); });
}

void dense_mask(int size, const d3d_dense_mask_args& a) {
  switch (a.element_bytes) {
    case 1:
      return dense_mask_as<uint8_t>(size, a);
    case 2:
      return dense_mask_as<uint16_t>(size, a);
    case 4:
      return dense_mask_as<uint32_t>(size, a);
    default:
      return dense_mask_as<uint64_t>(size, a);
  }
}

void packed_mask(int size, const d3d_packed_mask_args& a) {
  by_team(size, a.num_requests,
          [&](ThreadTeam& team, int64_t request) { packed_mask_request(team, a, request); });
}

void move_kv(int size, const d3d_move_kv_args& a) {
  by_team(size, a.num_requests * a.num_buffers, [&](ThreadTeam& team, int64_t i) {
    move_kv_request(team, a, a.buffers[i / a.num_requests], i % a.num_requests);
  });
}

}  // namespace

int main(int count, char** words) {
  const Plan plan(count, words);
  compare(plan, build_tree_problems, d3d_build_tree_cpu, build_tree);
  compare(plan, draft_tree_problems, d3d_draft_tree_cpu, draft_tree);
  compare(plan, verify_tree_problems<D3D_F32>, d3d_verify_tree_cpu, verify_tree);
  compare(plan, select_outcome_problems, d3d_select_outcome_cpu, select_outcome);
  compare(plan, frontier_problems, d3d_frontier_cpu, frontier);
  compare(plan, dense_mask_problems, d3d_dense_mask_cpu, dense_mask);
  compare(plan, packed_mask_problems, d3d_packed_mask_cpu, packed_mask);
  compare(plan, move_kv_problems, d3d_move_kv_cpu, move_kv);
}
