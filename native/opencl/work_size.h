// Extents of a kernel launch.
#pragma once

#include <cstddef>

#include "../core/cl_types.h"

namespace tvmflow::opencl {

// Global and local extents, in work-items.
struct WorkSize {
  cl_uint dimensions = 1;
  size_t global[3] = {1, 1, 1};
  size_t local[3] = {1, 1, 1};
};

}  // namespace tvmflow::opencl
