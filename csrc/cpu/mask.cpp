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
  if (const int error = check_frontier(*args)) return error;
  if (args->num_nodes == 1 && args->num_outcomes == 0) return D3D_OK;
  SoloTeam team;
  for (int64_t request = 0; request < args->num_requests; ++request) frontier_request(team, *args, request);
  return D3D_OK;
}

int d3d_dense_mask_cpu(const d3d_dense_mask_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_dense_mask(*args)) return error;
  switch (args->element_bytes) {
    case 1:
      return cpu::dense_mask<uint8_t>(*args);
    case 2:
      return cpu::dense_mask<uint16_t>(*args);
    case 4:
      return cpu::dense_mask<uint32_t>(*args);
    default:
      return cpu::dense_mask<uint64_t>(*args);
  }
}

int d3d_packed_mask_cpu(const d3d_packed_mask_args* args, int) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_packed_mask(*args)) return error;
  if (args->num_requests == 0) args->byte_starts[0] = 0;
  SoloTeam team;
  for (int64_t request = 0; request < args->num_requests; ++request)
    packed_mask_request(team, *args, request);
  return D3D_OK;
}
