// Memory that functions of native/core allocate with malloc.
#pragma once

#include <cstdlib>
#include <memory>

namespace tvmflow::opencl {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <typename T>
using Allocated = std::unique_ptr<T, Free>;

}  // namespace tvmflow::opencl
