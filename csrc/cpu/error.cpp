#include "d3d.h"

const char* d3d_error_string(int error) {
  switch (error) {
    case D3D_OK:
      return "no error";
    case D3D_ERROR_ARGUMENT:
      return "invalid size or missing pointer";
    case D3D_ERROR_DTYPE:
      return "unknown dtype";
    case D3D_ERROR_MEMORY:
      return "out of memory for scratch";
    case D3D_ERROR_LAUNCH:
      return "CUDA refused the launch";
    default:
      return "unknown error";
  }
}
