// The row kernels for one instruction set: D3D_TARGET and D3D_ROWS are set by the build.
//
// Nothing here may instantiate a template of the standard library: the linker keeps one copy of each for the
// whole program, and it might be the one that needs AVX-512.
#include "rows.h"

#include "d3d/penalties.h"
#include "d3d/vocab.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

static_assert(sizeof(Token<double>) <= cpu::RowScratch::kTokenBytes &&
              CpuTeam::kTile == cpu::RowScratch::kTile);
static_assert(CpuTeam::kHeapLimit == cpu::RowScratch::kLeastTokens && kDigits == cpu::RowScratch::kHistogram);

namespace {

using cpu::DraftOutput;
using cpu::RowScratch;
using cpu::RowTask;

SamplingParams params_of(const RowTask& task) {
  const d3d_sampling& s = *task.sampling;
  const int64_t b = task.request;
  return {s.temperature[b], s.top_k[b], s.top_p[b], s.min_p[b], s.seed[b]};
}

template <class Logit>
Row<Logit> plain_row(const RowTask& task) {
  using Bits = typename Logit::Bits;
  return {static_cast<const Bits*>(task.logits), task.vocab, 1, task.excluded,
          static_cast<const Bits*>(task.next)};
}

// The row as it is, or its penalised copy: calls act with one of the two.
template <class Logit, class Act>
auto with_row(const RowTask& task, const SamplingParams& params, const RowScratch& scratch, Act act) {
  using Real = typename Row<Logit>::Real;
  const Real temperature = params.greedy() ? Real(1) : static_cast<Real>(params.temperature);
  Row<Logit> row = plain_row<Logit>(task);
  if (!has_penalties(task.penalties, task.request)) {
    row.temperature = temperature;
    return act(row);
  }
  CpuTeam team;
  auto* copy = static_cast<Real*>(scratch.penalised);
  penalise(team, row, *task.penalties, task.request, {task.path, task.path_length}, copy, scratch.marks);
  return act(Row<std::conditional_t<sizeof(Real) == 4, Float32, Float64>>{copy, task.vocab, temperature, -1});
}

template <class Logit>
int32_t sample_as(const RowTask& task, const RowScratch& scratch) {
  const SamplingParams params = params_of(task);
  return with_row<Logit>(task, params, scratch, [&]<class AnyLogit>(const Row<AnyLogit>& row) {
    CpuTeam team;
    auto* tokens = static_cast<Token<typename Row<AnyLogit>::Real>*>(scratch.tokens);
    return sample_row(team, row, params, task.position, tokens, scratch.histogram);
  });
}

template <class Logit>
void draft_as(const RowTask& task, const RowScratch& scratch, const DraftOutput& out) {
  const SamplingParams params = params_of(task);
  with_row<Logit>(task, params, scratch, [&]<class AnyLogit>(const Row<AnyLogit>& row) {
    CpuTeam team;
    auto* tokens = static_cast<Token<typename Row<AnyLogit>::Real>*>(scratch.tokens);
    draft_row(team, row, params, task.position, out.beta, out.k, tokens, scratch.histogram, out.token_ids,
              out.log_probs, out.scores);
  });
}

int32_t sample(const RowTask& task, const RowScratch& scratch) {
  switch (task.dtype) {
    case D3D_F32:
      return sample_as<Float32>(task, scratch);
    case D3D_BF16:
      return sample_as<BFloat16>(task, scratch);
    case D3D_F16:
      return sample_as<Float16>(task, scratch);
    default:
      return sample_as<Float64>(task, scratch);
  }
}

void draft(const RowTask& task, const RowScratch& scratch, const DraftOutput& out) {
  switch (task.dtype) {
    case D3D_F32:
      return draft_as<Float32>(task, scratch, out);
    case D3D_BF16:
      return draft_as<BFloat16>(task, scratch, out);
    case D3D_F16:
      return draft_as<Float16>(task, scratch, out);
    default:
      return draft_as<Float64>(task, scratch, out);
  }
}

}  // namespace

D3D_NAMESPACE_END

namespace d3d::cpu {

#define D3D_TEXT_OF(name) #name
#define D3D_TEXT(name) D3D_TEXT_OF(name)
const RowKernels D3D_ROWS{D3D_TEXT(D3D_TARGET), D3D_TARGET::sample, D3D_TARGET::draft};

}  // namespace d3d::cpu
