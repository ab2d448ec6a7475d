// One row as a distribution, and what one distribution has left over when another is taken from it.
//
// A row of logits, of probabilities, or a point mass is read as fp32 weights in [0, 1]. For logits they are
// w_v = exp(s_v - max s) on what the filters leave. P(v) = m_v / sum m, with m_v the weight in fixed point
// (filter.h): sums are integers, so that nothing depends on the team.
//
// The residual max(scale p - q, 0) is formed in fp32 from the weights, as two products and a difference, so
// that equal rows leave exactly nothing; it is drawn from by Gumbel-max over its logarithm, as a row of
// logits that scan_row reads.
#pragma once

#include "any_row.h"
#include "vocab.h"

namespace d3d {  // plain data, the same for every instruction set

enum class Source : int32_t { kLogits, kProbabilities, kPoint };

// One row as a distribution: P(v) = weight(v) / sum of the weights.
struct Density {
  const void* data;
  int32_t dtype;
  int32_t vocab;
  Source source;
  int32_t point;       // the only token of kPoint
  double temperature;  // what follows is for logits
  double floor, top;   // what survives: as in Survivors
  float min_p;
  uint64_t mass;  // sum of the fixed-point weights
};

}  // namespace d3d

D3D_NAMESPACE_BEGIN

constexpr double kMassOne = 0x1p40;
constexpr float kLeastDifference = 0x1p-126f;  // log_positive takes normal numbers

template <class Logit>
D3D_INLINE Row<Logit> row_of(const Density& d) {
  return make_row<Logit>(d.data, d.dtype, d.vocab, d.temperature, -1);
}

D3D_INLINE Density point_density(int32_t vocab, int32_t token) {
  return {nullptr, D3D_F32, vocab, Source::kPoint, token, 1, 0, 0, 0, static_cast<uint64_t>(kMassOne)};
}

// The weights of one tile; false if all of them are 0.
template <class Team>
D3D_PASS bool read_weights(Team& team, const Density& d, int32_t first, Tile<float, Team>& weights) {
  using F = Pack<float, Team::kLanes>;
  for (F& pack : weights.pack) pack = splat<F>(0.0f);
  if (d.source == Source::kPoint) {
    if (d.point < first || d.point >= first + Team::kTile) return false;
    float values[Team::kTile] = {};
    values[d.point - first] = 1;
    for (int i = 0; i < weights.kPacks; ++i) weights.pack[i] = load<F>(values + i * Team::kLanes);
    return true;
  }
  return with_logit(d.dtype, [&](auto logit) D3D_INLINE_LAMBDA {
    using Real = typename Row<decltype(logit)>::Real;
    using P = Pack<Real, Team::kLanes>;
    Tile<Real, Team> s;
    const auto row = row_of<decltype(logit)>(d);
    row.read_raw(team, first, s);
    if (d.source == Source::kProbabilities) {
      if (!(tile_maximum(s) > 0)) return false;
      make_comparable(s);
      for (int i = 0; i < s.kPacks; ++i)
        weights.pack[i] = convert<float>(smaller(larger(s.pack[i], splat<P>(0)), splat<P>(1)));
      return true;
    }
    const Survivors<Real> survivors{static_cast<Real>(d.floor), static_cast<Real>(d.top), d.min_p};
    const Real least = larger(survivors.floor, survivors.top - Real(29));  // e^-29 is 0 in fixed point
    if (!(row.refined_maximum(s) >= least)) return false;
    row.refine(s);
    const P top = splat<P>(survivors.top);
    for (int i = 0; i < s.kPacks; ++i)
      weights.pack[i] = survivors.keep(s.pack[i], relative_weight(s.pack[i], top));
    return true;
  });
}

