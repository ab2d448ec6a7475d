// The row kernels for one instruction set: D3D_TARGET and D3D_ROWS are set by the build.
//
// Nothing here may instantiate a template of the standard library: the linker keeps one copy of each for the
// whole program, and it might be the one that needs AVX-512.
#include "rows.h"

#include "d3d/chain.h"
#include "team.h"

D3D_NAMESPACE_BEGIN

static_assert(sizeof(Token<double>) <= cpu::RowScratch::kTokenBytes &&
              CpuTeam::kTile == cpu::RowScratch::kTile);
static_assert(CpuTeam::kHeapLimit == cpu::RowScratch::kLeastTokens && kDigits == cpu::RowScratch::kHistogram);

namespace {

using cpu::DraftOutput;
using cpu::RowScratch;
using cpu::RowTask;

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
  const SamplingParams params = params_of(*task.sampling, task.request);
  return with_row<Logit>(task, params, scratch, [&]<class AnyLogit>(const Row<AnyLogit>& row) {
    CpuTeam team;
    auto* tokens = static_cast<Token<typename Row<AnyLogit>::Real>*>(scratch.tokens);
    return sample_row(team, row, params, task.position, tokens, scratch.histogram);
  });
}

template <class Logit>
void draft_as(const RowTask& task, const RowScratch& scratch, const DraftOutput& out) {
  const SamplingParams params = params_of(*task.sampling, task.request);
  with_row<Logit>(task, params, scratch, [&]<class AnyLogit>(const Row<AnyLogit>& row) {
    CpuTeam team;
    auto* tokens = static_cast<Token<typename Row<AnyLogit>::Real>*>(scratch.tokens);
    draft_row(team, row, params, task.position, out.beta, out.k, tokens, scratch.histogram, out.token_ids,
              out.log_probs, out.scores);
  });
}

int32_t sample(const RowTask& task, const RowScratch& scratch) {
  return with_logit(task.dtype, [&]<class Logit>(Logit) { return sample_as<Logit>(task, scratch); });
}

void draft(const RowTask& task, const RowScratch& scratch, const DraftOutput& out) {
  with_logit(task.dtype, [&]<class Logit>(Logit) { draft_as<Logit>(task, scratch, out); });
}

void read_link(const d3d_verify_chain_args& args, int64_t request, int32_t draft,
               const ChainScratch& scratch) {
  CpuTeam team;
  Chain<CpuTeam> chain(team, args, request, scratch);
  if (!chain.coupled() && draft < chain.num_drafts()) chain.read_link(draft);
}

void verify_chain(const d3d_verify_chain_args& args, int64_t request, const ChainScratch& scratch,
                  bool links_read) {
  CpuTeam team;
  Chain<CpuTeam>(team, args, request, scratch).verify(links_read);
}

}  // namespace

D3D_NAMESPACE_END

namespace d3d::cpu {

#define D3D_TEXT_OF(name) #name
#define D3D_TEXT(name) D3D_TEXT_OF(name)
const RowKernels D3D_ROWS{D3D_TEXT(D3D_TARGET), D3D_TARGET::sample, D3D_TARGET::draft, D3D_TARGET::read_link,
                          D3D_TARGET::verify_chain};

}  // namespace d3d::cpu
