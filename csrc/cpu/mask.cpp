// frontier, dense_mask and packed_mask: a few words a row, never worth a second thread.
#include "d3d/mask.h"

#include "check.h"
#include "d3d/frontier.h"

namespace d3d::cpu {
namespace {

template <class Element>
int dense_mask(const d3d_dense_mask_args& a) {
  SoloTeam team;
  for (int64_t row = 0; row < a.num_requests * a.num_rows; ++row) dense_mask_row<Element>(team, a, row);
  return D3D_OK;
}

}  // namespace
}  // namespace d3d::cpu

int d3d_frontier_cpu(const d3d_frontier_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_frontier_args& a = *args;
  if (a.num_requests < 0 || a.num_nodes < 1 || a.num_outcomes < 0 || a.block_size < 1 || a.num_pages < 0 ||
      a.page_size < 1 || (a.page_id_bytes != 4 && a.page_id_bytes != 8))
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0 || (a.num_nodes == 1 && a.num_outcomes == 0)) return D3D_OK;
  if (!all_set(a.token_ids, a.depths, a.node_counts, a.mask_bits, a.root_positions, a.row_token_ids,
               a.row_positions, a.row_slots, a.row_mask_bits) ||
      (a.num_pages > 0 && !a.page_table))
    return D3D_ERROR_ARGUMENT;
  if (a.num_outcomes > 0 &&
      !all_set(a.outcome_parents, a.outcome_token_ids, a.draft_positions, a.request_ids))
    return D3D_ERROR_ARGUMENT;
  SoloTeam team;
  for (int64_t request = 0; request < a.num_requests; ++request) frontier_request(team, a, request);
  return D3D_OK;
}

int d3d_dense_mask_cpu(const d3d_dense_mask_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_dense_mask_args& a = *args;
  if (a.num_requests < 0 || a.num_rows < 0 || a.num_words < 0 || a.num_columns < 0) return D3D_ERROR_ARGUMENT;
  const int64_t rows = a.num_requests * a.num_rows;
  if (rows * a.num_columns > 0 && !all_set(a.context_lengths, a.mask)) return D3D_ERROR_ARGUMENT;
  if (rows * a.num_words > 0 && !a.mask_bits) return D3D_ERROR_ARGUMENT;
  switch (rows * a.num_columns > 0 ? a.element_bytes : 0) {
    case 0:
      return D3D_OK;
    case 1:
      return cpu::dense_mask<uint8_t>(a);
    case 2:
      return cpu::dense_mask<uint16_t>(a);
    case 4:
      return cpu::dense_mask<uint32_t>(a);
    case 8:
      return cpu::dense_mask<uint64_t>(a);
    default:
      return D3D_ERROR_DTYPE;
  }
}

int d3d_packed_mask_cpu(const d3d_packed_mask_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_packed_mask_args& a = *args;
  if (a.num_requests < 0 || a.num_rows < 0 || a.num_words < 0 || a.max_context < 0 || !a.byte_starts)
    return D3D_ERROR_ARGUMENT;
  if (a.num_requests == 0) a.byte_starts[0] = 0;
  if (a.num_requests > 0 && !a.context_lengths) return D3D_ERROR_ARGUMENT;
  if (a.num_requests * a.num_rows > 0 && (!a.bits || 32 * a.num_words < a.num_rows || !a.mask_bits))
    return D3D_ERROR_ARGUMENT;
  SoloTeam team;
  for (int64_t request = 0; request < a.num_requests; ++request) packed_mask_request(team, a, request);
  return D3D_OK;
}