// Reads a row for what Density holds; false if it offers nothing: then, as `sample` has it, token 0 is
// certain.
template <class Team>
D3D_PASS bool measure(Team& team, Density& d, const SamplingParams& params, void* tokens,
                      uint64_t* histogram) {
  if (d.source == Source::kPoint) return true;
  bool found = true;
  if (d.source == Source::kLogits)
    found = with_logit(d.dtype, [&](auto logit) {
      using Real = typename Row<decltype(logit)>::Real;
      const auto row = row_of<decltype(logit)>(d);
      const Real top = row_maximum(team, row);
      if (top == Limits<Real>::kNone) return false;
      const auto survivors =
          find_survivors(team, row, params, top, static_cast<Token<Real>*>(tokens), histogram);
      d.floor = survivors.floor;
      d.top = top;
      d.min_p = survivors.min_p;
      return true;
    });
  if (found) {
    Pack<uint64_t, Team::kLanes> sum{};
    Tile<float, Team> weights;
    for (int32_t first = Team::kTile * team.rank(); first < d.vocab; first += Team::kTile * team.size())
      if (read_weights(team, d, first, weights))
        for (const auto& pack : weights.pack) sum += fixed_point(pack);
    d.mass = team_sum(team, sum);
  }
  if (found && d.mass > 0) return true;
  d = point_density(d.vocab, 0);
  return false;
}

// P(token), the same on every rank.
template <class Team>
D3D_INLINE double probability(Team& team, const Density& d, int32_t token) {
  const int32_t first = token / Team::kTile * Team::kTile;
  Tile<float, Team> weights;
  if (!read_weights(team, d, first, weights)) return 0;
  float values[Team::kTile];
  weights.store(values);
  return static_cast<double>(fixed_point(values[token - first])) / static_cast<double>(d.mass);
}

// max(reach p_v - q_v, 0), and as a row of logits: s_v is its logarithm, which scan_row can draw from.
struct Residual {
  using Real = float;
  Density p, q;
  float p_scale, q_scale;
  int32_t vocab;

  D3D_INLINE Residual(const Density& target, const Density& drafter, double reach)
      : p(target),
        q(drafter),
        p_scale(static_cast<float>(reach * kMassOne / static_cast<double>(p.mass))),
        q_scale(static_cast<float>(kMassOne / static_cast<double>(q.mass))),
        vocab(p.vocab) {}

  // False if nothing is left.
  template <class Team>
  D3D_INLINE bool differences(Team& team, int32_t first, Tile<float, Team>& left) const {
    using F = Pack<float, Team::kLanes>;
    if (!read_weights(team, p, first, left)) return false;
    Tile<float, Team> taken;
    read_weights(team, q, first, taken);
    for (int i = 0; i < left.kPacks; ++i)
      left.pack[i] = larger(left.pack[i] * p_scale - taken.pack[i] * q_scale, splat<F>(0.0f));
    return tile_maximum(left) >= kLeastDifference;
  }

  template <class Team>
  D3D_INLINE void read_raw(Team& team, int32_t first, Tile<float, Team>& s) const {
    using F = Pack<float, Team::kLanes>;
    const F none = splat<F>(Limits<float>::kNone), least = splat<F>(kLeastDifference);
    const bool any = differences(team, first, s);
    for (F& pack : s.pack) pack = any ? choose(pack >= least, log_positive(larger(pack, least)), none) : none;
  }

  // Differences of weights are comparable as they are.
  template <class Team>
  D3D_INLINE static void refine(Tile<float, Team>&) {}

  template <class Team>
  D3D_INLINE static float refined_maximum(const Tile<float, Team>& s) {
    return tile_maximum(s);
  }
};

template <class Team>
D3D_PASS double residual_mass(Team& team, const Residual& residual) {
  Pack<uint64_t, Team::kLanes> sum{};
  Tile<float, Team> left;
  for (int32_t first = Team::kTile * team.rank(); first < residual.vocab; first += Team::kTile * team.size())
    if (residual.differences(team, first, left))
      for (const auto& pack : left.pack) sum += fixed_point(pack);
  return static_cast<double>(team_sum(team, sum)) / kMassOne;
}

D3D_NAMESPACE_END
