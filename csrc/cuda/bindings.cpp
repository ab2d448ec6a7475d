// d3d_kernels._cuda: the CUDA library. The last argument of each op is the address of a stream.
#include "bindings.h"

namespace d3d::bindings {
namespace {

void sample(Arguments a) {
  const d3d_sample_args args = sample_args(a);
  void* stream = a.pointer<void>();
  a.finish();
  run(d3d_sample_cuda, args, stream);
}

int64_t sample_workspace_bytes(int64_t rows, int32_t vocab, int32_t dtype) {
  const d3d_penalties some{};
  d3d_sample_args args{};
  args.num_rows = rows;
  args.vocab = vocab;
  args.dtype = dtype;
  args.penalties = &some;
  return d3d_sample_workspace_bytes(&args);
}

PyMethodDef ops[] = {method<sample>("sample"), {}};

}  // namespace
}  // namespace d3d::bindings

PYBIND11_MODULE(_cuda, m) {
  using namespace d3d::bindings;
  m.doc() = "CUDA kernels of D3D, behind addresses and sizes; d3d_kernels.cuda has their tensor forms.";
  m.def("version", [] { return D3D_VERSION; }, "Version of the compiled library.");
  m.def("last_error", &d3d_cuda_error_string, "The CUDA runtime's word on the last launch of this thread.");
  m.def("sample_workspace_bytes", &sample_workspace_bytes);
  define_penalties(m);
  if (PyModule_AddFunctions(m.ptr(), ops) != 0) throw py::error_already_set();
}
