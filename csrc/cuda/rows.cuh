// A row of logits on a team: where it lies, whose it is, and its penalised copy where one is asked for.
#pragma once

#include "d3d/penalties.h"
#include "d3d/vocab.h"
#include "launch.cuh"

namespace d3d::gpu {

// A row of any dtype whose compute type is Real. Which one is a branch that all threads take together, a few
// instructions in a tile of eight tokens; so a kernel is compiled twice, not once a dtype and once more for
// penalised copies.
template <class Real>
struct AnyRow;

template <>
struct AnyRow<double> : Row<Float64> {
  D3D_INLINE AnyRow(const void* data, int64_t offset, int32_t, int32_t vocab, double temperature, int32_t excluded)
      : Row<Float64>{static_cast<const double*>(data) + offset, vocab, temperature, excluded} {}
};

template <>
struct AnyRow<float> : Row<Float32> {
  int32_t dtype;

  D3D_INLINE AnyRow(const void* data, int64_t offset, int32_t type, int32_t vocab, float temperature,
                    int32_t excluded)
      : Row<Float32>{nullptr, vocab, temperature, excluded}, dtype(type) {
    const int64_t bytes = offset * (type == D3D_F32 ? 4 : 2);
    logits = reinterpret_cast<const float*>(static_cast<const char*>(data) + bytes);
  }

  template <class Team>
  D3D_INLINE void read_raw(Team& team, int32_t first, Tile<float, Team>& s) const {
    if (dtype == D3D_BF16)
      read_as<BFloat16>(team, first, s);
    else if (dtype == D3D_F16)
      read_as<Float16>(team, first, s);
    else
      read_as<Float32>(team, first, s);
  }

  template <class Team>
  D3D_INLINE void read(Team& team, int32_t first, Tile<float, Team>& s) const {
    read_raw(team, first, s);
    refine(s);
  }

 private:
  template <class Logit, class Team>
  D3D_INLINE void read_as(Team& team, int32_t first, Tile<float, Team>& s) const {
    const auto* bits = reinterpret_cast<const typename Logit::Bits*>(logits);
    Row<Logit>{bits, vocab, 1, excluded}.read_raw(team, first, s);
  }
};

// A rank takes 16 bytes of bf16 at once.
template <class Real>
using RowTeam = GpuTeam<kThreads, sizeof(Real) == 4 ? 8 : 4>;

// Blocks that run at once on a multiprocessor. Scans want many, for the loads in flight; the registers that more
// than two would leave are too few for double, and for drafting, which computes more than it loads.
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

  explicit WithPenalties(const Args& a) : args(a), penalties(a.penalties ? *a.penalties : d3d_penalties{}) {}

  D3D_INLINE const d3d_penalties* get() const { return args.penalties ? &penalties : nullptr; }
};

template <class Real>
D3D_INLINE const SamplingParams& load_params(RowTeam<Real>& team, RowShared<Real>& shared, const d3d_sampling& s,
                                             int64_t request) {
  if (threadIdx.x == 0)
    shared.params = {s.temperature[request], s.top_k[request], s.top_p[request], s.min_p[request], s.seed[request]};
  team.sync_block();
  return shared.params;
}

// A row's request, or -1 if it has none.
D3D_INLINE int64_t request_of(const int32_t* request_ids, int64_t row, const d3d_sampling& sampling) {
  const int64_t request = request_ids ? request_ids[row] : row;
  return request >= 0 && request < sampling.num_requests ? request : -1;
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
  const Real temperature = params.greedy() ? Real(1) : static_cast<Real>(params.temperature);
  AnyRow<Real> row(task.logits, task.offset, task.dtype, task.vocab, temperature, task.excluded);
  if (!has_penalties(task.penalties, task.request)) return row;
  const int64_t width = row_width(task.vocab);
  auto* const copies = static_cast<Real*>(task.workspace);
  auto* const copy = copies + team.index() * width;
  auto* const marks = reinterpret_cast<uint32_t*>(copies + team.count() * width) + team.index() * width;
  for (int32_t v = team.rank(); v < task.vocab; v += team.size()) marks[v] = 0;  // by their owners
  row.temperature = 1;
  penalise(team, row, *task.penalties, task.request, task.path, copy, marks);
  return AnyRow<Real>(copy, 0, sizeof(Real) == 4 ? D3D_F32 : D3D_F64, task.vocab, temperature, -1);
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
