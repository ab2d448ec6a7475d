// verify_chain: a team for each request.
//
// The rules read rows in several ways and at several places. Inlined, that would be a dozen copies of
// everything, so the passes over a row are functions here.
#define D3D_PASS __device__ __noinline__

#include "d3d/chain.h"
#include "rows.cuh"

namespace d3d::gpu {
namespace {

using ChainTeam = GpuTeam<kThreads, 8>;
constexpr int kChains = 2;  // at once on a multiprocessor

struct ChainShared {
  ChainTeam::Shared team;
  uint64_t histogram[kDigits];
  Token<double> tokens[2 * kPool];
};

// The workspace: links and reaches of every request, penalised rows of every team.
struct ChainWorkspace {
  ChainLink* links;  // [B, n]
  double* reaches;   // [B, n + 1]
  void* penalised;
};

struct ChainLaunch : WithPenalties<d3d_verify_chain_args> {
  ChainWorkspace workspace;
};

__global__ void __launch_bounds__(kThreads, kChains)
    verify_chain_kernel(const __grid_constant__ ChainLaunch launched) {
  D3D_SHARED(ChainShared, shared);
  ChainTeam team(shared.team);
  d3d_verify_chain_args a = launched.args;
  a.penalties = launched.get();
  const int64_t width = row_width(a.vocab), real_bytes = a.dtype == D3D_F64 ? 8 : 4;
  char* const copies = static_cast<char*>(launched.workspace.penalised);
  auto* const marks =
      reinterpret_cast<uint32_t*>(copies + team.count() * width * real_bytes) + team.index() * width;
  if (a.penalties)
    for (int32_t v = team.rank(); v < a.vocab; v += team.size()) marks[v] = 0;
  for (int64_t request = team.index(); request < a.num_requests; request += team.count()) {
    const ChainScratch scratch{launched.workspace.links + request * a.num_drafts,
                               launched.workspace.reaches + request * (int64_t{a.num_drafts} + 1),
                               team.common(shared.histogram),
                               team.common(shared.tokens),
                               copies + team.index() * width * real_bytes,
                               marks};
    team.sync();
    Chain<ChainTeam>(team, a, request, scratch).verify(false);
    team.sync();
  }
}

Grid chain_grid(const Device& device, const d3d_verify_chain_args& a) {
  return grid_for(device, kChains, a.num_requests, int64_t{kChains} * device.multiprocessors);
}

// Cuts the workspace up and returns how much of it is used.
int64_t lay_out(const Device& device, const d3d_verify_chain_args& a, ChainWorkspace& workspace) {
  const auto whole = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  char* const begin = static_cast<char*>(a.workspace);
  const int64_t links = whole(a.num_requests * a.num_drafts * int64_t{sizeof(ChainLink)});
  const int64_t reaches = whole(a.num_requests * (int64_t{a.num_drafts} + 1) * int64_t{sizeof(double)});
  workspace = {reinterpret_cast<ChainLink*>(begin), reinterpret_cast<double*>(begin + links),
               begin + links + reaches};
  return links + reaches + (a.penalties ? penalised_bytes(chain_grid(device, a).teams, a.vocab, a.dtype) : 0);
}

}  // namespace
}  // namespace d3d::gpu

int64_t d3d_verify_chain_workspace_bytes(const d3d_verify_chain_args* args) {
  d3d::gpu::Device device;
  d3d::gpu::ChainWorkspace workspace;
  if (!args || args->num_requests < 1 || !d3d::gpu::current_device(device)) return 0;
  return d3d::gpu::lay_out(device, *args, workspace);
}

int d3d_verify_chain_cuda(const d3d_verify_chain_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_verify_chain_args& a = *args;
  if (const int error = check_verify_chain(a)) return error;
  if (a.num_requests == 0) return D3D_OK;
  if (!a.workspace) return D3D_ERROR_ARGUMENT;
  gpu::Device device;
  if (!gpu::current_device(device)) return D3D_ERROR_LAUNCH;
  gpu::ChainLaunch launched{gpu::WithPenalties(a), {}};
  gpu::lay_out(device, a, launched.workspace);
  return gpu::launch(gpu::verify_chain_kernel, launched, gpu::chain_grid(device, a), gpu::kThreads, stream);
}
