// The k best tokens of a row, by a team of many ranks.
//
// A heap for every rank would not fit a thread block, so the team fills one pool. The row is taken in spans. A
// span's tokens are appended to the pool if they are no worse than `bar`, the k-th best of all spans before;
// then the best k of the pool stay, each at the place that the number of its betters gives it. Tokens have a
// total order (ties: the lowest id), so what stays does not depend on the order of arrival.
//
// A span is as long as the pool's free places should last, for a row in no special order: n tokens hold the
// k best of n + m with probability n / (n + m) each, so k m / n tokens of the next m pass the bar. If more do
// and the pool overflows, the k-th best of what did arrive bounds the k-th best of all; the span is read again
// under that bar. Each time at least kPool - k more tokens fail, so this ends, on rows in any order.
#pragma once

#include "philox.h"
#include "row.h"
#include "token.h"

D3D_NAMESPACE_BEGIN

constexpr int32_t kPool = 512;         // tokens that fit
constexpr int32_t kMostSelected = 256;  // k at most

// This rank's share of the tiles [begin, end), to act(token), and their maximum.
template <bool kNoisy, class Team, class Row, class Real, class Act>
D3D_INLINE Real for_better(Team& team, const Row& row, const Noise& noise, const Survivors<Real>& survivors,
                           int32_t begin, int32_t end, Token<Real> bar, Act act) {
  constexpr int kTile = Team::kTile;
  static_assert(Team::kLanes == 1);
  Real top = Limits<Real>::kNone;
  for (int32_t tile = begin + team.rank(); tile < end; tile += team.size()) {
    const int32_t first = tile * kTile;
    Tile<Real, Team> s;
    row.read_raw(team, first, s);
    const Real tile_top = row.refined_maximum(s);
    top = larger(top, tile_top);
    if (!(tile_top >= survivors.floor)) continue;
    uint32_t limit = 0xFFFFFFFFu;
    Tile<uint32_t, Team> words;
    if constexpr (kNoisy) {
      if (tile_top + Real(kGumbelMax) < bar.x) continue;
      team.draw(noise, first, words);
      limit = word_limit(tile_top, bar.x);
      if (tile_minimum(words) > limit) continue;
    } else {
      if (tile_top < bar.x) continue;
    }
    row.refine(s);
    const auto offer = [&](int i, Real value, Real x) {
      const Token<Real> token{x, value, first + i};
      if (x > Limits<Real>::kNone && !bar.beats(token) && survivors.keeps(value)) act(token);
    };
    if constexpr (kNoisy) {
      const auto perturb = [&](int i, Real value, uint32_t word) {
        if (word <= limit) offer(i, value, value + static_cast<Real>(gumbel(word)));
      };
      for_packs(perturb, s, words);
    } else {
      for_packs([&](int i, Real value) { offer(i, value, value); }, s);
    }
  }
  return top;
}

// The pool of a team: 2 * kPool tokens, of which one half is read while the other is written, and a counter.
template <class Real>
struct TokenPool {
  Token<Real>* tokens;
  uint64_t& count;
  int32_t half = 0;

  D3D_INLINE Token<Real>* now() const { return tokens + half * kPool; }
  D3D_INLINE Token<Real>* then() const { return tokens + (kPool - half * kPool); }
};

// The k best survivors to pool.now(), best first; returns how many there are. top: the row's maximum.
template <bool kNoisy, class Team, class Row, class Real>
D3D_PASS int32_t select_best(Team& team, const Row& row, const Noise& noise, const Survivors<Real>& survivors,
                             int32_t k, TokenPool<Real>& pool, Real& top) {
  const int32_t tiles = (row.vocab - 1) / Team::kTile + 1;
  Token<Real> bar = no_token<Real>();
  int32_t kept = 0;
  top = Limits<Real>::kNone;
  D3D_ROLLED
  for (int32_t begin = 0, end; begin < tiles; begin = end) {
    const int64_t span = begin == 0 ? kPool / Team::kTile : int64_t{begin} * (kPool - k) / (2 * k) + 1;
    end = static_cast<int32_t>(smaller<int64_t>(begin + span, tiles));
    for (;;) {
      if (team.rank() == 0) pool.count = static_cast<uint64_t>(kept);
      team.sync();
      const Real span_top = for_better<kNoisy>(team, row, noise, survivors, begin, end, bar, [&](Token<Real> token) {
        const uint64_t place = team.claim(pool.count);
        if (place < kPool) pool.now()[place] = token;
      });
      top = larger(top, span_top);
      team.sync();
      const uint64_t found = pool.count;
      const int32_t count = static_cast<int32_t>(smaller<uint64_t>(found, kPool));
      for (int32_t i = team.rank(); i < count; i += team.size()) {
        const Token<Real> token = pool.now()[i];
        int32_t betters = 0;
        for (int32_t j = 0; j < count; ++j) betters += pool.now()[j].beats(token);
        if (betters < k) pool.then()[betters] = token;
      }
      team.sync();
      if (found >= static_cast<uint64_t>(k)) bar = pool.then()[k - 1];
      if (found > kPool) continue;
      kept = smaller(count, k);
      pool.half = 1 - pool.half;
      break;
    }
  }
  top = team.reduce(top, [](Real a, Real b) { return larger(a, b); });
  return kept;
}

D3D_NAMESPACE_END
