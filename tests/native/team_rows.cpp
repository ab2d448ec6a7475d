// sample and draft_candidates by teams of threads.
#include "team_rows.h"

namespace {

using namespace d3d;
using namespace proof;

int64_t request_of(const int32_t* request_ids, int64_t row, const d3d_sampling& sampling) {
  const int64_t request = request_ids[row];
  return request < sampling.num_requests ? request : -1;
}

template <class Logit>
void sample_as(int size, const d3d_sample_args& a) {
  TeamScratch scratch(a.vocab, 0);
  run_team(size, [&](ThreadTeam& team) {
    for (int64_t i = 0; i < a.num_rows; ++i) {
      const int64_t request = request_of(a.request_ids, i, a.sampling);
      const auto* logits = static_cast<const typename Logit::Bits*>(a.logits) + i * a.row_stride;
      int32_t token = -1;
      if (request >= 0)
        token =
            sample_by_team<Logit>(team, {logits, a.vocab, -1, a.sampling, a.penalties, request, {nullptr, 0}},
                                  a.positions[i], scratch);
      if (team.rank() != 0) continue;
      a.token_ids[i] = token < 0 ? 0 : token;
      a.status[i] = token < 0 ? D3D_STATUS_NO_FINITE_LOGIT : 0;
    }
  });
}

template <class Logit>
void draft_as(int size, const d3d_draft_args& a) {
  TeamScratch scratch(a.vocab, static_cast<int64_t>(size) * a.num_candidates);
  run_team(size, [&](ThreadTeam& team) {
    for (int64_t i = 0; i < a.num_rows * a.num_positions; ++i) {
      const int64_t first = i * a.num_candidates;
      const int64_t request = request_of(a.request_ids, i / a.num_positions, a.sampling);
      if (request >= 0) {
        draft_by_team<Logit>(team, a, i, request, 0, scratch);
        continue;
      }
      for (int32_t k = team.rank(); k < a.num_candidates; k += team.size()) {
        a.token_ids[first + k] = -1;
        a.log_probs[first + k] = a.scores[first + k] = -kInfinity;
      }
    }
  });
}

template <class Args>
using ByTeam = void (*)(int, const Args&);

// Indexed by d3d_dtype.
constexpr ByTeam<d3d_sample_args> kSample[] = {sample_as<Float32>, sample_as<BFloat16>, sample_as<Float16>,
                                               sample_as<Float64>};
constexpr ByTeam<d3d_draft_args> kDraft[] = {draft_as<Float32>, draft_as<BFloat16>, draft_as<Float16>,
                                             draft_as<Float64>};

}  // namespace

int main(int count, char** words) {
  const Plan plan(count, words);
  compare(plan, sample_problems, d3d_sample_cpu,
          [](int size, const d3d_sample_args& a) { kSample[a.dtype](size, a); });
  compare(plan, draft_problems, d3d_draft_candidates_cpu,
          [](int size, const d3d_draft_args& a) { kDraft[a.dtype](size, a); });
}
