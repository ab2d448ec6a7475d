// What every entry point checks before it reads through a pointer.
#pragma once

#include "d3d.h"

namespace d3d {

inline int dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case D3D_F32:
      return 4;
    case D3D_BF16:
      return 2;
    case D3D_F16:
      return 2;
    case D3D_F64:
      return 8;
    default:
      return 0;
  }
}

template <class... Pointers>
bool all_set(const Pointers*... pointers) {
  return ((pointers != nullptr) && ...);
}

inline bool valid(const d3d_sampling& s) {
  return s.num_requests >= 0 &&
         (s.num_requests == 0 || all_set(s.temperature, s.top_k, s.top_p, s.min_p, s.seed));
}

inline bool valid(const d3d_penalties* p) {
  return !p || !p->bias.ids || p->bias_values;
}

inline int check_rows(const void* logits, int32_t dtype, int32_t vocab, int64_t rows,
                      const d3d_sampling& sampling, const d3d_penalties* penalties) {
  if (dtype_bytes(dtype) == 0) return D3D_ERROR_DTYPE;
  if (vocab < 1 || vocab >= D3D_MAX_VOCAB || rows < 0 || !valid(sampling) || !valid(penalties))
    return D3D_ERROR_ARGUMENT;
  return rows == 0 || logits ? D3D_OK : D3D_ERROR_ARGUMENT;
}

}  // namespace d3d
