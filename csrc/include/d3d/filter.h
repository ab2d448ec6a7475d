// Where top-k and top-p cut a row, without sorting it.
//
// Both filters keep a token while the weight of the strictly larger values stays below a target:
//
//     top-k   weight 1,   target k             (so ties of the k-th largest value stay in)
//     top-p   weight m_v, target p * sum m_v
//
// m_v = round(2^40 exp(s_v - max s)) is the token's probability mass in fixed point. Integers add up to the
// same total in any order, so the cut is the same bit for bit on every backend and team; fewer than 2^22 of
// them fit in 63 bits, and what rounding loses is below 2^-19 of the mass of the maximum alone.
//
// The cut is found digit by digit on keys that order as the values do (a float's bits, with negative numbers
// flipped): a histogram of weights over the top digit, from which the digit where the target is reached and
// the weight above it follow; then the same among the values with that digit.
#pragma once

#include "fp32.h"
#include "row.h"

D3D_NAMESPACE_BEGIN

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;  // words of the histogram that a cut needs, shared by the team

// exp(s - top) in fp32, whatever the compute type; 1 at the maximum.
template <class P>
D3D_INLINE auto relative_weight(P s, P top) {
  return exp_negative(convert<float>(s - top));
}

template <class F>
D3D_INLINE Rebind<F, uint64_t> fixed_point(F weight) {
#if defined(__CUDA_ARCH__)
  return __float2ull_rn(weight * 0x1p40f);
#else
  // Adding 2^52 leaves the integer, rounded to nearest even, in the low bits; this needs no AVX-512.
  const auto shifted = convert<double>(weight * 0x1p40f) + 0x1p52;
  return bits_as<Rebind<F, uint64_t>>(shifted) - bits_as<uint64_t>(0x1p52);
#endif
}

// Adds up fixed_point(relative_weight(s, top)) of whole packs in 32-bit lanes. A weight is split exactly, as
// round(2^17 w) and the rounded rest in units of 2^-40, at most 2^22; adding 3 * 2^22 leaves either integer
// in the low bits of its float. Lanes wrap around, and the true sums of kFlush packs fit.
template <class Real, int kLanes>
struct RowMass {
  using F = Pack<float, kLanes>;
  using Word = Pack<uint32_t, kLanes>;
  static constexpr int kFlush = 256;

  Word high{}, low{};
  uint64_t sum = 0;
  int packs = 0;

  D3D_INLINE void add(Pack<Real, kLanes> s, Real top) {
    const float rounder = 0x1.8p23f;
    const F x = larger(convert<float>(s - splat<Pack<Real, kLanes>>(top)), splat<F>(-87.0f));  // NaN: -87
    const F weight = exp_shifted<0>(x);
    const F whole = fused(weight, 0x1p17f, rounder);
    const F rest = fused(whole - rounder, splat<F>(-0x1p-17f), weight);
    high += bits_as<Word>(whole);
    low += bits_as<Word>(fused(rest, 0x1p40f, rounder));
    if (++packs == kFlush) flush();
  }

  D3D_INLINE uint64_t total() {
    flush();
    return sum;
  }

 private:
  D3D_INLINE void flush() {
    const uint32_t bias = static_cast<uint32_t>(packs) * bits_as<uint32_t>(0x1.8p23f);
    uint32_t highs[kLanes], lows[kLanes];
    store(highs, high - splat<Word>(bias));
    store(lows, low - splat<Word>(bias));
    for (int i = 0; i < kLanes; ++i)
      sum += (static_cast<uint64_t>(highs[i]) << 23) +
             static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(lows[i])));
    high = low = Word{};
    packs = 0;
  }
};

template <class Real>
using KeyOf = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;

// Keys order as values do; both zeros have the same.
template <class Real, class P>
D3D_INLINE Rebind<P, KeyOf<Real>> key_of(P x) {
  using Key = KeyOf<Real>;
  constexpr int kTop = 8 * sizeof(Key) - 1;
  const auto bits = bits_as<Rebind<P, std::make_signed_t<Key>>>(x + Real(0));
  const auto flips = bits_as<Rebind<P, Key>>(bits >> kTop) | Key(1) << kTop;  // all bits of a negative number
  return bits_as<Rebind<P, Key>>(bits) ^ flips;
}

