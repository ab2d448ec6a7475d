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
// block     (Sun et al. 2024, arXiv 2403.10444.) The ratio rule forgets by how much p exceeded q at the
//           drafts it accepted. Here a prefix keeps it, up to a whole:
//               a_0 = 1,   a_j+1 = min(1, a_j p_j(x_j) / q_j(x_j))           the reach of the first j drafts
//           and the longest prefix that passes its test, with probability h_j, is accepted:
//               h_n = a_n,   h_j = S_j / (S_j + 1 - a_j),   S_j = sum max(a_j p_j - q_j, 0)
//           then comes a token from the residual max(a_j p_j - q_j, 0), or from p_n behind all n.
//
//           This is right because P(accepted >= j | x_0 .. x_j-1) = a_j. So it is for j = n by definition;
//           and if it is for j + 1, then j + 1 or more are accepted, over x_j from q_j, with probability
//               sum q_j min(1, a_j p_j / q_j) = sum min(a_j p_j, q_j) = a_j - S_j,
//           and j or more with a_j - S_j + (1 - a_j + S_j) h_j = a_j. Behind the prefix stands token v with
//               min(a_j p_j(v), q_j(v)) + max(a_j p_j(v) - q_j(v), 0) = a_j p_j(v),
//           as a draft or as a residual. The expected length is the sum of the a_j, and a_j is never below
//           the ratio rule's product of min(1, p / q). At n = 1 the two rules are one. If q_j is a point
//           mass, S_j = a_j - a_j+1, and the two accept as much.
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
// a_j, h_j and the ratios are fp64 in a fixed order (density.h has the rest): nothing depends on the team.
//
// Passes over a row: its maximum, its filters, its mass: for p_j and q_j. The block rule adds one for S_j
// where 0 < a_j < 1, the residual one over both rows; the token behind all n is drawn as by `sample`.
#pragma once

#include "density.h"
#include "penalties.h"

namespace d3d {  // plain data, the same for every instruction set

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
    auto sink = best_sink<float>(team);
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
        const Row<Logit> plain = make_row<Logit>(p.data, args.dtype, args.vocab, 1, -1);
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
