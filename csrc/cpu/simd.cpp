// Which row kernels this processor runs, and the scratch they work in.
#include <cstdlib>
#include <cstring>

#include "rows.h"
#include "scratch.h"

namespace d3d::cpu {
namespace {

const RowKernels& choose_kernels() {
#if defined(D3D_X86)
  const char* wanted = std::getenv("D3D_SIMD");  // a lower level, for tests that compare them
  const auto allowed = [&](const RowKernels& kernels) {
    return !wanted || !*wanted || std::strcmp(wanted, kernels.level) == 0;
  };
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && allowed(kRowsAvx512))
    return kRowsAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      (allowed(kRowsAvx2) || allowed(kRowsAvx512)))
    return kRowsAvx2;
#endif
  return kRowsBaseline;
}

}  // namespace

const RowKernels& row_kernels() {
  static const RowKernels& kernels = choose_kernels();
  return kernels;
}

bool row_scratch(int32_t vocab, bool penalties, int32_t k, RowScratch& scratch) {
  static thread_local Buffer histogram, penalised, marks, tokens;
  const size_t row =
      (static_cast<size_t>(vocab) + RowScratch::kTile - 1) / RowScratch::kTile * RowScratch::kTile;
  const size_t heap = k > RowScratch::kLeastTokens ? k : RowScratch::kLeastTokens;
  scratch.histogram = histogram.reserve<uint64_t>(RowScratch::kHistogram);
  scratch.tokens = tokens.reserve<char>(heap * RowScratch::kTokenBytes);
  scratch.penalised = penalties ? penalised.reserve<double>(row) : nullptr;
  scratch.marks = penalties ? marks.reserve<uint32_t>(row) : nullptr;
  return scratch.histogram && scratch.tokens && (!penalties || (scratch.penalised && scratch.marks));
}

}  // namespace d3d::cpu

const char* d3d_simd_level(void) {
  return d3d::cpu::row_kernels().level;
}
