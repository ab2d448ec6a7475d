// Choosing tokens from one row: y(t) for the target, the K best candidates for the drafter.
//
// One scan serves all of it. It offers tokens, in ascending id, to a sink that keeps the best by
//
//     x_v = s_v                 greedy
//     x_v = s_v + G(seed, t, v) otherwise; the argmax is then an exact sample of softmax(s)   (Gumbel-max)
//
// and skips what cannot get in. With m the largest s of a tile and b what a token must beat, the tile is out
// if m + max G < b before a random word is drawn, and if its smallest word is too large (philox.h) before a
// logarithm is taken. Once b has settled, about one tile in a thousand gets further.
//
// top-p without a sort: a filter that keeps the tokens above some value commutes with an argmax as follows.
// Let v be the winner among all tokens. If v survives the filter it is the winner among the survivors, which
// are a subset. If it does not, nothing at or below s_v survives either, so the scan is repeated above s_v.
// Whether v survives takes the masses of the row and of what lies above s_v: one pass. The number of scans
// exceeds one by ln(1 / p) on average at most, since each failure shrinks the remaining mass uniformly.
#pragma once

#include "d3d.h"
#include "select.h"

D3D_NAMESPACE_BEGIN

constexpr float kGreedyBelow = 1e-5f;

struct SamplingParams {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  int64_t seed;

  D3D_INLINE bool greedy() const { return !(temperature >= kGreedyBelow); }
  D3D_INLINE bool filters_k(int32_t vocab) const { return top_k > 0 && top_k < vocab; }
  D3D_INLINE bool filters_p() const { return top_p < 1; }
  D3D_INLINE bool filters_min() const { return min_p > 0; }
};

D3D_INLINE SamplingParams params_of(const d3d_sampling& s, int64_t request) {
  return {s.temperature[request], s.top_k[request], s.top_p[request], s.min_p[request], s.seed[request]};
}

// A sink that keeps one token. Ids ascend within a rank, so equal values that come later lose.
template <class Real>
struct BestToken {
  Token<Real> best = no_token<Real>();

  D3D_INLINE Real bar() const { return best.x; }
  D3D_INLINE void offer(Token<Real> token) { best = token; }
};

// The sink of a team that has one of its own, whose ranks share their bar, or the plain one. Collective.
template <class Real, class Team>
D3D_INLINE auto best_sink(Team& team) {
  if constexpr (requires { team.template best_sink<Real>(); })
    return team.template best_sink<Real>();
  else
    return BestToken<Real>{};
}

// A sink that keeps K tokens in a heap whose head is the worst of them.
template <class Real>
struct BestTokens {
  Token<Real>* heap;
  int32_t capacity;
  int32_t count = 0;

  D3D_INLINE Real bar() const { return count < capacity ? Limits<Real>::kNone : heap[0].x; }

