// One drafted position on a team; draft_candidates and draft_tree share it.
#pragma once

#include "rows.cuh"

namespace d3d::gpu {

// The candidates of position unit % L of row unit / L; `ahead` is added to the row's own position.
template <class Real>
D3D_INLINE void draft_unit(RowTeam<Real>& team, RowShared<Real>& shared, const d3d_draft_args& a,
                           const d3d_penalties* penalties, void* workspace, int64_t unit, int64_t ahead) {
  const int64_t row = unit / a.num_positions, slot = unit % a.num_positions, first = unit * a.num_candidates;
  const int64_t request = request_of(a.request_ids, row, a.sampling);
  if (request < 0) {
    for (int32_t i = team.rank(); i < a.num_candidates; i += team.size()) {
      a.token_ids[first + i] = -1;
      a.log_probs[first + i] = a.scores[first + i] = Limits<float>::kNone;
    }
    return;
  }
  const SamplingParams& params = load_params<Real>(team, shared, a.sampling, request);
  const int64_t offset = row * a.row_stride + slot * a.position_stride;
  const RowTask task{a.logits,  offset,  a.dtype,      a.vocab,  a.mask_token_id,
                     penalties, request, {nullptr, 0}, workspace};
  draft_row(team, open_row<Real>(team, task, params), params, a.positions[row] + ahead + slot, a.beta,
            a.num_candidates, team.common(shared.tokens), team.common(shared.histogram), a.token_ids + first,
            a.log_probs + first, a.scores + first);
}

}  // namespace d3d::gpu
