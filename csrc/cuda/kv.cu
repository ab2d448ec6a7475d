// move_kv: all tensors of all layers in one launch, a block for each tensor and request.
//
// A thread owns columns of a row, up to 16 bytes wide, and takes the moves of its columns in list order. No move
// writes a row that a later one reads, so several rows may be read before the first of them is written, which is
// what hides the latency; no move's row is written before an earlier one has read it, because a batch is read as
// a whole first and batches follow each other.
#include "d3d/kv.h"
#include "launch.cuh"

namespace d3d::gpu {
namespace {

constexpr int kMoveThreads = 128;
constexpr int kBatch = 4;

// One request's moves of this thread's columns, each a Word wide.
template <class Word>
D3D_INLINE void move_columns(const d3d_move_kv_args& a, const d3d_kv_buffer& buffer, int64_t request) {
  const int64_t slots = a.num_pages * a.page_size;
  const int64_t* const sources = a.sources + request * a.num_moves;
  const int64_t* const targets = a.targets + request * a.num_moves;
  const int64_t count = smaller<int64_t>(a.counts[request], a.num_moves);
  const int64_t words = buffer.head_bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t column = threadIdx.x; column < buffer.num_heads * words; column += kMoveThreads) {
    const int64_t offset =
        column / words * buffer.head_stride + column % words * static_cast<int64_t>(sizeof(Word));
    for (int64_t first = 0; first < count; first += kBatch) {
      Word held[kBatch];
      unsigned char* to[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int64_t source = first + i < count ? sources[first + i] : -1;
        const int64_t target = first + i < count ? targets[first + i] : -1;
        const bool moves = source != target && source >= 0 && target >= 0 && source < slots && target < slots;
        to[i] = moves ? slot_row(buffer, a.page_size, target) + offset : nullptr;
        if (moves) held[i] = *reinterpret_cast<const Word*>(slot_row(buffer, a.page_size, source) + offset);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (to[i]) *reinterpret_cast<Word*>(to[i]) = held[i];
    }
  }
}

__global__ void __launch_bounds__(kMoveThreads) move_kv_kernel(const __grid_constant__ d3d_move_kv_args a) {
  const d3d_kv_buffer buffer = a.buffers[blockIdx.x % a.num_buffers];
  const int64_t request = blockIdx.x / a.num_buffers;
  // The widest word that every row starts at a multiple of.
  const uint64_t all = reinterpret_cast<uint64_t>(buffer.data) | static_cast<uint64_t>(buffer.page_stride) |
                       static_cast<uint64_t>(buffer.offset_stride) | static_cast<uint64_t>(buffer.head_bytes) |
                       static_cast<uint64_t>(buffer.num_heads > 1 ? buffer.head_stride : 0);
  if (all % 16 == 0)
    move_columns<int4>(a, buffer, request);
  else if (all % 4 == 0)
    move_columns<uint32_t>(a, buffer, request);
  else
    move_columns<unsigned char>(a, buffer, request);
}

}  // namespace
}  // namespace d3d::gpu

int d3d_move_kv_cuda(const d3d_move_kv_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_move_kv_args& a = *args;
  if (const int error = check_move_kv(a)) return error;
  const int64_t blocks = a.num_buffers * a.num_requests;
  if (blocks * a.num_moves == 0) return D3D_OK;
  if (blocks > INT32_MAX) return D3D_ERROR_ARGUMENT;
  return gpu::launch(gpu::move_kv_kernel, a, {blocks, 1}, gpu::kMoveThreads, stream);
}
