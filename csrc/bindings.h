// pybind11 forms of the C interface, shared by the CPU and the CUDA module.
//
// Tensors arrive as addresses and sizes, in the order of the structs in d3d.h; d3d_kernels/cpu.py and cuda.py
// take them from torch tensors. `Where` is the number of threads, or the address of a CUDA stream.
#pragma once

#include <pybind11/pybind11.h>

#include <new>
#include <stdexcept>

#include "d3d.h"

namespace d3d::bindings {

namespace py = pybind11;

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// Runs a C function without the interpreter lock.
template <class Args, class Where>
void call(int (*function)(const Args*, Where), const Args& args, Where where) {
  int error;
  {
    py::gil_scoped_release release;
    error = function(&args, where);
  }
  if (error == D3D_ERROR_MEMORY) throw std::bad_alloc();
  if (error != D3D_OK) throw std::invalid_argument(d3d_error_string(error));
}

inline d3d_sampling sampling_of(int64_t batch, uintptr_t temperature, uintptr_t top_k, uintptr_t top_p,
                                uintptr_t min_p, uintptr_t seed) {
  return {batch,
          pointer<const float>(temperature),
          pointer<const int32_t>(top_k),
          pointer<const float>(top_p),
          pointer<const float>(min_p),
          pointer<const int64_t>(seed)};
}

using IdLists = std::tuple<uintptr_t, int64_t, int64_t>;  // address, stride, length

inline d3d_id_lists lists_of(const IdLists& lists) {
  return {pointer<const int64_t>(std::get<0>(lists)), std::get<1>(lists), std::get<2>(lists)};
}

inline void define_penalties(py::module_& m) {
  py::class_<d3d_penalties>(m, "Penalties", py::module_local())
      .def(py::init([](IdLists prompt, IdLists output, uintptr_t repetition, uintptr_t frequency,
                       uintptr_t presence, IdLists bias, uintptr_t bias_values, int64_t bias_values_stride,
                       uintptr_t allowed_bits, int64_t allowed_stride) {
        return d3d_penalties{lists_of(prompt),
                             lists_of(output),
                             pointer<const float>(repetition),
                             pointer<const float>(frequency),
                             pointer<const float>(presence),
                             lists_of(bias),
                             pointer<const float>(bias_values),
                             bias_values_stride,
                             pointer<const int32_t>(allowed_bits),
                             allowed_stride};
      }));
}

template <class Where, class Target>
void define_sample(py::module_& m, int (*function)(const d3d_sample_args*, Target)) {
  m.def("sample",
        [function](uintptr_t logits, int dtype, int vocab, int64_t rows, int64_t row_stride, int64_t batch,
                   uintptr_t temperature, uintptr_t top_k, uintptr_t top_p, uintptr_t min_p, uintptr_t seed,
                   uintptr_t positions, uintptr_t request_ids, const d3d_penalties* penalties,
                   uintptr_t token_ids, uintptr_t status, uintptr_t workspace, Where where) {
          const d3d_sample_args args{pointer<const void>(logits),
                                     dtype,
                                     vocab,
                                     rows,
                                     row_stride,
                                     sampling_of(batch, temperature, top_k, top_p, min_p, seed),
                                     pointer<const int64_t>(positions),
                                     pointer<const int32_t>(request_ids),
                                     penalties,
                                     pointer<int64_t>(token_ids),
                                     pointer<int32_t>(status),
                                     pointer<void>(workspace)};
          call(function, args, (Target)where);
        });
}

}  // namespace d3d::bindings
