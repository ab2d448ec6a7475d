// Python forms of the C interface, shared by the CPU and the CUDA module.
//
// Tensors arrive as addresses and sizes in the order of the structs in d3d.h; d3d_kernels/cpu.py and cuda.py
// take them from torch tensors. The functions with many arguments are plain C functions of Python: pybind11
// spends two microseconds on twenty integers, as much as a small kernel.
#pragma once

#include <pybind11/pybind11.h>

#include <new>
#include <stdexcept>

#include "d3d.h"

namespace d3d::bindings {

namespace py = pybind11;

// The arguments of a call, taken one by one. Braced initialisers take them from left to right.
class Arguments {
 public:
  Arguments(PyObject* const* values, Py_ssize_t count) : next_(values), end_(values + count) {}

  template <class T = int64_t>
  T integer() {
    const long long value = PyLong_AsLongLong(take());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return static_cast<T>(value);
  }

  template <class T>
  T* pointer() {
    return reinterpret_cast<T*>(integer<uintptr_t>());
  }

  float real() {
    const double value = PyFloat_AsDouble(take());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return static_cast<float>(value);
  }

  // An object of a class that pybind11 knows, or null for None.
  template <class T>
  const T* object() {
    const py::handle value = take();
    return value.is_none() ? nullptr : py::cast<const T*>(value);
  }

  d3d_sampling sampling() {
    return {integer(),        pointer<float>(), pointer<int32_t>(),
            pointer<float>(), pointer<float>(), pointer<int64_t>()};
  }

  d3d_id_lists id_lists() { return {pointer<int64_t>(), integer(), integer()}; }

  void finish() const {
    if (next_ != end_) throw std::invalid_argument("too many arguments");
  }

 private:
  PyObject* take() {
    if (next_ == end_) throw std::invalid_argument("too few arguments");
    return *next_++;
  }

  PyObject* const* next_;
  PyObject* const* end_;
};

// Runs a C function without the interpreter lock.
template <class Args, class Where>
void run(int (*function)(const Args*, Where), const Args& args, Where where) {
  int error;
  {
    py::gil_scoped_release release;
    error = function(&args, where);
  }
  if (error == D3D_ERROR_MEMORY) throw std::bad_alloc();
  if (error != D3D_OK) throw std::invalid_argument(d3d_error_string(error));
}

// A Python function of any number of positional arguments.
template <void (*function)(Arguments)>
PyObject* entry(PyObject*, PyObject* const* values, Py_ssize_t count) {
  try {
    function(Arguments(values, count));
    Py_RETURN_NONE;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::runtime_error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  }
  return nullptr;
}

template <void (*function)(Arguments)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&entry<function>)), METH_FASTCALL,
          nullptr};
}

inline void define_penalties(py::module_& m) {
  py::class_<d3d_penalties>(m, "Penalties", py::module_local()).def(py::init([](const py::args& list) {
    PyObject* const* values = PySequence_Fast_ITEMS(list.ptr());
    Arguments a(values, static_cast<Py_ssize_t>(list.size()));
    const d3d_penalties penalties{a.id_lists(),         a.id_lists(), a.pointer<float>(), a.pointer<float>(),
                                  a.pointer<float>(),   a.id_lists(), a.pointer<float>(), a.integer(),
                                  a.pointer<int32_t>(), a.integer()};
    a.finish();
    return penalties;
  }));
}

// The arguments of an op, in the order of its struct; workspace and counters are left to the CUDA library.

inline d3d_sample_args sample_args(Arguments& a) {
  return {a.pointer<void>(),    a.integer<int32_t>(), a.integer<int32_t>(),
          a.integer(),          a.integer(),          a.sampling(),
          a.pointer<int64_t>(), a.pointer<int32_t>(), a.object<d3d_penalties>(),
          a.pointer<int64_t>(), a.pointer<int32_t>(), nullptr};
}

inline d3d_draft_args draft_args(Arguments& a) {
  return {a.pointer<void>(),    a.integer<int32_t>(),
          a.integer<int32_t>(), a.integer(),
          a.integer(),          a.integer(),
          a.integer(),          a.integer<int32_t>(),
          a.integer<int32_t>(), a.real(),
          a.sampling(),         a.pointer<int64_t>(),
          a.pointer<int32_t>(), a.object<d3d_penalties>(),
          a.pointer<int64_t>(), a.pointer<float>(),
          a.pointer<float>(),   nullptr};
}