  D3D_INLINE void offer(Token<Real> token) {
    if (count < capacity) {
      int32_t at = count++;
      for (; at > 0 && heap[(at - 1) / 2].beats(token); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
      heap[at] = token;
    } else {
      sink_from_head(token, count);
    }
  }

  // Best first.
  D3D_INLINE void sort() {
    for (int32_t left = count - 1; left > 0; --left) {
      const Token<Real> worst = heap[0];
      sink_from_head(heap[left], left);
      heap[left] = worst;
    }
  }

  // Places `token` in the heap of `size` whose head is free.
  D3D_INLINE void sink_from_head(Token<Real> token, int32_t size) {
    int32_t at = 0;
    for (int32_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && heap[child].beats(heap[child + 1])) ++child;
      if (!token.beats(heap[child])) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = token;
  }
};

// Offers this rank's tokens to the sink; the row's maximum to every rank.
template <bool kNoisy, class Team, class Row, class Real, class Sink>
D3D_PASS Real scan_row(Team& team, const Row& row, const Noise& noise, const Survivors<Real>& survivors,
                       Sink& sink) {
  constexpr int kTile = Team::kTile, kLanes = Team::kLanes;
  Real top = Limits<Real>::kNone;
  for (int32_t first = kTile * team.rank(); first < row.vocab; first += kTile * team.size()) {
    Tile<Real, Team> s;
    row.read_raw(team, first, s);
    const Real tile_top = row.refined_maximum(s);
    top = larger(top, tile_top);
    if (!(tile_top >= survivors.floor)) continue;
    uint32_t limit = 0;
    Tile<uint32_t, Team> words;
    if constexpr (kNoisy) {
      if (tile_top + Real(kGumbelMax) < sink.bar()) continue;
      team.draw(noise, first, words);
      limit = word_limit(tile_top, sink.bar());
      if (tile_minimum(words) > limit) continue;
    } else {
      if (!(tile_top > sink.bar())) continue;
    }
    row.refine(s);
    const auto offer = [&](int i, auto pack, auto x) D3D_INLINE_LAMBDA {
      if (!any(x > sink.bar())) return;
      Real ranked[kLanes], values[kLanes];
      store(ranked, x);
      store(values, pack);
      for (int j = 0; j < kLanes; ++j)
        if (ranked[j] > sink.bar() && survivors.keeps(values[j]))
          sink.offer({ranked[j], values[j], first + i * kLanes + j});
    };
    if constexpr (kNoisy) {
      const auto perturb = [&](int i, auto pack, auto word) D3D_INLINE_LAMBDA {
        if (any(word <= limit)) offer(i, pack, pack + convert<Real>(gumbel(word)));
      };
      for_packs(perturb, s, words);
    } else {
      for_packs([&](int i, auto pack) D3D_INLINE_LAMBDA { offer(i, pack, pack); }, s);
    }
  }
  return team.reduce(top, [](Real a, Real b) { return larger(a, b); });
}

// The k-th largest value, or the lowest if there are fewer. Small k take one quick scan. tokens, histogram: as
// for sample_row.
template <class Team, class Row>
D3D_INLINE typename Row::Real kth_largest(Team& team, const Row& row, int32_t k,
                                          Token<typename Row::Real>* tokens, uint64_t* histogram) {
  using Real = typename Row::Real;
  const Survivors<Real> all{Limits<Real>::kLowest, Real(0), 0.0f};
  const Noise unused(0, 0, Purpose::kGumbel);
  if constexpr (Team::kHeapLimit > 0) {
    if (k <= Team::kHeapLimit) {
      BestTokens<Real> sink{tokens, k};
      scan_row<false>(team, row, unused, all, sink);
      return larger(sink.bar(), Limits<Real>::kLowest);
    }
  } else if (k <= kMostSelected) {
    TokenPool<Real> pool{tokens, histogram[0]};
    Real top;
    const int32_t found = select_best<false>(team, row, unused, all, k, pool, top);
    const Real last = found == k ? pool.now()[k - 1].x : Limits<Real>::kLowest;
    team.sync();  // the pool is free again
    return last;
  }
  return top_k_cut(team, row, histogram, k);
}

template <class Team, class Row>
D3D_PASS typename Row::Real row_maximum(Team& team, const Row& row) {
  using Real = typename Row::Real;
  Real top = Limits<Real>::kNone;
  for (int32_t first = Team::kTile * team.rank(); first < row.vocab; first += Team::kTile * team.size()) {
    Tile<Real, Team> s;
    row.read_raw(team, first, s);
    top = larger(top, row.refined_maximum(s));
  }
  return team.reduce(top, [](Real a, Real b) { return larger(a, b); });
}

// Calls act(s, weight) with this rank's packs. It may leave out packs that lie below the floor or weigh
// nothing.
template <class Team, class Row, class Real, class Act>
D3D_PASS void for_weights(Team& team, const Row& row, Real top, Real floor, Act act) {
  constexpr int kTile = Team::kTile;
  floor = larger(floor, top - Real(29));  // e^-29 is 0 in fixed point
  for (int32_t first = kTile * team.rank(); first < row.vocab; first += kTile * team.size()) {
    Tile<Real, Team> s;
    row.read(team, first, s);
    if (!(tile_maximum(s) >= floor)) continue;
    for (int i = 0; i < s.kPacks; ++i)
      act(s.pack[i], relative_weight(s.pack[i], splat<Pack<Real, Team::kLanes>>(top)));
  }
}

template <class Team, class P>
D3D_INLINE uint64_t team_sum(Team& team, P mine) {
  const auto add = [](auto a, auto b) D3D_INLINE_LAMBDA { return a + b; };
  return team.reduce(fold_lanes(mine, add), add);
}

// The mass of a whole row, read from its end: that is what a scan has just left in the cache. This is the
// part of drafting that computes, so memory is free to bring the next row.
template <class Team, class Row, class Real>
D3D_PASS uint64_t row_mass(Team& team, const Row& row, Real top) {
  constexpr int kTile = Team::kTile;
  RowMass<Real, Team::kLanes> mass;
  const int32_t step = kTile * team.size(), own = row.vocab - kTile * team.rank();
  for (int32_t first = row.vocab - own + (own - 1) / step * step; own > 0 && first >= 0; first -= step) {
    Tile<Real, Team> s;
    row.read(team, first, s);
    row.prefetch_next(team, first);
    for (int i = 0; i < s.kPacks; ++i) mass.add(s.pack[i], top);
  }
  return team.reduce(mass.total(), [](uint64_t a, uint64_t b) { return a + b; });
}

// The mass of what survives.
template <class Team, class Row, class Real>
D3D_INLINE uint64_t mass_of(Team& team, const Row& row, Real top, const Survivors<Real>& survivors) {
  if (survivors.floor == Limits<Real>::kLowest && !(survivors.min_p > 0)) return row_mass(team, row, top);
  Pack<uint64_t, Team::kLanes> kept{};
  for_weights(team, row, top, survivors.floor,
              [&](auto s, auto weight) D3D_INLINE_LAMBDA { kept += fixed_point(survivors.keep(s, weight)); });
  return team_sum(team, kept);
}

template <class Team, class Real>
D3D_INLINE Token<Real> team_best(Team& team, Token<Real> mine) {
  return team.reduce(mine, [](Token<Real> a, Token<Real> b) { return b.beats(a) ? b : a; });
}

// y(t) of one row, or -1 if it has no finite logit. Shared by the team: tokens, kHeapLimit places on a team of
// one, 2 * kPool on a larger one; histogram, kDigits words.
template <class Team, class Row>
D3D_PASS int32_t sample_row(Team& team, const Row& row, const SamplingParams& params, int64_t position,
                            Token<typename Row::Real>* tokens, uint64_t* histogram,
                            Purpose use = Purpose::kGumbel) {
  using Real = typename Row::Real;
  using Mass = Pack<uint64_t, Team::kLanes>;
  const Noise noise(params.seed, position, use);
  Survivors<Real> survivors{Limits<Real>::kLowest, Real(0), 0.0f};
  Token<Real> best;
  if (params.greedy()) {
    auto sink = best_sink<Real>(team);
    scan_row<false>(team, row, noise, survivors, sink);
    best = team_best(team, sink.best);
  } else {
    if (params.filters_k(row.vocab))
      survivors.floor = kth_largest(team, row, params.top_k, tokens, histogram);
    const Real lowest = survivors.floor;  // of what top-k left
    if (params.filters_min()) {
      survivors.top = row_maximum(team, row);
      survivors.min_p = params.min_p;
    }
    for (;;) {
      auto sink = best_sink<Real>(team);
      const Real top = scan_row<true>(team, row, noise, survivors, sink);
      best = team_best(team, sink.best);
      if (!params.filters_p() || best.s == top) break;
      Mass total{}, above{};
      for_weights(team, row, top, smaller(lowest, best.s), [&](auto s, auto weight) D3D_INLINE_LAMBDA {
        const auto none = splat<decltype(weight)>(0.0f);
        total += fixed_point(choose(mask_for<float>(s >= lowest), weight, none));
        above += fixed_point(choose(mask_for<float>(s > best.s), weight, none));
      });
      if (team_sum(team, above) < top_p_target(params.top_p, team_sum(team, total))) break;
      survivors.floor = next_above(best.s);
    }
  }
  return best.id == INT32_MAX ? -1 : best.id;
}

// What the filters leave of a row whose maximum is `top`; without top-p and min-p the maximum is not used.
template <class Team, class Row, class Real>
D3D_INLINE Survivors<Real> find_survivors(Team& team, const Row& row, const SamplingParams& params, Real top,
                                          Token<Real>* tokens, uint64_t* histogram) {
  Survivors<Real> survivors{Limits<Real>::kLowest, top, 0.0f};
  if (params.filters_k(row.vocab)) survivors.floor = kth_largest(team, row, params.top_k, tokens, histogram);
  if (params.filters_p())
    survivors.floor = top_p_cut(team, row, survivors.floor, histogram, params.top_p, top);
  if (params.filters_min()) survivors.min_p = params.min_p;
  return survivors;
}

// K candidates of one drafted position. tokens, histogram: as for sample_row, but K places at least on a team of
// one; a larger team takes K <= kMostSelected. Missing candidates are -1, -inf, -inf.
template <class Team, class Row>
D3D_PASS void draft_row(Team& team, const Row& row, const SamplingParams& params, int64_t position,
                        float beta, int32_t k, Token<typename Row::Real>* tokens, uint64_t* histogram,
                        int64_t* token_ids, float* log_probs, float* scores) {
  using Real = typename Row::Real;
  const Noise noise(params.seed, position, Purpose::kGumbel);
  Survivors<Real> survivors{Limits<Real>::kLowest, Real(0), 0.0f};
  if (!params.greedy()) {
    const bool weighs = params.filters_p() || params.filters_min();
    const Real maximum = weighs ? row_maximum(team, row) : Real(0);
    survivors = find_survivors(team, row, params, maximum, tokens, histogram);
  }

  Real top;
  int32_t found;
  const Token<Real>* best = tokens;  // best first
  if constexpr (Team::kHeapLimit > 0) {
    BestTokens<Real> sink{tokens, k};
    top = params.greedy() ? scan_row<false>(team, row, noise, survivors, sink)
                          : scan_row<true>(team, row, noise, survivors, sink);
    sink.sort();
    found = sink.count;
  } else {
    TokenPool<Real> pool{tokens, histogram[0]};
    found = params.greedy() ? select_best<false>(team, row, noise, survivors, k, pool, top)
                            : select_best<true>(team, row, noise, survivors, k, pool, top);
    best = pool.now();
  }

  const float mass = static_cast<float>(mass_of(team, row, top, survivors)) * 0x1p-40f;
  const float log_mass = log_positive(larger(mass, 0x1p-40f));

  for (int32_t i = team.rank(); i < k; i += team.size()) {
    const bool exists = i < found;
    token_ids[i] = exists ? best[i].id : -1;
    log_probs[i] = exists ? static_cast<float>(best[i].s - top) - log_mass : Limits<float>::kNone;
    scores[i] = params.greedy() || !exists ? log_probs[i] : static_cast<float>(best[i].x - best[0].x) / beta;
  }
  team.sync();
  if (params.greedy()) return;
  float sum = 0;
  for (int32_t i = 0; i < found; ++i) sum += exp_negative(scores[i]);
  team.sync();
  for (int32_t i = team.rank(); i < found; i += team.size()) scores[i] -= log_positive(sum);
}

D3D_NAMESPACE_END
