// sample on CUDA: a thread block for each row, running the body that the CPU runs. Rows with penalties are
// first written out, penalised, to the workspace; a second launch samples from there.
#include <cuda_runtime.h>

#include "cpu/check.h"
#include "d3d/penalties.h"
#include "d3d/vocab.h"
#include "team.cuh"

namespace d3d {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMaxBlocks = 1 << 30;  // blocks stride over rows beyond that

using Team = BlockTeam<kThreads>;

thread_local cudaError_t last_error = cudaSuccess;

// Values of a row in the workspace: whole tiles.
__host__ __device__ int64_t row_width(int32_t vocab) {
  return (static_cast<int64_t>(vocab) + Team::kTile - 1) / Team::kTile * Team::kTile;
}

int real_bytes(int32_t dtype) {
  return dtype == D3D_F64 ? 8 : 4;
}

// A row's request, or -1 if it has none.
__device__ int64_t request_of(const d3d_sample_args& a, int64_t row) {
  const int64_t request = a.request_ids ? a.request_ids[row] : row;
  return request >= 0 && request < a.sampling.num_requests ? request : -1;
}

template <class Logit>
__device__ Row<Logit> row_of(const d3d_sample_args& a, int64_t row) {
  return {static_cast<const typename Logit::Bits*>(a.logits) + row * a.row_stride, a.vocab, 1, -1};
}

template <class Logit>
__global__ void __launch_bounds__(kThreads, 1) sample_kernel(d3d_sample_args a) {
  using Real = typename Row<Logit>::Real;
  __shared__ uint64_t histogram[kDigits];
  __shared__ Team::Slots slots;
  Team team{slots};
  const d3d_sampling& s = a.sampling;
  for (int64_t row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
    const int64_t request = request_of(a, row);
    int32_t token = -1;
    if (request >= 0) {
      const SamplingParams params{s.temperature[request], s.top_k[request], s.top_p[request],
                                  s.min_p[request], s.seed[request]};
      Row<Logit> logits = row_of<Logit>(a, row);
      if (!params.greedy()) logits.temperature = static_cast<Real>(params.temperature);
      Token<Real>* const no_heap = nullptr;
      token = sample_row(team, logits, params, a.positions[row], no_heap, histogram);
    }
    if (team.rank() == 0) {
      a.token_ids[row] = token < 0 ? 0 : token;
      a.status[row] = token < 0 ? D3D_STATUS_NO_FINITE_LOGIT : 0;
    }
    team.sync();  // the shared memory is free for the next row
  }
}

// Workspace: the penalised rows, then one word a token for the marks of their history.
template <class Logit>
__global__ void __launch_bounds__(kThreads, 1) penalise_kernel(d3d_sample_args a, d3d_penalties penalties) {
  using Real = typename Row<Logit>::Real;
  __shared__ Team::Slots slots;
  Team team{slots};
  const int64_t width = row_width(a.vocab);
  auto* rows = static_cast<Real*>(a.workspace);
  auto* all_marks = reinterpret_cast<uint32_t*>(rows + a.num_rows * width);
  for (int64_t row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
    const int64_t request = request_of(a, row);
    if (request < 0) continue;
    uint32_t* marks = all_marks + row * width;
    for (int32_t v = team.rank(); v < a.vocab; v += team.size()) marks[v] = 0;  // by their owners
    penalise(team, row_of<Logit>(a, row), penalties, request, {nullptr, 0}, rows + row * width, marks);
  }
}

unsigned blocks_for(const d3d_sample_args& a) {
  return static_cast<unsigned>(a.num_rows < kMaxBlocks ? a.num_rows : kMaxBlocks);
}

template <class Logit>
void launch(const d3d_sample_args& a, cudaStream_t stream) {
  using Real = decltype(Logit::widen(typename Logit::Bits{}));
  using Penalised = std::conditional_t<sizeof(Real) == 4, Float32, Float64>;
  if (a.penalties) {
    penalise_kernel<Logit><<<blocks_for(a), kThreads, 0, stream>>>(a, *a.penalties);
    d3d_sample_args penalised = a;
    penalised.logits = a.workspace;
    penalised.row_stride = row_width(a.vocab);
    sample_kernel<Penalised><<<blocks_for(a), kThreads, 0, stream>>>(penalised);
  } else {
    sample_kernel<Logit><<<blocks_for(a), kThreads, 0, stream>>>(a);
  }
}

}  // namespace
}  // namespace d3d

int64_t d3d_sample_workspace_bytes(const d3d_sample_args* args) {
  using namespace d3d;
  if (!args || !args->penalties) return 0;
  return args->num_rows * row_width(args->vocab) *
         (real_bytes(args->dtype) + static_cast<int64_t>(sizeof(uint32_t)));
}

int d3d_sample_cuda(const d3d_sample_args* args, void* stream) {
  using namespace d3d;
  if (!args) return D3D_ERROR_ARGUMENT;
  const d3d_sample_args& a = *args;
  if (const int error = check_rows(a.logits, a.dtype, a.vocab, a.num_rows, a.sampling, a.penalties))
    return error;
  if (a.num_rows == 0) return D3D_OK;
  if (!all_set(a.positions, a.token_ids, a.status) || (a.penalties && !a.workspace))
    return D3D_ERROR_ARGUMENT;
  const auto queue = static_cast<cudaStream_t>(stream);
  switch (a.dtype) {
    case D3D_F32:
      launch<Float32>(a, queue);
      break;
    case D3D_BF16:
      launch<BFloat16>(a, queue);
      break;
    case D3D_F16:
      launch<Float16>(a, queue);
      break;
    default:
      launch<Float64>(a, queue);
  }
  last_error = cudaGetLastError();
  return last_error == cudaSuccess ? D3D_OK : D3D_ERROR_LAUNCH;
}

const char* d3d_cuda_error_string(void) {
  return cudaGetErrorString(d3d::last_error);
}
