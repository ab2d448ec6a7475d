// verify_chain: requests shared among threads, and drafts where every one of them is read anyway.
#include "d3d/chain.h"

#include <atomic>

#include "check.h"
#include "parallel.h"
#include "rows.h"
#include "scratch.h"

namespace d3d::cpu {
namespace {

constexpr int64_t kLogitsWorthSharing = 1 << 16;  // of one row a request; a walk reads several

int verify_chain(const d3d_verify_chain_args& a, int num_threads) {
  static thread_local Buffer link_memory, reach_memory;
  const int64_t n = a.num_drafts;
  auto* links = link_memory.reserve<ChainLink>(a.num_requests * n);
  auto* reach = reach_memory.reserve<double>(a.num_requests * (n + 1));
  if ((n > 0 && !links) || !reach) return D3D_ERROR_MEMORY;

  std::atomic<int> error{D3D_OK};
  const auto with_scratch = [&](int64_t request, auto act) {
    RowScratch rows;
    if (row_scratch(a.vocab, a.penalties, 0, rows))
      act(ChainScratch{links + request * n, reach + request * (n + 1), rows.histogram, rows.tokens,
                       rows.penalised, rows.marks});
    else
      error = D3D_ERROR_MEMORY;
  };

  const int threads = a.num_requests * a.vocab < kLogitsWorthSharing ? 1 : num_threads;
  // The block rule reads the rows of every draft: threads that requests do not fill can read them ahead.
  const bool read_ahead = a.rule == D3D_RULE_BLOCK && threads > a.num_requests && n > 1;
  if (read_ahead)
    parallel_for(a.num_requests * n, threads, [&](int64_t i) {
      with_scratch(i / n, [&](const ChainScratch& scratch) {
        row_kernels().read_link(a, i / n, static_cast<int32_t>(i % n), scratch);
      });
    });
  parallel_for(a.num_requests, threads, [&](int64_t request) {
    with_scratch(request, [&](const ChainScratch& scratch) {
      row_kernels().verify_chain(a, request, scratch, read_ahead);
    });
  });
  return error;
}

}  // namespace
}  // namespace d3d::cpu

int d3d_verify_chain_cpu(const d3d_verify_chain_args* args, int num_threads) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  if (const int error = check_verify_chain(*args)) return error;
  return args->num_requests > 0 ? cpu::verify_chain(*args, num_threads) : D3D_OK;
}
