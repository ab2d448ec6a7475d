// Reading one row of logits, a tile at a time.
//
// A tile is Team::kTile consecutive tokens in the compute type (double for f64 logits, float for the others,
// whose values it holds exactly). Reading makes every value comparable: NaN becomes -inf, +inf the largest
// finite value, and what lies past the vocabulary -inf. Such a value can tie or win, never poison a sum.
#pragma once

#include <limits>

#include "team.h"

D3D_NAMESPACE_BEGIN

// Storage types of logits: `Bits` is what memory holds, widen() makes the compute type of it.
struct Float32 {
  using Bits = float;
  template <class P>
  D3D_INLINE static P widen(P x) {
    return x;
  }
};

struct Float64 {
  using Bits = double;
  template <class P>
  D3D_INLINE static P widen(P x) {
    return x;
  }
};

struct BFloat16 {
  using Bits = uint16_t;
  template <class P>
  D3D_INLINE static Rebind<P, float> widen(P x) {
    return bits_as<Rebind<P, float>>(convert<uint32_t>(x) << 16);
  }
};

struct Float16 {
  using Bits = uint16_t;
  // Rebias the exponent; a subnormal is (1 + m) - 1, scaled.
  template <class P>
  D3D_INLINE static Rebind<P, float> widen(P x) {
    using W = Rebind<P, uint32_t>;
    using F = Rebind<P, float>;
    const W word = convert<uint32_t>(x);
    const W magnitude = (word & 0x7FFFu) << 13;
    const W normal = magnitude + (112u << 23);
    const W special = magnitude | 0x7F800000u;
    const W subnormal = bits_as<W>(bits_as<F>(magnitude + (113u << 23)) - 0x1p-14f);
    const W finite = choose(magnitude < (1u << 23), subnormal, normal);
    return bits_as<F>(choose(magnitude >= (31u << 23), special, finite) | (word & 0x8000u) << 16);
  }
};

template <class Real>
struct Limits {
  static constexpr Real kLowest = std::numeric_limits<Real>::lowest();
  static constexpr Real kLargest = std::numeric_limits<Real>::max();
  static constexpr Real kNone = -std::numeric_limits<Real>::infinity();  // can never be chosen
};

template <class Real, class P>
D3D_INLINE P comparable(P x) {
  return smaller(larger(x, splat<P>(Limits<Real>::kNone)), splat<P>(Limits<Real>::kLargest));  // NaN: -inf
}

// kTile values as packs.
template <class T, class Team>
struct Tile {
  using P = Pack<T, Team::kLanes>;
  static constexpr int kPacks = Team::kTile / Team::kLanes;
  P pack[kPacks];

  D3D_INLINE void store(T (&values)[Team::kTile]) const {
    for (int i = 0; i < kPacks; ++i) d3d::store(values + i * Team::kLanes, pack[i]);
  }
};

// act(i, pack i of each tile). On a GPU a loop that turns the registers round, because this is where scans get to
// rarely: copied out, it would take more registers than all the rest.
template <class Act, class Team, class T, class... More>
D3D_INLINE void for_packs(Act act, Tile<T, Team> first, Tile<More, Team>... more) {
  constexpr int kPacks = Tile<T, Team>::kPacks;
#if defined(__CUDA_ARCH__)
  const auto turn = [](auto& tile) {
    const auto head = tile.pack[0];
    for (int i = 0; i + 1 < kPacks; ++i) tile.pack[i] = tile.pack[i + 1];
    tile.pack[kPacks - 1] = head;
  };
  D3D_ROLLED
  for (int i = 0; i < kPacks; ++i) {
    act(i, first.pack[0], more.pack[0]...);
    turn(first);
    (turn(more), ...);
  }
#else
  for (int i = 0; i < kPacks; ++i) act(i, first.pack[i], more.pack[i]...);
#endif
}

template <class T, class Team>
D3D_INLINE void make_comparable(Tile<T, Team>& x) {
  for (auto& pack : x.pack) pack = comparable<T>(pack);
}

// The largest value of a tile, as if it had been made comparable.
template <class T, class Team>
D3D_INLINE T tile_maximum(const Tile<T, Team>& x) {
  auto most = larger(x.pack[0], splat<typename Tile<T, Team>::P>(Limits<T>::kNone));
  for (int i = 1; i < x.kPacks; ++i) most = larger(x.pack[i], most);  // NaN never replaces a value
  return smaller(fold_lanes(most, [](auto a, auto b) D3D_INLINE_LAMBDA { return larger(a, b); }),
                 Limits<T>::kLargest);
}

template <class T, class Team>
D3D_INLINE T tile_minimum(const Tile<T, Team>& x) {
  auto least = x.pack[0];
  for (int i = 1; i < x.kPacks; ++i) least = smaller(x.pack[i], least);
  return fold_lanes(least, [](auto a, auto b) D3D_INLINE_LAMBDA { return smaller(a, b); });
}

