// A row of logits whose dtype is known at run time only.
//
// On a CPU, a body is compiled for each dtype and chosen once a row. A GPU kernel inlines its bodies, so it
// is compiled for each compute type instead, float and double; which of the dtypes of float a tile is read as
// is a branch that all threads take together, a few instructions for eight tokens.
#pragma once

#include "d3d.h"
#include "row.h"

D3D_NAMESPACE_BEGIN

struct AnyFloat : Float32 {};  // fp32, bf16 or fp16

template <>
struct Row<AnyFloat> : Row<Float32> {
  int32_t dtype;

  template <class Team>
  D3D_INLINE void read_raw(Team& team, int32_t first, Tile<float, Team>& s) const {
    if (dtype == D3D_BF16)
      read_as<BFloat16>(team, first, s);
    else if (dtype == D3D_F16)
      read_as<Float16>(team, first, s);
    else
      read_as<Float32>(team, first, s);
  }

  template <class Team>
  D3D_INLINE void read(Team& team, int32_t first, Tile<float, Team>& s) const {
    read_raw(team, first, s);
    refine(s);
  }

 private:
  template <class Logit, class Team>
  D3D_INLINE void read_as(Team& team, int32_t first, Tile<float, Team>& s) const {
    const auto* bits = reinterpret_cast<const typename Logit::Bits*>(logits);
    Row<Logit>{bits, vocab, 1, excluded}.read_raw(team, first, s);
  }
};

// act(logit type) for a dtype that has been checked.
template <class Act>
D3D_INLINE auto with_logit(int32_t dtype, Act act) {
#if defined(__CUDACC__)
  return dtype == D3D_F64 ? act(Float64{}) : act(AnyFloat{});
#else
  switch (dtype) {
    case D3D_F32:
      return act(Float32{});
    case D3D_BF16:
      return act(BFloat16{});
    case D3D_F16:
      return act(Float16{});
    default:
      return act(Float64{});
  }
#endif
}

D3D_INLINE const void* element(const void* data, int32_t dtype, int64_t index) {
  const int64_t bytes = dtype == D3D_F64 ? 8 : dtype == D3D_F32 ? 4 : 2;
  return static_cast<const char*>(data) + index * bytes;
}

template <class Logit>
D3D_INLINE Row<Logit> make_row(const void* data, [[maybe_unused]] int32_t dtype, int32_t vocab,
                               double temperature, int32_t excluded) {
  using Real = typename Row<Logit>::Real;
  const auto* bits = static_cast<const typename Logit::Bits*>(data);
  if constexpr (std::is_same_v<Logit, AnyFloat>)
    return {{bits, vocab, static_cast<Real>(temperature), excluded}, dtype};
  else
    return {bits, vocab, static_cast<Real>(temperature), excluded};
}

D3D_NAMESPACE_END