inline d3d_build_tree_args build_tree_args(Arguments& a) {
  return {a.integer(),          a.integer(),          a.integer<int32_t>(), a.integer<int32_t>(),
          a.integer<int32_t>(), a.integer<int32_t>(), a.pointer<int64_t>(), a.pointer<int64_t>(),
          a.pointer<float>(),   a.id_lists(),         a.pointer<int64_t>(), a.pointer<int32_t>(),
          a.pointer<int32_t>(), a.pointer<int32_t>(), a.pointer<int32_t>(), a.pointer<int32_t>(),
          a.pointer<int64_t>(), a.pointer<float>(),   a.pointer<int32_t>(), a.integer(),
          a.pointer<int64_t>(), a.pointer<int64_t>(), a.pointer<int32_t>(), a.pointer<int32_t>()};
}

inline d3d_verify_tree_args verify_tree_args(Arguments& a) {
  return {a.pointer<void>(),    a.integer<int32_t>(), a.integer<int32_t>(),
          a.integer(),          a.integer<int32_t>(), a.integer(),
          a.integer(),          a.pointer<int32_t>(), a.integer(),
          a.pointer<int64_t>(), a.pointer<int32_t>(), a.pointer<int32_t>(),
          a.sampling(),         a.pointer<int64_t>(), a.object<d3d_penalties>(),
          a.pointer<int32_t>(), a.pointer<int32_t>(), a.pointer<int64_t>(),
          a.pointer<int32_t>(), a.integer<int32_t>(), a.pointer<int32_t>(),
          a.pointer<int64_t>(), a.pointer<int32_t>(), nullptr,
          nullptr};
}

inline d3d_verify_chain_args verify_chain_args(Arguments& a) {
  return {a.pointer<void>(),    a.integer<int32_t>(), a.integer<int32_t>(), a.integer(),
          a.integer<int32_t>(), a.integer<int32_t>(), a.integer(),          a.integer(),
          a.pointer<int64_t>(), a.integer(),          a.pointer<void>(),    a.integer<int32_t>(),
          a.integer<int32_t>(), a.integer(),          a.integer(),          a.sampling(),
          a.pointer<int64_t>(), a.object<d3d_penalties>(), a.pointer<int32_t>(), a.pointer<int32_t>(),
          a.pointer<int64_t>(), a.pointer<int32_t>(), nullptr};
}

inline d3d_select_outcome_args select_outcome_args(Arguments& a) {
  return {a.integer(),          a.integer<int32_t>(), a.integer<int32_t>(), a.pointer<int32_t>(),
          a.pointer<int32_t>(), a.pointer<int64_t>(), a.pointer<int32_t>(), a.pointer<int64_t>(),
          a.pointer<int32_t>(), a.integer(),          a.integer<int32_t>(), a.pointer<int64_t>(),
          a.pointer<float>(),   a.pointer<float>(),   a.pointer<int64_t>(), a.pointer<float>(),
          a.pointer<float>()};
}

inline d3d_frontier_args frontier_args(Arguments& a) {
  return {a.integer(),          a.integer<int32_t>(), a.integer<int32_t>(), a.integer<int32_t>(),
          a.integer(),          a.pointer<int64_t>(), a.pointer<int32_t>(), a.pointer<int32_t>(),
          a.pointer<int32_t>(), a.pointer<int32_t>(), a.pointer<int64_t>(), a.pointer<int64_t>(),
          a.pointer<void>(),    a.integer<int32_t>(), a.integer(),          a.integer(),
          a.integer<int32_t>(), a.pointer<int64_t>(), a.pointer<int64_t>(), a.pointer<int64_t>(),
          a.pointer<int32_t>(), a.pointer<int64_t>(), a.pointer<int32_t>()};
}

inline d3d_dense_mask_args dense_mask_args(Arguments& a) {
  return {a.integer(),
          a.integer(),
          a.integer(),
          a.pointer<int32_t>(),
          a.pointer<int64_t>(),
          a.integer(),
          a.integer<int32_t>(),
          static_cast<uint64_t>(a.integer()),
          static_cast<uint64_t>(a.integer()),
          a.pointer<void>()};
}

inline d3d_packed_mask_args packed_mask_args(Arguments& a) {
  return {a.integer(),          a.integer(), a.integer(),          a.pointer<int32_t>(), a.pointer<int64_t>(),
          a.pointer<int32_t>(), a.integer(), a.pointer<uint8_t>(), a.pointer<int32_t>()};
}

}  // namespace d3d::bindings
