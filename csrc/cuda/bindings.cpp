// d3d_kernels._cuda: the CUDA library. The last argument of each op is the address of a stream.
#include "bindings.h"

#include <string>

namespace d3d::bindings {
namespace {

// The caller holds the interpreter lock: queueing takes less time than letting go of it.
template <class Args>
void finish(Arguments& a, int (*function)(const Args*, void*), const Args& args) {
  void* const stream = a.pointer<void>();
  a.finish();
  const int error = function(&args, stream);
  if (error == D3D_ERROR_LAUNCH)
    throw std::runtime_error(std::string(d3d_error_string(error)) + ": " + d3d_cuda_error_string());
  if (error != D3D_OK) throw std::invalid_argument(d3d_error_string(error));
}

void sample(Arguments a) {
  d3d_sample_args args = sample_args(a);
  args.workspace = a.pointer<void>();
  finish(a, d3d_sample_cuda, args);
}

void draft_candidates(Arguments a) {
  d3d_draft_args args = draft_args(a);
  args.workspace = a.pointer<void>();
  finish(a, d3d_draft_candidates_cuda, args);
}

void build_tree(Arguments a) {
  const d3d_build_tree_args args = build_tree_args(a);
  finish(a, d3d_build_tree_cuda, args);
}

void draft_tree(Arguments a) {
  const d3d_draft_tree_args args{draft_args(a), build_tree_args(a), a.pointer<void>(), a.pointer<uint32_t>()};
  finish(a, d3d_draft_tree_cuda, args);
}

void verify_tree(Arguments a) {
  d3d_verify_tree_args args = verify_tree_args(a);
  args.workspace = a.pointer<void>();
  args.arrivals = a.pointer<uint32_t>();
  finish(a, d3d_verify_tree_cuda, args);
}

void verify_chain(Arguments a) {
  d3d_verify_chain_args args = verify_chain_args(a);
  args.workspace = a.pointer<void>();
  finish(a, d3d_verify_chain_cuda, args);
}

void select_outcome(Arguments a) {
  const d3d_select_outcome_args args = select_outcome_args(a);
  finish(a, d3d_select_outcome_cuda, args);
}

void frontier(Arguments a) {
  const d3d_frontier_args args = frontier_args(a);
  finish(a, d3d_frontier_cuda, args);
}

void dense_mask(Arguments a) {
  const d3d_dense_mask_args args = dense_mask_args(a);
  finish(a, d3d_dense_mask_cuda, args);
}

void packed_mask(Arguments a) {
  const d3d_packed_mask_args args = packed_mask_args(a);
  finish(a, d3d_packed_mask_cuda, args);
}

// The table of buffers lies in device memory, as the d3d_kv_buffer records of this machine.
void move_kv(Arguments a) {
  const d3d_move_kv_args args{a.pointer<d3d_kv_buffer>(), a.integer(),          a.integer(),
                              a.integer(),                a.integer(),          a.integer(),
                              a.pointer<int64_t>(),       a.pointer<int64_t>(), a.pointer<int32_t>()};
  finish(a, d3d_move_kv_cuda, args);
}

// Sizes alone decide about workspaces; this stands for penalties that there are.
const d3d_penalties some{};

int64_t sample_workspace_bytes(int64_t rows, int32_t vocab, int32_t dtype, bool penalised) {
  d3d_sample_args args{};
  args.num_rows = rows;
  args.vocab = vocab;
  args.dtype = dtype;
  args.penalties = penalised ? &some : nullptr;
  return d3d_sample_workspace_bytes(&args);
}

d3d_draft_args draft_of(int64_t rows, int64_t positions, int32_t vocab, int32_t k, int32_t dtype,
                        bool penalised) {
  d3d_draft_args args{};
  args.num_rows = rows;
  args.num_positions = positions;
  args.vocab = vocab;
  args.num_candidates = k;
  args.dtype = dtype;
  args.penalties = penalised ? &some : nullptr;
  return args;
}

int64_t draft_candidates_workspace_bytes(int64_t rows, int32_t vocab, int32_t dtype, bool penalised) {
  const d3d_draft_args args = draft_of(rows, 1, vocab, 1, dtype, penalised);
  return d3d_draft_candidates_workspace_bytes(&args);
}

// kept: whether the caller takes the candidates, or they go to the workspace.
int64_t draft_tree_workspace_bytes(int64_t batch, int64_t positions, int32_t vocab, int32_t k, int32_t dtype,
                                   bool penalised, bool kept) {
  d3d_draft_tree_args args{draft_of(batch, positions, vocab, k, dtype, penalised), {}, nullptr, nullptr};
  static int64_t ids;
  static float numbers;
  if (kept) {
    args.draft.token_ids = &ids;
    args.draft.log_probs = args.draft.scores = &numbers;
  }
  return d3d_draft_tree_workspace_bytes(&args);
}

int64_t verify_tree_workspace_bytes(int64_t batch, int32_t nodes, int32_t vocab, int32_t dtype,
                                    bool penalised) {
  d3d_verify_tree_args args{};
  args.num_requests = batch;
  args.num_nodes = nodes;
  args.vocab = vocab;
  args.dtype = dtype;
  args.penalties = penalised ? &some : nullptr;
  return d3d_verify_tree_workspace_bytes(&args);
}

int64_t verify_chain_workspace_bytes(int64_t batch, int32_t drafts, int32_t vocab, int32_t dtype,
                                     bool penalised) {
  d3d_verify_chain_args args{};
  args.num_requests = batch;
  args.num_drafts = drafts;
  args.vocab = vocab;
  args.dtype = dtype;
  args.penalties = penalised ? &some : nullptr;
  return d3d_verify_chain_workspace_bytes(&args);
}

PyMethodDef ops[] = {method<sample>("sample"),
                     method<draft_candidates>("draft_candidates"),
                     method<build_tree>("build_tree"),
                     method<draft_tree>("draft_tree"),
                     method<verify_tree>("verify_tree"),
                     method<verify_chain>("verify_chain"),
                     method<select_outcome>("select_outcome"),
                     method<frontier>("frontier"),
                     method<dense_mask>("dense_mask"),
                     method<packed_mask>("packed_mask"),
                     method<move_kv>("move_kv"),
                     {}};

}  // namespace
}  // namespace d3d::bindings

PYBIND11_MODULE(_cuda, m) {
  using namespace d3d::bindings;
  m.doc() = "CUDA kernels of D3D, behind addresses and sizes; d3d_kernels.cuda has their tensor forms.";
  m.def("version", [] { return D3D_VERSION; }, "Version of the compiled library.");
  m.def("last_error", &d3d_cuda_error_string, "The CUDA runtime's word on the last launch of this thread.");
  m.def("sample_workspace_bytes", &sample_workspace_bytes);
  m.def("draft_candidates_workspace_bytes", &draft_candidates_workspace_bytes);
  m.def("draft_tree_workspace_bytes", &draft_tree_workspace_bytes);
  m.def("verify_tree_workspace_bytes", &verify_tree_workspace_bytes);
  m.def("verify_chain_workspace_bytes", &verify_chain_workspace_bytes);
  define_penalties(m);
  if (PyModule_AddFunctions(m.ptr(), ops) != 0) throw py::error_already_set();
}
