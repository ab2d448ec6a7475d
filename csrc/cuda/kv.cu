// move_kv and rollback_kv: all tensors of all layers in one launch, a block for each tensor and request.
//
// A thread owns columns of a row, up to 16 bytes wide, and takes the moves of its columns in list order. No
// move writes a row that a later one reads, so several rows may be read before the first of them is written,
// which is what hides the latency; no move's row is written before an earlier one has read it, because a
// batch is read as a whole first and batches follow each other.
#include "d3d/kv.h"
#include "launch.cuh"

namespace d3d::gpu {
namespace {

constexpr int kMoveThreads = 128;
constexpr int kBatch = 4;

// One request's moves of this thread's columns, each a Word wide.
template <class Word, class Moves>
D3D_INLINE void move_columns(const d3d_kv_buffer& buffer, Slots slots, const Moves& moves) {
  const int64_t words = buffer.head_bytes / static_cast<int64_t>(sizeof(Word));
  for (int64_t column = threadIdx.x; column < buffer.num_heads * words; column += kMoveThreads) {
    const int64_t offset =
        column / words * buffer.head_stride + column % words * static_cast<int64_t>(sizeof(Word));
    for (int64_t first = 0; first < moves.count; first += kBatch) {
      Word held[kBatch];
      unsigned char* to[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const Move move = first + i < moves.count ? moves[first + i] : Move{-1, -1};
        const bool moved = slots.moves(move);
        to[i] = moved ? slot_row(buffer, slots.page_size, move.target) + offset : nullptr;
        if (moved)
          held[i] = *reinterpret_cast<const Word*>(slot_row(buffer, slots.page_size, move.source) + offset);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (to[i]) *reinterpret_cast<Word*>(to[i]) = held[i];
    }
  }
}

// In the widest words that every row starts at a multiple of.
template <class Moves>
D3D_INLINE void move_rows_wide(const d3d_kv_buffer& buffer, Slots slots, const Moves& moves) {
  const uint64_t all = reinterpret_cast<uint64_t>(buffer.data) | static_cast<uint64_t>(buffer.page_stride) |
                       static_cast<uint64_t>(buffer.offset_stride) |
                       static_cast<uint64_t>(buffer.head_bytes) |
                       static_cast<uint64_t>(buffer.num_heads > 1 ? buffer.head_stride : 0);
  if (all % 16 == 0)
    move_columns<int4>(buffer, slots, moves);
  else if (all % 4 == 0)
    move_columns<uint32_t>(buffer, slots, moves);
  else
    move_columns<unsigned char>(buffer, slots, moves);
}

__global__ void __launch_bounds__(kMoveThreads) move_kv_kernel(const __grid_constant__ d3d_move_kv_args a) {
  const d3d_kv_buffer buffer = a.buffers[blockIdx.x % a.num_buffers];
  const int64_t request = blockIdx.x / a.num_buffers;
  move_rows_wide(buffer, {a.page_size, a.num_pages * a.page_size}, moves_of(a, request));
}

// The buffers of both caches one after the other; the first of a request's blocks tells which pages stay.
__global__ void __launch_bounds__(kMoveThreads)
    rollback_kv_kernel(const __grid_constant__ d3d_rollback_kv_args a) {
  const int64_t first = a.caches[0].num_buffers;
  const int64_t buffers = first + (a.num_caches > 1 ? a.caches[1].num_buffers : 0);
  const int64_t each = buffers > 0 ? buffers : 1;
  const int64_t index = blockIdx.x % each, request = blockIdx.x / each;
  if (index == 0 && threadIdx.x == 0) rollback_pages_request(a, request);
  if (index >= buffers) return;
  const d3d_rollback_cache& cache = a.caches[index < first ? 0 : 1];
  const d3d_kv_buffer buffer = cache.buffers[index < first ? index : index - first];
  const RollbackMoves moves = moves_of(a, cache, request);
  move_rows_wide(buffer, {cache.page_size, cache.num_pages * cache.page_size}, moves);
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

int d3d_rollback_kv_cuda(const d3d_rollback_kv_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_rollback_kv_args& a = *args;
  if (const int error = check_rollback_kv(a)) return error;
  int64_t buffers = 0;
  for (int32_t c = 0; c < a.num_caches; ++c) buffers += a.caches[c].num_buffers;
  const int64_t blocks = (buffers > 0 ? buffers : 1) * a.num_requests;
  if (blocks == 0) return D3D_OK;
  if (blocks > INT32_MAX) return D3D_ERROR_ARGUMENT;
  return gpu::launch(gpu::rollback_kv_kernel, a, {blocks, 1}, gpu::kMoveThreads, stream);
}
