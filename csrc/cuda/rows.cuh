// A row of logits on a team: where it lies, whose it is, and its penalised copy where one is asked for.
#pragma once

#include "d3d/any_row.h"
#include "d3d/penalties.h"
#include "d3d/vocab.h"
#include "launch.cuh"

namespace d3d::gpu {

template <class Real>
using AnyRow = Row<std::conditional_t<sizeof(Real) == 4, AnyFloat, Float64>>;

// A rank takes 16 bytes of bf16 at once.
template <class Real>
using RowTeam = GpuTeam<kThreads, sizeof(Real) == 4 ? 8 : 4>;

// Blocks that run at once on a multiprocessor. Scans want many, for the loads in flight; the registers that
// more than two would leave are too few for double, and for drafting, which computes more than it loads.
constexpr int kScans = 3;
constexpr int kDrafts = 2;
template <class Real, int kWanted>
constexpr int kAtOnce = sizeof(Real) == 4 ? kWanted : 2;

// Shared memory of a kernel that works on rows.
template <class Real>
struct RowShared {
  typename RowTeam<Real>::Shared team;
  SamplingParams params;  // here rather than in registers, which are short; every block has a copy
  uint64_t histogram[kDigits];
  Token<Real> tokens[2 * kPool];
};

// Penalised rows in the workspace: one a team, followed by a word a token for the marks of its history.
__host__ __device__ inline int64_t row_width(int32_t vocab) {
  constexpr int64_t kWidestTile = 8;
  return (vocab + kWidestTile - 1) / kWidestTile * kWidestTile;
}

inline int64_t penalised_bytes(int64_t teams, int32_t vocab, int32_t dtype) {
  return teams * row_width(vocab) * ((dtype == D3D_F64 ? 8 : 4) + static_cast<int64_t>(sizeof(uint32_t)));
}

// Arguments of a kernel: host pointers to penalties end here.
template <class Args>
struct WithPenalties {
  Args args;
  d3d_penalties penalties;
  bool any;

  explicit WithPenalties(const Args& a) : args(a), penalties{}, any(penalties_of(a) != nullptr) {
    if (any) penalties = *penalties_of(a);
  }

  D3D_INLINE const d3d_penalties* get() const { return any ? &penalties : nullptr; }

 private:
  static const d3d_penalties* penalties_of(const Args& a) {
    if constexpr (requires { a.penalties; })
      return a.penalties;
    else
      return a.draft.penalties;
  }
};

template <class Real>
D3D_INLINE const SamplingParams& load_params(RowTeam<Real>& team, RowShared<Real>& shared,
                                             const d3d_sampling& s, int64_t request) {
  if (threadIdx.x == 0)
    shared.params = {s.temperature[request], s.top_k[request], s.top_p[request], s.min_p[request],
                     s.seed[request]};
  team.sync_block();
  return shared.params;
}

// A row's request, or -1 if it has none.
D3D_INLINE int64_t request_of(const int32_t* request_ids, int64_t row, const d3d_sampling& sampling) {
  const int64_t request = request_ids ? request_ids[row] : row;
  return request >= 0 && request < sampling.num_requests ? request : -1;
}

inline Grid row_grid(const Device& device, int at_once, int64_t rows, const d3d_penalties* penalties) {
  return penalties ? grid_for(device, at_once, rows, int64_t{at_once} * device.multiprocessors)
                   : grid_for(device, at_once, rows);
}

struct RowTask {
  const void* logits;  // the whole tensor
  int64_t offset;      // of the row, in elements
  int32_t dtype;
  int32_t vocab;
  int32_t excluded;  // a token that is not offered, or -1
  const d3d_penalties* penalties;
  int64_t request;
  TokenList path;   // accepted tokens of a draft tree: part of the output so far
  void* workspace;  // with penalties only
};

// The row as it is, or its penalised copy.
template <class Real>
D3D_INLINE AnyRow<Real> open_row(RowTeam<Real>& team, const RowTask& task, const SamplingParams& params) {
  using Logit = std::conditional_t<sizeof(Real) == 4, AnyFloat, Float64>;
  const double temperature = params.greedy() ? 1.0 : static_cast<double>(params.temperature);
  const void* const from = element(task.logits, task.dtype, task.offset);
  if (!has_penalties(task.penalties, task.request))
    return make_row<Logit>(from, task.dtype, task.vocab, temperature, task.excluded);
  const int64_t width = row_width(task.vocab);
  auto* const copies = static_cast<Real*>(task.workspace);
  auto* const copy = copies + team.index() * width;
  auto* const marks = reinterpret_cast<uint32_t*>(copies + team.count() * width) + team.index() * width;
  for (int32_t v = team.rank(); v < task.vocab; v += team.size()) marks[v] = 0;  // by their owners
  penalise(team, make_row<Logit>(from, task.dtype, task.vocab, 1, task.excluded), *task.penalties,
           task.request, task.path, copy, marks);
  return make_row<Logit>(copy, sizeof(Real) == 4 ? D3D_F32 : D3D_F64, task.vocab, temperature, -1);
}

// y(t) of a row, or -1 if it has no finite logit.
template <class Real>
D3D_INLINE int32_t sample_task(RowTeam<Real>& team, RowShared<Real>& shared, const RowTask& task,
                               const d3d_sampling& sampling, int64_t position) {
  const SamplingParams& params = load_params<Real>(team, shared, sampling, task.request);
  const AnyRow<Real> row = open_row<Real>(team, task, params);
  return sample_row(team, row, params, position, team.common(shared.tokens), team.common(shared.histogram));
}

}  // namespace d3d::gpu
