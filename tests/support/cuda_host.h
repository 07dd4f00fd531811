// CUDA C++ as TVM generates it, compiled for the host: kernels are plain functions that run
// once per thread. `cuda_host.py` prepares the source and says what is found this way. This is
// all that kernels see; what it declares is in `cuda_device.cc`.
#pragma once

#include <tvm/ffi/c_api.h>

#include <type_traits>
#include <utility>

#include "cuda_types.h"

extern "C" uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_host {

// Ends the process: what is wrong with a kernel cannot become an exception between fibers.
[[noreturn]] void Fail(const char* what);

void WaitForBlock(int line);
void WaitForWarp(int line);
// Replaces the value by the one that a lane of the thread's warp has at the same place.
void Exchange(void* value, size_t bytes, size_t lane, int line);
size_t Lane();

void* DynamicShared();
struct Shared {
  Shared(void* data, size_t bytes);
};

void CopyAsync(void* to, const void* from, size_t bytes, bool zeros);
void CommitGroup();
void WaitGroup(size_t left);

// sums[m][n] += left[m][k] * right[k][n], all of them row by row.
void MultiplyAccumulate(int m, int n, int k, const float* left, const float* right, float* sums);

using Call = void (*)(const TVMFFIAny* values);
// A call in TVM's convention: the kernel's arguments, then extents, whose meaning `tags` say:
// 0-2 for blocks in x, y, z, 3-5 for threads of a block, 6 for bytes of dynamic shared memory.
int Launch(const char* name, Call call, int arguments, const int* tags, int tags_count,
           bool cooperates, const TVMFFIAny* values, int count);

// Within segments of `width` lanes; what is outside of the segment leaves the value as it is.
template <typename T>
T Shuffle(T value, size_t lane, size_t width, int line) {
  Exchange(&value, sizeof(T), lane / width == Lane() / width ? lane : Lane(), line);
  return value;
}

template <typename T>
T Argument(const TVMFFIAny& value) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<T>(value.v_ptr);
  } else {
    const bool real = value.type_index == kTVMFFIFloat;
    return real ? static_cast<T>(value.v_float64) : static_cast<T>(value.v_int64);
  }
}

template <typename... A, size_t... I>
void CallWith(void (*kernel)(A...), const TVMFFIAny* values, std::index_sequence<I...>) {
  kernel(Argument<A>(values[I])...);
}

template <typename... A>
void CallWith(void (*kernel)(A...), const TVMFFIAny* values) {
  CallWith(kernel, values, std::index_sequence_for<A...>{});
}

template <typename... A>
constexpr int Arguments(void (*)(A...)) {
  return sizeof...(A);
}

}  // namespace cuda_host

// The entry point of a kernel, under the name that TVM looks up in a library.
#define CUDA_HOST_KERNEL(kernel, cooperates, ...)                                                  \
  extern "C" int __tvm_ffi_##kernel(void*, const TVMFFIAny* values, int count, TVMFFIAny*) {       \
    const int tags[] = {__VA_ARGS__};                                                              \
    return cuda_host::Launch(                                                                      \
        #kernel, [](const TVMFFIAny* given) { cuda_host::CallWith(kernel, given); },               \
        cuda_host::Arguments(kernel), tags, sizeof(tags) / sizeof(int), cooperates, values,        \
        count);                                                                                    \
  }

#define __syncthreads() cuda_host::WaitForBlock(__LINE__)
#define __syncwarp(...) cuda_host::WaitForWarp(__LINE__)
#define __activemask() 0xFFFFFFFFu
#define __shfl_sync(mask, value, lane, width)                                                      \
  cuda_host::Shuffle(value, cuda_host::Lane() / (width) * (width) + (lane) % (width), width,       \
                     __LINE__)
#define __shfl_down_sync(mask, value, delta, width)                                                \
  cuda_host::Shuffle(value, cuda_host::Lane() + (delta), width, __LINE__)
#define __shfl_up_sync(mask, value, delta, width)                                                  \
  cuda_host::Shuffle(value, cuda_host::Lane() - (delta), width, __LINE__)
#define __shfl_xor_sync(mask, value, lanes, width)                                                 \
  cuda_host::Shuffle(value, cuda_host::Lane() ^ (lanes), width, __LINE__)
