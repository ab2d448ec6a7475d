// d3d_kernels._C: the CPU library.
#include "bindings.h"

#include <vector>

namespace d3d::bindings {
namespace {

void define_draft_candidates(py::module_& m) {
  m.def("draft_candidates",
        [](uintptr_t logits, int dtype, int vocab, int64_t rows, int64_t num_positions, int64_t row_stride,
           int64_t position_stride, int k, int mask_token_id, float beta, int64_t batch,
           uintptr_t temperature, uintptr_t top_k, uintptr_t top_p, uintptr_t min_p, uintptr_t seed,
           uintptr_t positions, uintptr_t request_ids, const d3d_penalties* penalties, uintptr_t token_ids,
           uintptr_t log_probs, uintptr_t scores, int threads) {
          const d3d_draft_args args{pointer<const void>(logits),
                                    dtype,
                                    vocab,
                                    rows,
                                    num_positions,
                                    row_stride,
                                    position_stride,
                                    k,
                                    mask_token_id,
                                    beta,
                                    sampling_of(batch, temperature, top_k, top_p, min_p, seed),
                                    pointer<const int64_t>(positions),
                                    pointer<const int32_t>(request_ids),
                                    penalties,
                                    pointer<int64_t>(token_ids),
                                    pointer<float>(log_probs),
                                    pointer<float>(scores)};
          call(d3d_draft_candidates_cpu, args, threads);
        });
}

void define_build_tree(py::module_& m) {
  m.def("build_tree",
        [](int64_t batch, int64_t num_positions, int k, int num_nodes, int num_outcomes, int max_depth,
           uintptr_t root_ids, uintptr_t candidate_ids, uintptr_t candidate_scores, uintptr_t stop_ids,
           int64_t stop_stride, int64_t stop_length, uintptr_t token_ids, uintptr_t parents, uintptr_t depths,
           uintptr_t node_counts, uintptr_t mask_bits, uintptr_t outcome_parents, uintptr_t outcome_ids,
           uintptr_t outcome_scores, int threads) {
          const d3d_build_tree_args args{batch,
                                         num_positions,
                                         k,
                                         num_nodes,
                                         num_outcomes,
                                         max_depth,
                                         pointer<const int64_t>(root_ids),
                                         pointer<const int64_t>(candidate_ids),
                                         pointer<const float>(candidate_scores),
                                         {pointer<const int64_t>(stop_ids), stop_stride, stop_length},
                                         pointer<int64_t>(token_ids),
                                         pointer<int32_t>(parents),
                                         pointer<int32_t>(depths),
                                         pointer<int32_t>(node_counts),
                                         pointer<int32_t>(mask_bits),
                                         pointer<int32_t>(outcome_parents),
                                         pointer<int64_t>(outcome_ids),
                                         pointer<float>(outcome_scores)};
          call(d3d_build_tree_cpu, args, threads);
        });
}

void define_verify_tree(py::module_& m) {
  m.def("verify_tree",
        [](uintptr_t logits, int dtype, int vocab, int64_t requests, int num_nodes, int64_t request_stride,
           int64_t row_stride, uintptr_t row_starts, int64_t rows, uintptr_t token_ids, uintptr_t parents,
           uintptr_t node_counts, int64_t batch, uintptr_t temperature, uintptr_t top_k, uintptr_t top_p,
           uintptr_t min_p, uintptr_t seed, uintptr_t root_positions, const d3d_penalties* penalties,
           uintptr_t accepted_nodes, uintptr_t num_accepted, uintptr_t bonus_ids, uintptr_t status,
           int threads) {
          const d3d_verify_tree_args args{pointer<const void>(logits),
                                          dtype,
                                          vocab,
                                          requests,
                                          num_nodes,
                                          request_stride,
                                          row_stride,
                                          pointer<const int32_t>(row_starts),
                                          rows,
                                          pointer<const int64_t>(token_ids),
                                          pointer<const int32_t>(parents),
                                          pointer<const int32_t>(node_counts),
                                          sampling_of(batch, temperature, top_k, top_p, min_p, seed),
                                          pointer<const int64_t>(root_positions),
                                          penalties,
                                          pointer<int32_t>(accepted_nodes),
                                          pointer<int32_t>(num_accepted),
                                          pointer<int64_t>(bonus_ids),
                                          pointer<int32_t>(status)};
          call(d3d_verify_tree_cpu, args, threads);
        });
}

void define_select_outcome(py::module_& m) {
  m.def("select_outcome", [](int64_t batch, int num_nodes, int num_outcomes, uintptr_t accepted_nodes,
                             uintptr_t num_accepted, uintptr_t bonus_ids, uintptr_t outcome_parents,
                             uintptr_t outcome_ids, uintptr_t index, int threads) {
    const d3d_select_outcome_args args{batch,
                                       num_nodes,
                                       num_outcomes,
                                       pointer<const int32_t>(accepted_nodes),
                                       pointer<const int32_t>(num_accepted),
                                       pointer<const int64_t>(bonus_ids),
                                       pointer<const int32_t>(outcome_parents),
                                       pointer<const int64_t>(outcome_ids),
                                       pointer<int32_t>(index)};
    call(d3d_select_outcome_cpu, args, threads);
  });
}

// The tensors of a cache, as a table that is made once.
struct KVTable {
  std::vector<d3d_kv_buffer> buffers;
};

void define_move_kv(py::module_& m) {
  py::class_<KVTable>(m, "KVTable")
      .def(py::init<>())
      .def("add", [](KVTable& table, uintptr_t data, int64_t page_stride, int64_t offset_stride,
                     int64_t head_stride, int64_t num_heads, int64_t head_bytes) {
        table.buffers.push_back(
            {pointer<void>(data), page_stride, offset_stride, head_stride, num_heads, head_bytes});
      });
  m.def("move_kv", [](const KVTable& table, int64_t num_pages, int64_t page_size, int64_t batch,
                      int64_t moves, uintptr_t sources, uintptr_t targets, uintptr_t counts, int threads) {
    const d3d_move_kv_args args{table.buffers.data(),
                                static_cast<int64_t>(table.buffers.size()),
                                num_pages,
                                page_size,
                                batch,
                                moves,
                                pointer<const int64_t>(sources),
                                pointer<const int64_t>(targets),
                                pointer<const int32_t>(counts)};
    call(d3d_move_kv_cpu, args, threads);
  });
}

}  // namespace
}  // namespace d3d::bindings

PYBIND11_MODULE(_C, m) {
  using namespace d3d::bindings;
  m.doc() = "CPU kernels of D3D, behind addresses and sizes; d3d_kernels.cpu has their tensor forms.";
  m.def("version", [] { return D3D_VERSION; }, "Version of the compiled library.");
  m.def("simd_level", &d3d_simd_level, "Instruction set in use: avx512, avx2 or baseline.");
  define_penalties(m);
  define_sample<int>(m, d3d_sample_cpu);
  define_draft_candidates(m);
  define_build_tree(m);
  define_verify_tree(m);
  define_select_outcome(m);
  define_move_kv(m);
}
