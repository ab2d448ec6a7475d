// move_kv and rollback_kv: tensors shared among threads.
#include "d3d/kv.h"

#include "check.h"
#include "parallel.h"

#if defined(D3D_X86)
  #include <emmintrin.h>
#endif

namespace d3d::cpu {
namespace {

constexpr int64_t kBytesWorthSharing = 1 << 20;
constexpr int64_t kBytesWorthStreaming = 4 << 20;  // they would not stay in the caches anyway

// Writes past the caches: a line that is written whole need not be read first, which saves a third of the
// traffic. Callers end with fence().
struct StreamBytes {
  void operator()(unsigned char* to, const unsigned char* from, int64_t bytes) const {
#if defined(D3D_X86)
    constexpr int64_t kLine = 64, kAhead = 512;
    const auto all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
    if (all % kLine == 0) {
      for (int64_t i = 0; i < bytes; i += kLine) {
        __builtin_prefetch(from + i + kAhead);
        __m128i part[4];
        for (int j = 0; j < 4; ++j) part[j] = _mm_load_si128(reinterpret_cast<const __m128i*>(from + i) + j);
        for (int j = 0; j < 4; ++j) _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + j, part[j]);
      }
      return;
    }
#endif
    memcpy(to, from, bytes);
  }

  static void fence() {
#if defined(D3D_X86)
    _mm_sfence();
#endif
  }
};

// act(team, buffer, request, copy) for all of them; `rows` is how many each moves at most.
template <class Act>
void for_buffers(const d3d_kv_buffer* buffers, int64_t num_buffers, int64_t num_requests, int64_t rows,
                 int num_threads, Act act) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < num_buffers; ++i) bytes += buffers[i].num_heads * buffers[i].head_bytes;
  bytes *= num_requests * rows;
  parallel_for(num_buffers, bytes >= kBytesWorthSharing ? num_threads : 1, [&](int64_t i) {
    SoloTeam team;
    const bool stream = bytes >= kBytesWorthStreaming;
    for (int64_t request = 0; request < num_requests; ++request)
      if (stream)
        act(team, buffers[i], request, StreamBytes{});
      else
        act(team, buffers[i], request, CopyBytes{});
    if (stream) StreamBytes::fence();
  });
}

bool all_have_data(const d3d_kv_buffer* buffers, int64_t num_buffers, int64_t num_pages) {
  for (int64_t i = 0; i < num_buffers; ++i)
    if (!buffers[i].data && num_pages > 0) return false;
  return true;
}

}  // namespace
}  // namespace d3d::cpu

int d3d_move_kv_cpu(const d3d_move_kv_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_move_kv_args& a = *args;
  if (const int error = check_move_kv(a)) return error;
  if (a.num_requests * a.num_moves == 0) return D3D_OK;
  if (!cpu::all_have_data(a.buffers, a.num_buffers, a.num_pages)) return D3D_ERROR_ARGUMENT;
  cpu::for_buffers(a.buffers, a.num_buffers, a.num_requests, a.num_moves, num_threads,
                   [&](SoloTeam& team, const d3d_kv_buffer& buffer, int64_t request, auto copy) {
                     move_kv_request(team, a, buffer, request, copy);
                   });
  return D3D_OK;
}

int d3d_rollback_kv_cpu(const d3d_rollback_kv_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_rollback_kv_args& a = *args;
  if (const int error = check_rollback_kv(a)) return error;
  for (int32_t c = 0; c < a.num_caches; ++c)
    if (!cpu::all_have_data(a.caches[c].buffers, a.caches[c].num_buffers, a.caches[c].num_pages))
      return D3D_ERROR_ARGUMENT;
  int64_t rows = 0;
  for (int64_t request = 0; request < a.num_requests; ++request) {
    rollback_pages_request(a, request);
    rows = larger<int64_t>(rows, a.num_accepted[request] + 1);
  }
  for (int32_t c = 0; c < a.num_caches; ++c) {
    const d3d_rollback_cache& cache = a.caches[c];
    cpu::for_buffers(cache.buffers, cache.num_buffers, a.num_requests, rows, num_threads,
                     [&](SoloTeam& team, const d3d_kv_buffer& buffer, int64_t request, auto copy) {
                       rollback_kv_request(team, a, cache, buffer, request, copy);
                     });
  }
  return D3D_OK;
}
