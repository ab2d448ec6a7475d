// d3d_kernels._cuda: the CUDA library.
#include "bindings.h"

PYBIND11_MODULE(_cuda, m) {
  using namespace d3d::bindings;
  m.doc() = "CUDA kernels of D3D, behind addresses and sizes; d3d_kernels.cuda has their tensor forms.";
  m.def("version", [] { return D3D_VERSION; }, "Version of the compiled library.");
  m.def("last_error", &d3d_cuda_error_string, "The CUDA runtime's word on the last launch of this thread.");
  define_penalties(m);
  define_sample<uintptr_t>(m, d3d_sample_cuda);
  m.def("sample_workspace_bytes", [](int64_t rows, int vocab, int dtype) {
    const d3d_penalties some{};
    d3d_sample_args args{};
    args.num_rows = rows;
    args.vocab = vocab;
    args.dtype = dtype;
    args.penalties = &some;
    return d3d_sample_workspace_bytes(&args);
  });
}
