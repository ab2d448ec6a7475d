// Verifying one drafted continuation a request, under one of three rules.
//
// p_j and q_j are the distributions of target and drafter behind j drafts, x_j is the draft there, n of them.
//
// coupled   Accept x_j while it is the target's own seeded sample y; the first y that differs is the bonus.
//
// ratio     (Leviathan, Kalman, Matias 2023; Chen et al. 2023.) Accept x_j with probability
//           min(1, p_j(x_j) / q_j(x_j)), else draw from the residual max(p_j - q_j, 0) and stop. With x_j
//           drawn from q_j, token v comes out with probability
//               q_j(v) min(1, p_j(v) / q_j(v)) + R max(p_j(v) - q_j(v), 0) / R = p_j(v),
//           R = 1 - sum min(p_j, q_j) = sum max(p_j - q_j, 0) being the probability of a rejection.
//
// block     (Sun et al. 2024, arXiv 2403.10444.) The ratio rule forgets by how much p exceeded q at an
// accepted
//           draft. Here a prefix keeps it, up to a whole:
//               a_0 = 1,   a_j+1 = min(1, a_j p_j(x_j) / q_j(x_j))           a_j: reach of the first j drafts
//           and the longest prefix that passes its test is accepted, tested from the end:
//               h_n = a_n,   h_j = S_j / (S_j + 1 - a_j),   S_j = sum max(a_j p_j - q_j, 0)
//           then a token from the residual max(a_j p_j - q_j, 0), or from p_n behind all n. It is right
//           because P(accepted >= j | x_0 .. x_j-1) = a_j. For j = n by definition; and if it holds for j +
//           1, the probability that j + 1 or more pass is, over x_j from q_j,
//               sum q_j min(1, a_j p_j / q_j) = sum min(a_j p_j, q_j) = a_j - S_j,
//           so in all a_j - S_j + (1 - a_j + S_j) h_j = a_j. What comes out behind the prefix is v with
//           min(a_j p_j(v), q_j(v)) as an accepted draft and max(a_j p_j(v) - q_j(v), 0) as a residual: a_j
//           p_j(v) in all. a_j is never below the ratio rule's product of min(1, p / q): the expected length,
//           the sum of the a_j, is no smaller. At n = 1 the two rules are one; if q_j is a point mass, S_j =
//           a_j - a_j+1, and the two accept as much.
//
// Where a_j = 1, h_j is 1 for any S_j > 0; with S_j = 0 the test is never reached in exact arithmetic, and 1
// stays right. A token without mass in p is never accepted, one without mass in q is if p has it.
//
// Noise. The acceptance test of draft j takes u = (r + 1/2) 2^-32 of the word (first drafted position, j),
// the token behind the prefix Gumbel noise of its own position, each under a purpose of its own: the
// drafter's noise must be independent of both. Under the block rule a round's verdict depends on drafts
// *behind* the accepted ones too, so nothing a round has looked at may be looked at again: hence the key by
// the round's first position, and the drafter needs noise that is fresh in each round as well.
//
// Numbers. Weights are fp32, w_v = exp(s_v - max s) on what the filters leave; masses are fixed point
// (filter.h), so that sums are integers; a_j, h_j and the ratios are fp64 in a fixed order. The residual is
// drawn by Gumbel-max over log(a_j p_j - q_j), each difference rounded in fp32. Nothing depends on the team.
//
// Passes over a row: its maximum, its filters, its mass: for p_j and q_j. The block rule adds one for S_j
// where 0 < a_j < 1, the residual one over both rows; the token behind all n is drawn as by `sample`.
#pragma once

#include "d3d.h"
#include "penalties.h"
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

// What is known of draft j once its two rows have been read.
struct ChainLink {
  Density p, q;
  double p_of_draft, q_of_draft;
  int32_t flags;
};

// Memory of the team. n drafts.
struct ChainScratch {
  ChainLink* links;     // [n]
  double* reach;        // [n + 1]
  uint64_t* histogram;  // kDigits
  void* tokens;         // kHeapLimit
  void* penalised;      // with penalties: a row in the compute type, rounded up to a tile
  uint32_t* marks;      // with penalties: a word a token, all zero
};

}  // namespace d3d

D3D_NAMESPACE_BEGIN

constexpr double kMassOne = 0x1p40;
constexpr float kLeastDifference = 0x1p-126f;  // log_positive takes normal numbers

D3D_INLINE SamplingParams params_of(const d3d_sampling& s, int64_t request) {
  return {s.temperature[request], s.top_k[request], s.top_p[request], s.min_p[request], s.seed[request]};
}

// act(logit type), chosen at run time.
template <class Act>
D3D_INLINE auto with_logit(int32_t dtype, Act act) {
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
}

