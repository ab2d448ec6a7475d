// Tokens, how they are ranked, and which of them survive the filters.
#pragma once

#include "filter.h"

D3D_NAMESPACE_BEGIN

// Survival as far as it is a bound on the value: at least `floor`, and min_p of the maximum's weight.
template <class Real>
struct Survivors {
  Real floor;
  Real top;     // the row's maximum; used with min_p only
  float min_p;  // 0: off

  D3D_INLINE bool keeps(Real s) const {
    return s >= floor && (!(min_p > 0) || s == top || relative_weight(s, top) >= min_p);
  }

  // The weights of a pack, 0 for what does not survive.
  template <class P, class F>
  D3D_INLINE F keep(P s, F weight) const {
    const auto likely = (weight >= min_p) | mask_for<float>(s == top);
    return choose(mask_for<float>(s >= floor) & likely, weight, splat<F>(0.0f));
  }
};

template <class Real>
struct Token {
  Real x;  // what tokens are ranked by
  Real s;
  int32_t id;

  D3D_INLINE bool beats(const Token& other) const { return x > other.x || (x == other.x && id < other.id); }
};

template <class Real>
D3D_INLINE Token<Real> no_token() {
  return {Limits<Real>::kNone, Limits<Real>::kNone, INT32_MAX};
}

D3D_NAMESPACE_END
