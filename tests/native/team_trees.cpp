// build_tree, verify_tree, select_outcome and move_kv by teams of threads.
#include "d3d/kv.h"
#include "d3d/tree.h"
#include "team_rows.h"

namespace {

using namespace d3d;
using namespace proof;

void build_tree(int size, const d3d_build_tree_args& a) {
  std::vector<TreeEntry> entries(static_cast<size_t>(a.num_nodes));
  std::vector<float> values(static_cast<size_t>(a.num_nodes));
  by_team(size, a.num_requests, [&](ThreadTeam& team, int64_t request) {
    build_tree_request(team, a, request, entries.data(), values.data());
  });
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

void move_kv(int size, const d3d_move_kv_args& a) {
  by_team(size, a.num_requests * a.num_buffers, [&](ThreadTeam& team, int64_t i) {
    move_kv_request(team, a, a.buffers[i / a.num_requests], i % a.num_requests);
  });
}

}  // namespace

int main(int count, char** words) {
  const Plan plan(count, words);
  compare(plan, build_tree_problems, d3d_build_tree_cpu, build_tree);
  compare(plan, verify_tree_problems<D3D_F32>, d3d_verify_tree_cpu, verify_tree);
  compare(plan, select_outcome_problems, d3d_select_outcome_cpu, select_outcome);
  compare(plan, move_kv_problems, d3d_move_kv_cpu, move_kv);
}
