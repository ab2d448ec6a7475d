// One row by a team, as a CUDA kernel does it: penalised into scratch first where that is asked for.
#pragma once

#include "d3d/penalties.h"
#include "d3d/vocab.h"
#include "problems.h"
#include "thread_team.h"

D3D_NAMESPACE_BEGIN

// What a block keeps in shared memory and in its workspace. Garbage, but for the marks.
struct TeamScratch {
  std::vector<uint64_t> histogram;
  std::vector<double> penalised;
  std::vector<uint32_t> marks;
  std::vector<Token<double>> tokens;

  TeamScratch(int32_t vocab, int64_t candidates)
      : histogram(kDigits, 0x5555),
        penalised(static_cast<size_t>(vocab) + ThreadTeam::kTile, 1e9),
        marks(static_cast<size_t>(vocab), 0),
        tokens(static_cast<size_t>(larger<int64_t>(candidates, 2 * kPool))) {}
};

struct TeamRow {
  const void* logits;
  int32_t vocab;
  int32_t excluded;
  const d3d_sampling& sampling;
  const d3d_penalties* penalties;
  int64_t request;
  TokenList path;
};

// act(row, params), where row is the plain or the penalised one.
template <class Logit, class Act>
void with_team_row(ThreadTeam& team, const TeamRow& task, TeamScratch& scratch, Act act) {
  using Real = typename Row<Logit>::Real;
  using Penalised = std::conditional_t<sizeof(Real) == 4, Float32, Float64>;
  const d3d_sampling& s = task.sampling;
  const int64_t b = task.request;
  const SamplingParams params{s.temperature[b], s.top_k[b], s.top_p[b], s.min_p[b], s.seed[b]};
  const Real temperature = params.greedy() ? Real(1) : static_cast<Real>(params.temperature);
  Row<Logit> row{static_cast<const typename Logit::Bits*>(task.logits), task.vocab, 1, task.excluded};
  if (has_penalties(task.penalties, b)) {
    auto* copy = reinterpret_cast<Real*>(scratch.penalised.data());
    penalise(team, row, *task.penalties, b, task.path, copy, scratch.marks.data());
    act(Row<Penalised>{copy, task.vocab, temperature, -1}, params);
  } else {
    row.temperature = temperature;
    act(row, params);
  }
  team.sync();  // the scratch is free for the next row
}

template <class Logit>
int32_t sample_by_team(ThreadTeam& team, const TeamRow& task, int64_t position, TeamScratch& scratch) {
  int32_t token = -1;
  with_team_row<Logit>(team, task, scratch, [&](const auto& row, const SamplingParams& params) {
    using Real = typename std::decay_t<decltype(row)>::Real;
    auto* const tokens = reinterpret_cast<Token<Real>*>(scratch.tokens.data());
    token = sample_row(team, row, params, position, tokens, scratch.histogram.data());
  });
  return token;
}

// Draft position `unit` of all: row * L + slot; `ahead`: from positions[row] to its first.
template <class Logit>
void draft_by_team(ThreadTeam& team, const d3d_draft_args& a, int64_t unit, int64_t request, int64_t ahead,
                   TeamScratch& scratch) {
  const int64_t row = unit / a.num_positions, slot = unit % a.num_positions, first = unit * a.num_candidates;
  const auto* logits =
      static_cast<const typename Logit::Bits*>(a.logits) + row * a.row_stride + slot * a.position_stride;
  const TeamRow task{logits, a.vocab, a.mask_token_id, a.sampling, a.penalties, request, {nullptr, 0}};
  with_team_row<Logit>(team, task, scratch, [&](const auto& values, const SamplingParams& params) {
    using Real = typename std::decay_t<decltype(values)>::Real;
    draft_row(team, values, params, a.positions[row] + ahead + slot, a.beta, a.num_candidates,
              reinterpret_cast<Token<Real>*>(scratch.tokens.data()), scratch.histogram.data(),
              a.token_ids + first, a.log_probs + first, a.scores + first);
  });
}

D3D_NAMESPACE_END

namespace proof {

// What to run: PROGRAM rounds size ...
struct Plan {
  int rounds;
  std::vector<int> sizes;

  Plan(int count, char** words) : rounds(count > 1 ? std::atoi(words[1]) : 1) {
    for (int i = 2; i < count; ++i) sizes.push_back(std::atoi(words[i]));
    if (sizes.empty()) sizes = {2, 3, 8, 32};
  }
};

// body(team, request), one request after the other as a block does it that has several.
template <class Body>
void by_team(int size, int64_t requests, Body body) {
  d3d::run_team(size, [&](d3d::ThreadTeam& team) {
    for (int64_t request = 0; request < requests; ++request) {
      body(team, request);
      team.sync();  // scratch is free for the next request
    }
  });
}

// A body over a team must give what the CPU library gives, bit for bit. Each problem meets one size of team:
// threads that wait for each other are slow where processors are few.
template <class Args, class Library, class Body>
void compare(const Plan& plan, Problems<Args> make(uint64_t seed), Library library, Body body) {
  size_t count = 0;
  std::string name;
  for (int round = 0; round < plan.rounds; ++round) {
    Random random(static_cast<uint64_t>(round));
    for (auto& problem : make(random.bits())) {
      const int size = plan.sizes[static_cast<size_t>(random.below(static_cast<int64_t>(plan.sizes.size())))];
      const auto alone = [&](Args& args) { expect(library(&args, 1) == D3D_OK, problem.name + ": refused"); };
      const Bytes expected = problem.run(alone, 0x5A);
      const Bytes got = problem.run([&](Args& args) { body(size, args); }, 0xC3);
      expect(got == expected,
             problem.name + ": a team of " + std::to_string(size) + " differs from the library");
      name = problem.name;
      ++count;
    }
  }
  std::printf("%s: %zu problems agree\n", name.substr(0, name.find_last_of(' ')).c_str(), count);
}

}  // namespace proof