// s_v = l_v / T of one row. T = 1 for a greedy request, whose logits are compared as they are.
template <class Logit>
struct Row {
  using Bits = typename Logit::Bits;
  using Real = decltype(Logit::widen(Bits{}));

  const Bits* logits;
  int32_t vocab;
  Real temperature;
  int32_t excluded;            // a token that is not offered, or -1
  const Bits* next = nullptr;  // the row that this thread is likely to read after this one, or null

  // For passes that compute more than they read: the next row comes nearer in the meantime.
  template <class Team>
  D3D_INLINE void prefetch_next(Team&, [[maybe_unused]] int32_t first) const {
#if !defined(__CUDACC__)
    constexpr int kLine = 64;
    const char* const there = reinterpret_cast<const char*>(next + first);
    if (next)
      for (int i = 0; i < Team::kTile * static_cast<int>(sizeof(Bits)); i += kLine)
        __builtin_prefetch(there + i, 0, 1);
#endif
  }

  template <class Team>
  D3D_INLINE void read(Team& team, int32_t first, Tile<Real, Team>& s) const {
    read_raw(team, first, s);
    refine(s);
  }

  // The same before NaN, +inf and the temperature are seen to: for a scan that skips nearly all tiles by their
  // maximum.
  template <class Team>
  D3D_INLINE void read_raw(Team& team, int32_t first, Tile<Real, Team>& s) const {
    constexpr int kLanes = Team::kLanes, kTile = Team::kTile;
    using P = Pack<Bits, kLanes>;
    const Bits* from = logits + first;
    const bool whole = first + kTile <= vocab;
    if (kLanes > 1 && whole) {
      prefetch<kTile>(from);
      for (int i = 0; i < s.kPacks; ++i) s.pack[i] = Logit::widen(load<P>(from + i * kLanes));
    } else {
      if (first + kTile * (team.size() + 1) <= vocab) prefetch_to_l2(from + kTile * team.size());
      const Bytes<kTile> tile = copy<kTile>(from, vocab - first);
      for (int i = 0; i < s.kPacks; ++i) s.pack[i] = Logit::widen(load<P>(tile.bits + i * kLanes));
    }
    if (!whole || (excluded >= first && excluded < first + kTile)) mask(first, s);
  }

  template <class Team>
  D3D_INLINE void refine(Tile<Real, Team>& s) const {
    make_comparable(s);
    if (temperature == 1) return;
    for (auto& pack : s.pack) pack = comparable<Real>(pack / temperature);  // the quotient may overflow again
  }

  // The maximum of what refine() would make of the tile: division keeps the order.
  template <class Team>
  D3D_INLINE Real refined_maximum(const Tile<Real, Team>& raw) const {
    const Real most = tile_maximum(raw);
    return temperature == 1 ? most : comparable<Real>(most / temperature);
  }

 private:
  // A core's own prefetchers stop at the end of a page, so a row of hundreds of pages is read at 80 % of what
  // memory gives; asking one kilobyte ahead gets 90 %. Asking beyond the row, or memory, does no harm.
  template <int kTile>
  D3D_INLINE static void prefetch([[maybe_unused]] const Bits* from) {
#if !defined(__CUDACC__)
    constexpr int kAhead = 1024, kLine = 64;
    const char* const there = reinterpret_cast<const char*>(from) + kAhead;
    for (int i = 0; i < kTile * static_cast<int>(sizeof(Bits)); i += kLine) __builtin_prefetch(there + i);
#endif
  }

  // A GPU thread has one tile in flight, so the next one is on its way to the L2 cache meanwhile.
  D3D_INLINE static void prefetch_to_l2([[maybe_unused]] const Bits* from) {
#if defined(__CUDA_ARCH__)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
  }

  // A GPU thread's tile, in one or two wide loads where the address allows it.
  template <int kTile>
  struct alignas(kTile * sizeof(Bits) < 16 ? kTile * sizeof(Bits) : 16) Bytes {
    Bits bits[kTile];
  };

  template <int kTile>
  D3D_INLINE static Bytes<kTile> copy(const Bits* from, int32_t count) {
    using Tile = Bytes<kTile>;
    if (count >= kTile && reinterpret_cast<uintptr_t>(from) % alignof(Tile) == 0)
      return *reinterpret_cast<const Tile*>(from);
    Tile tile;
    for (int i = 0; i < kTile; ++i) tile.bits[i] = i < count ? from[i] : Bits{};
    return tile;
  }

  template <class Team>
  D3D_INLINE void mask(int32_t first, Tile<Real, Team>& s) const {
    Real values[Team::kTile];
    s.store(values);
    for (int i = 0; i < Team::kTile; ++i)
      if (first + i >= vocab || first + i == excluded) values[i] = Limits<Real>::kNone;
    for (int i = 0; i < s.kPacks; ++i) s.pack[i] = load<Pack<Real, Team::kLanes>>(values + i * Team::kLanes);
  }
};

D3D_NAMESPACE_END
