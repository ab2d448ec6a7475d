// Kernels for one row, compiled once per instruction set (rows.cpp) and chosen once at run time (simd.cpp).
#pragma once

#include <cstdint>

#include "d3d.h"

namespace d3d {
struct ChainScratch;
}

namespace d3d::cpu {

// One row and whose it is. The request id has been checked.
struct RowTask {
  const void* logits;
  int32_t dtype;
  int32_t vocab;
  int32_t excluded;  // a token that is not offered, or -1
  const d3d_sampling* sampling;
  const d3d_penalties* penalties;
  int64_t request;
  int64_t position;
  const int64_t* path;  // accepted tokens of a draft tree: part of the output so far
  int64_t path_length;
  const void* next = nullptr;  // logits that the thread is likely to read next
};

// Memory of the calling thread that the kernels need.
struct RowScratch {
  uint64_t* histogram;  // 2048 words
  void* penalised;      // a row in the compute type, rounded up to a tile; with penalties only
  uint32_t* marks;      // a word a token, all zero; with penalties only
  void* tokens;         // the heap of candidates

  // What the kernels count on (rows.cpp).
  static constexpr int32_t kTokenBytes = 24;
  static constexpr int32_t kLeastTokens = 256;
  static constexpr int32_t kTile = 64;
  static constexpr int32_t kHistogram = 2048;
};

struct DraftOutput {
  int32_t k;
  float beta;
  int64_t* token_ids;
  float* log_probs;
  float* scores;
};

struct RowKernels {
  const char* level;
  int32_t (*sample)(const RowTask&, const RowScratch&);  // the token, -1: no finite logit
  void (*draft)(const RowTask&, const RowScratch&, const DraftOutput&);
  // Reads what there is to know of one draft, or does nothing if the chain does not get there.
  void (*read_link)(const d3d_verify_chain_args&, int64_t request, int32_t draft, const ChainScratch&);
  void (*verify_chain)(const d3d_verify_chain_args&, int64_t request, const ChainScratch&, bool links_read);
};

extern const RowKernels kRowsBaseline;
#if defined(D3D_X86)
extern const RowKernels kRowsAvx2;
extern const RowKernels kRowsAvx512;
#endif

const RowKernels& row_kernels();  // the best that this processor runs

// The candidates of position i % L of row i / L; `first` is added to the row's own position. False: no
// memory.
bool draft_position(const d3d_draft_args& args, int64_t i, int64_t first);

// Scratch of the calling thread for rows of `vocab` and heaps of k tokens; false: no memory.
bool row_scratch(int32_t vocab, bool penalties, int32_t k, RowScratch& scratch);

}  // namespace d3d::cpu