D3D_INLINE const void* element(const void* data, int32_t dtype, int64_t index) {
  return with_logit(dtype, [=](auto logit) D3D_INLINE_LAMBDA -> const void* {
    return static_cast<const typename decltype(logit)::Bits*>(data) + index;
  });
}

template <class Logit>
D3D_INLINE Row<Logit> row_of(const Density& d) {
  using Real = typename Row<Logit>::Real;
  return {static_cast<const typename Logit::Bits*>(d.data), d.vocab, static_cast<Real>(d.temperature), -1};
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
    row_of<decltype(logit)>(d).read_raw(team, first, s);
    if (d.source == Source::kProbabilities) {
      if (!(tile_maximum(s) > 0)) return false;
      make_comparable(s);
      for (int i = 0; i < s.kPacks; ++i)
        weights.pack[i] = convert<float>(smaller(larger(s.pack[i], splat<P>(0)), splat<P>(1)));
      return true;
    }
    const Survivors<Real> survivors{static_cast<Real>(d.floor), static_cast<Real>(d.top), d.min_p};
    const Real least = larger(survivors.floor, survivors.top - Real(29));  // e^-29 is 0 in fixed point
    if (!(tile_maximum(s) >= least)) return false;
    make_comparable(s);
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

  // Two products and a difference, so that equal rows leave exactly nothing. False if nothing is left.
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

// a_j+1 of a_j and the two probabilities of draft j.
D3D_INLINE double carried(double reach, double p, double q) {
  const double joint = reach * p;
  if (!(joint > 0)) return 0;
  return joint >= q ? 1 : joint / q;
}

// One request's slices of the arguments, and the rows it has opened.
template <class Team>
class Chain {
 public:
  D3D_INLINE Chain(Team& on, const d3d_verify_chain_args& a, int64_t of, const ChainScratch& memory)
      : team(on),
        args(a),
        request(of),
        scratch(memory),
        params(params_of(a.sampling, of)),
        drafts(a.draft_ids + of * a.draft_ids_stride) {
    while (length < args.num_drafts && drafts[length] >= 0 && drafts[length] < args.vocab) ++length;
  }

  // Whether the target's own sample decides, at this temperature or under this rule.
  D3D_INLINE bool coupled() const { return args.rule == D3D_RULE_COUPLED || params.greedy(); }

  D3D_INLINE int32_t num_drafts() const { return length; }

  // Finds out what there is to know of draft j.
  D3D_INLINE void read_link(int32_t j) {
    const auto token = static_cast<int32_t>(drafts[j]);
    ChainLink link{target(j), drafter(j), 0, 0, 0};
    const bool target_found = measure(team, link.p, params, scratch.tokens, scratch.histogram);
    const bool drafter_found = measure(team, link.q, params, scratch.tokens, scratch.histogram);
    link.p_of_draft = probability(team, link.p, token);
    link.q_of_draft = probability(team, link.q, token);
    link.flags = target_found && drafter_found ? 0 : D3D_STATUS_NO_FINITE_LOGIT;
    if (team.rank() == 0) scratch.links[j] = link;
    team.sync();
  }

  // The verdict; `measured`: the links have been read.
  D3D_INLINE void verify(bool measured) {
    if (coupled())
      follow_samples();
    else if (args.rule == D3D_RULE_RATIO)
      test_ratios(measured);
    else
      test_prefixes(measured);
    int32_t* nodes = args.accepted_nodes + request * (static_cast<int64_t>(args.num_drafts) + 1);
    for (int32_t i = team.rank(); i <= args.num_drafts; i += team.size())
      nodes[i] = i < accepted ? i + 1 : -1;
    if (team.rank() == 0) {
      args.num_accepted[request] = accepted;
      args.bonus_ids[request] = bonus;
      args.status[request] = flags;
    }
  }

 private:
  D3D_INLINE void follow_samples() {
    for (;; ++accepted) {
      bonus = sample(accepted, Purpose::kGumbel);
      if (accepted == length || drafts[accepted] != bonus) return;
    }
  }

  D3D_INLINE void test_ratios(bool measured) {
    while (accepted < length) {
      const ChainLink& link = visit(accepted, measured);
      if (!(uniform_of(accepted) < carried(1, link.p_of_draft, link.q_of_draft))) break;
      ++accepted;
    }
    bonus = draw(accepted, 1);
  }

  D3D_INLINE void test_prefixes(bool measured) {
    double* reach = scratch.reach;
    double here = 1;
    int32_t last = 0;  // nothing behind a reach of 0 can pass
    if (team.rank() == 0) reach[0] = here;
    for (; last < length && here > 0; ++last) {
      const ChainLink& link = visit(last, measured);
      here = carried(here, link.p_of_draft, link.q_of_draft);
      if (team.rank() == 0) reach[last + 1] = here;
    }
    team.sync();
    for (accepted = last; accepted > 0; --accepted)
      if (uniform_of(accepted - 1) < pass_chance(accepted)) break;
    bonus = draw(accepted, reach[accepted]);
  }

  // h_j
  D3D_INLINE double pass_chance(int32_t j) {
    const double reach = scratch.reach[j];
    if (j == length || reach == 0 || reach == 1) return reach;
    const ChainLink& link = scratch.links[j];
    const bool certain = link.q.source == Source::kPoint && link.q.point == drafts[j];
    const double rest = certain ? reach - scratch.reach[j + 1]
                                : residual_mass(team, Residual(opened(j, link.p), link.q, reach));
    return rest / (rest + (1 - reach));
  }

  D3D_INLINE const ChainLink& visit(int32_t j, bool measured) {
    if (!measured) read_link(j);
    flags |= scratch.links[j].flags;
    return scratch.links[j];
  }

  // The token behind j accepted drafts.
  D3D_INLINE int32_t draw(int32_t j, double reach) {
    if (j == length) return sample(j, Purpose::kResidual);
    const ChainLink& link = scratch.links[j];
    const Noise noise(params.seed, args.positions[request] + j, Purpose::kResidual);
    BestToken<float> sink;
    scan_row<true>(team, Residual(opened(j, link.p), link.q, reach), noise,
                   Survivors<float>{Limits<float>::kLowest, 0.0f, 0.0f}, sink);
    const int32_t token = team_best(team, sink.best).id;
    return token == INT32_MAX ? sample(j, Purpose::kResidual) : token;  // lost in rounding
  }

  // A token of row j by itself.
  D3D_INLINE int32_t sample(int32_t j, Purpose use) {
    const Density p = target(j);
    const int32_t token = with_logit(p.dtype, [&](auto logit) {
      auto* tokens = static_cast<Token<typename Row<decltype(logit)>::Real>*>(scratch.tokens);
      const auto row = row_of<decltype(logit)>(p);
      return sample_row(team, row, params, args.positions[request] + j, tokens, scratch.histogram, use);
    });
    if (token < 0) flags |= D3D_STATUS_NO_FINITE_LOGIT;
    return larger(token, 0);
  }

  D3D_INLINE double uniform_of(int32_t j) const {
    uint32_t words[4];
    draw_block(Noise(params.seed, args.positions[request], Purpose::kAcceptance),
               static_cast<uint32_t>(j) / 4, words);
    return (static_cast<double>(words[j % 4]) + 0.5) * 0x1p-32;
  }

  D3D_INLINE Density logits(const void* data, int32_t dtype) const {
    const double temperature = params.greedy() ? 1.0 : static_cast<double>(params.temperature);
    return {data, dtype, args.vocab, Source::kLogits, -1, temperature, 0, 0, 0, 0};
  }

  D3D_INLINE Density target(int32_t j) { return opened(j, logits(nullptr, args.dtype)); }

  D3D_INLINE Density drafter(int32_t j) const {
    if (args.draft_kind == D3D_DRAFT_CERTAIN)
      return point_density(args.vocab, static_cast<int32_t>(drafts[j]));
    const int64_t at = request * args.draft_request_stride + j * args.draft_row_stride;
    Density q = logits(element(args.draft_rows, args.draft_dtype, at), args.draft_dtype);
    if (args.draft_kind == D3D_DRAFT_PROBABILITIES) {
      q.source = Source::kProbabilities;
      q.temperature = 1;
    }
    return q;
  }

  // The density at row j of the target, to be read from there. Penalised rows are written out, and there is
  // room for one.
  D3D_INLINE Density opened(int32_t j, Density p) {
    if (p.source == Source::kPoint) return p;
    p.data = element(args.target_logits, args.dtype, request * args.request_stride + j * args.row_stride);
    if (!has_penalties(args.penalties, request)) return p;
    if (j != penalised)
      with_logit(args.dtype, [&](auto logit) {
        using Logit = decltype(logit);
        using Real = typename Row<Logit>::Real;
        const Row<Logit> plain{static_cast<const typename Logit::Bits*>(p.data), args.vocab, 1, -1};
        team.sync();  // the row that was there has been read
        penalise(team, plain, *args.penalties, request, TokenList{drafts, j},
                 static_cast<Real*>(scratch.penalised), scratch.marks);
      });
    penalised = j;
    p.data = scratch.penalised;
    p.dtype = args.dtype == D3D_F64 ? D3D_F64 : D3D_F32;
    return p;
  }

  Team& team;
  const d3d_verify_chain_args& args;
  int64_t request;
  const ChainScratch& scratch;
  SamplingParams params;
  const int64_t* drafts;
  int32_t length = 0;  // drafts up to the first id outside [0, V)
  int32_t accepted = 0;
  int32_t bonus = 0;
  int32_t flags = 0;
  int32_t penalised = -1;  // the row that scratch.penalised holds
};

D3D_NAMESPACE_END
