// d3d_kernels._C: the CPU library. The last argument of each op is the number of threads.
#include "bindings.h"

#include <vector>

namespace d3d::bindings {
namespace {

template <class Args>
void finish(Arguments& a, int (*function)(const Args*, int), const Args& args) {
  const int threads = a.integer<int>();
  a.finish();
  run(function, args, threads);
}

void sample(Arguments a) {
  const d3d_sample_args args = sample_args(a);
  finish(a, d3d_sample_cpu, args);
}

void draft_candidates(Arguments a) {
  const d3d_draft_args args = draft_args(a);
  finish(a, d3d_draft_candidates_cpu, args);
}

void build_tree(Arguments a) {
  const d3d_build_tree_args args = build_tree_args(a);
  finish(a, d3d_build_tree_cpu, args);
}

void draft_tree(Arguments a) {
  const d3d_draft_tree_args args{draft_args(a), build_tree_args(a), nullptr, nullptr};
  finish(a, d3d_draft_tree_cpu, args);
}

void verify_tree(Arguments a) {
  const d3d_verify_tree_args args = verify_tree_args(a);
  finish(a, d3d_verify_tree_cpu, args);
}

void verify_chain(Arguments a) {
  const d3d_verify_chain_args args = verify_chain_args(a);
  finish(a, d3d_verify_chain_cpu, args);
}

void select_outcome(Arguments a) {
  const d3d_select_outcome_args args = select_outcome_args(a);
  finish(a, d3d_select_outcome_cpu, args);
}

void frontier(Arguments a) {
  const d3d_frontier_args args = frontier_args(a);
  finish(a, d3d_frontier_cpu, args);
}

void dense_mask(Arguments a) {
  const d3d_dense_mask_args args = dense_mask_args(a);
  finish(a, d3d_dense_mask_cpu, args);
}

void packed_mask(Arguments a) {
  const d3d_packed_mask_args args = packed_mask_args(a);
  finish(a, d3d_packed_mask_cpu, args);
}

// The tensors of a cache, as a table that is made once.
struct KVTable {
  std::vector<d3d_kv_buffer> buffers;

  void add(uintptr_t data, int64_t page_stride, int64_t offset_stride, int64_t head_stride, int64_t num_heads,
           int64_t head_bytes) {
    buffers.push_back(
        {reinterpret_cast<void*>(data), page_stride, offset_stride, head_stride, num_heads, head_bytes});
  }
};

void move_kv(Arguments a) {
  const auto* table = a.object<KVTable>();
  if (!table) throw std::invalid_argument("expected a KVTable");
  const d3d_move_kv_args args{table->buffers.data(), static_cast<int64_t>(table->buffers.size()),
                              a.integer(),           a.integer(),
                              a.integer(),           a.integer(),
                              a.pointer<int64_t>(),  a.pointer<int64_t>(),
                              a.pointer<int32_t>()};
  finish(a, d3d_move_kv_cpu, args);
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

PYBIND11_MODULE(_C, m) {
  using namespace d3d::bindings;
  m.doc() = "CPU kernels of D3D, behind addresses and sizes; d3d_kernels.cpu has their tensor forms.";
  m.def("version", [] { return D3D_VERSION; }, "Version of the compiled library.");
  m.def("simd_level", &d3d_simd_level, "Instruction set in use: avx512, avx2 or baseline.");
  define_penalties(m);
  py::class_<KVTable>(m, "KVTable").def(py::init<>()).def("add", &KVTable::add);
  if (PyModule_AddFunctions(m.ptr(), ops) != 0) throw py::error_already_set();
}
