// CUDA C++ as TVM generates it, compiled for the host: kernels are plain functions that run
// once per thread. `cuda_host.py` prepares the source and says what is found this way.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <type_traits>
#include <utility>

#include "cuda_tensor_cores.h"
#include "cuda_threads.h"
#include "cuda_types.h"

// Defined by the device: runs a launch, now or whenever a graph that captures it is replayed.
extern "C" void cuda_host_submit(const std::function<void()>* launch);

namespace cuda_host {

// Where the extents of a launch stand: 0-2 for blocks in x, y, z, 3-5 for threads of a
// block, 6 for bytes of dynamic shared memory.
using Tags = std::initializer_list<int>;

template <typename T>
T Argument(const TVMFFIAny& value) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(value.v_ptr);
  } else {
    const bool real = value.type_index == kTVMFFIFloat;
    return real ? static_cast<T>(value.v_float64) : static_cast<T>(value.v_int64);
  }
}

// A call in TVM's convention: the kernel's arguments, then the extents that `tags` name.
template <typename... A, size_t... I>
int Launch(const char* name, void (*kernel)(A...), bool cooperates, Tags tags,
           const TVMFFIAny* values, int32_t count, std::index_sequence<I...>) {
  if (count != static_cast<int32_t>(sizeof...(A) + tags.size())) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "a kernel was called with other arguments");
    return -1;
  }
  size_t extents[7] = {1, 1, 1, 1, 1, 1, 0};
  const TVMFFIAny* extent = values + sizeof...(A);
  for (int tag : tags) extents[tag] = static_cast<size_t>((extent++)->v_int64);
  std::function<void()> launch = [=, arguments = std::make_tuple(Argument<A>(values[I])...)] {
    RunGrid(name, extents, cooperates, [&] { kernel(std::get<I>(arguments)...); });
  };
  cuda_host_submit(&launch);
  return 0;
}

}  // namespace cuda_host

// The entry point of a kernel, under the name that TVM looks up in a library.
#define CUDA_HOST_KERNEL(kernel, cooperates, ...)                                                  \
  extern "C" int __tvm_ffi_##kernel(void*, const TVMFFIAny* values, int32_t count, TVMFFIAny*) {   \
    return cuda_host::LaunchOf(#kernel, kernel, cooperates, {__VA_ARGS__}, values, count);         \
  }

namespace cuda_host {

template <typename... A>
int LaunchOf(const char* name, void (*kernel)(A...), bool cooperates, Tags tags,
             const TVMFFIAny* values, int32_t count) {
  return Launch(name, kernel, cooperates, tags, values, count, std::index_sequence_for<A...>{});
}

}  // namespace cuda_host