D3D_INLINE float value_of(uint32_t key) {
  return bits_as<float>(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

D3D_INLINE double value_of(uint64_t key) {
  return bits_as<double>(key >> 63 ? key & 0x7FFFFFFFFFFFFFFFu : ~key);
}

// The next value above x; x finite.
template <class Real>
D3D_INLINE Real next_above(Real x) {
  return value_of(static_cast<KeyOf<Real>>(key_of<Real>(x) + 1));
}

struct Crossing {
  int32_t digit;   // where the target is reached, -1 if it is not
  uint64_t above;  // weight of the larger digits
};

// The digit at which the weights, added up from the largest digit on top of what is spent, reach the target.
template <class Team>
D3D_INLINE Crossing find_crossing(Team& team, const uint64_t* histogram, uint64_t spent, uint64_t target) {
  const int share = (kDigits + team.size() - 1) / team.size();
  const int high = larger(kDigits - team.rank() * share, 0), low = larger(high - share, 0);
  uint64_t mine = 0;
  for (int d = low; d < high; ++d) mine += histogram[d];
  uint64_t above = spent + team.scan(mine);
  Crossing found{-1, 0};
  if (above < target && above + mine >= target) {
    int d = high - 1;
    for (; above + histogram[d] < target; --d) above += histogram[d];
    found = {d, above};
  }
  return team.reduce(found, [](Crossing a, Crossing b) { return a.digit >= b.digit ? a : b; });
}

// The smallest value that stays in, among those from `floor` up; the others weigh nothing.
// weigh(s): weights of a pack; target(total): where to cut, >= 1.
template <class Team, class Row, class Real, class Weigh, class Target>
D3D_PASS Real find_cut(Team& team, const Row& row, Real floor, uint64_t* histogram, Weigh weigh,
                       Target target) {
  using Key = KeyOf<Real>;
  constexpr int kTile = Team::kTile, kLanes = Team::kLanes;
  Key prefix = 0, known = 0;  // the cut's leading bits, and which bits those are
  uint64_t above = 0, goal = 0;

  D3D_ROLLED
  for (int low = 8 * sizeof(Key); low > 0;) {
    const int width = smaller(kDigitBits, low);
    const Key digit_mask = (Key(1) << width) - 1;
    low -= width;
    for (int d = team.rank(); d < kDigits; d += team.size()) histogram[d] = 0;
    team.sync();

    uint64_t mine = 0;
    for (int32_t first = kTile * team.rank(); first < row.vocab; first += kTile * team.size()) {
      Tile<Real, Team> s;
      row.read(team, first, s);
      const auto count = [&](int, auto pack) D3D_INLINE_LAMBDA {
        const auto keys = key_of<Real>(pack);
        if (!any((((keys ^ prefix) & known) == 0) & (pack >= floor))) return;
        Real value[kLanes];
        Key key[kLanes];
        uint64_t weight[kLanes];
        store(value, pack);
        store(key, keys);
        store(weight, weigh(pack));
        for (int j = 0; j < kLanes; ++j) {
          if (((key[j] ^ prefix) & known) != 0 || !(value[j] >= floor)) continue;
          team.add(histogram[key[j] >> low & digit_mask], weight[j]);
          mine += weight[j];
        }
      };
      for_packs(count, s);
    }
    const uint64_t total = team.reduce(mine, [](uint64_t a, uint64_t b) { return a + b; });
    if (known == 0) {
      goal = target(total);
      if (total < goal) return floor;  // everything stays
    }
    const Crossing crossing = find_crossing(team, histogram, above, goal);
    above = crossing.above;
    prefix |= static_cast<Key>(crossing.digit) << low;
    known |= digit_mask << low;
    team.sync();
  }
  return value_of(prefix);
}

// The k-th largest value.
template <class Team, class Row>
D3D_INLINE typename Row::Real top_k_cut(Team& team, const Row& row, uint64_t* histogram, int32_t k) {
  using Real = typename Row::Real;
  const auto one = [](auto s) D3D_INLINE_LAMBDA { return splat<Rebind<decltype(s), uint64_t>>(1); };
  const auto target = [=](uint64_t) { return static_cast<uint64_t>(k); };
  return find_cut(team, row, Limits<Real>::kLowest, histogram, one, target);
}

// The mass that strictly larger values may reach: p of the total, and 1 at least so that the maximum stays.
D3D_INLINE uint64_t top_p_target(float top_p, uint64_t total) {
  const double share = static_cast<double>(top_p) * static_cast<double>(total);
  return share >= 1 ? static_cast<uint64_t>(share) : 1;
}

// The smallest value of the nucleus; `top` is the row's maximum.
template <class Team, class Row, class Real>
D3D_INLINE Real top_p_cut(Team& team, const Row& row, Real floor, uint64_t* histogram, float top_p,
                          Real top) {
  const auto mass = [=](auto s) D3D_INLINE_LAMBDA {
    return fixed_point(relative_weight(s, splat<decltype(s)>(top)));
  };
  const auto target = [=](uint64_t total) { return top_p_target(top_p, total); };
  return find_cut(team, row, floor, histogram, mass, target);
}

D3D_NAMESPACE_END
