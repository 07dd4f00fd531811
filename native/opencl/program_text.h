// The source of a kernel.
#pragma once

#include <string>

namespace tvmflow::opencl {

// The OpenCL C source of one kernel, with the declarations that it needs.
struct KernelSource {
  std::string name;
  std::string text;
};

}  // namespace tvmflow::opencl
