// move_kv: pairs of request and tensor shared among threads.
#include "d3d/kv.h"

#include "check.h"
#include "parallel.h"

namespace d3d::cpu {
namespace {

constexpr int64_t kBytesWorthSharing = 1 << 20;

int move_kv(const d3d_move_kv_args& a, int num_threads) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < a.num_buffers; ++i) bytes += a.buffers[i].num_heads * a.buffers[i].head_bytes;
  bytes *= a.num_requests * a.num_moves;
  parallel_for(a.num_requests * a.num_buffers, bytes < kBytesWorthSharing ? 1 : num_threads, [&](int64_t i) {
    SoloTeam team;
    move_kv_request(team, a, a.buffers[i / a.num_requests], i % a.num_requests);
  });
  return D3D_OK;
}

}  // namespace
}  // namespace d3d::cpu

int d3d_move_kv_cpu(const d3d_move_kv_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_move_kv_args& a = *args;
  if (const int error = check_move_kv(a)) return error;
  if (a.num_requests * a.num_moves == 0) return D3D_OK;
  for (int64_t i = 0; i < a.num_buffers; ++i)
    if (!a.buffers[i].data && a.num_pages > 0) return D3D_ERROR_ARGUMENT;
  return cpu::move_kv(a, num_threads);
}
