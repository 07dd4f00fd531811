// CUDA's types and mathematical functions as far as TVM uses them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// What TVM writes for the architecture that its code is for.
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define CUDA_HOST_VECTORS(name, T, bytes)                                                          \
  struct alignas(2 * bytes < 16 ? 2 * bytes : 16) name##2 { T x, y; };                             \
  struct name##3 { T x, y, z; };                                                                   \
  struct alignas(4 * bytes < 16 ? 4 * bytes : 16) name##4 { T x, y, z, w; };                       \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                       \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                               \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUDA_HOST_VECTORS(char, signed char, 1)
CUDA_HOST_VECTORS(uchar, unsigned char, 1)
CUDA_HOST_VECTORS(short, short, 2)
CUDA_HOST_VECTORS(ushort, unsigned short, 2)
CUDA_HOST_VECTORS(int, int, 4)
CUDA_HOST_VECTORS(uint, unsigned int, 4)
CUDA_HOST_VECTORS(float, float, 4)
CUDA_HOST_VECTORS(longlong, long long, 8)
CUDA_HOST_VECTORS(ulonglong, unsigned long long, 8)
CUDA_HOST_VECTORS(double, double, 8)

// Every operation rounds to 16 bits, as on the device.
struct half {
  _Float16 value;
  half() = default;
  half(float x) : value(static_cast<_Float16>(x)) {}
  half(double x) : value(static_cast<_Float16>(x)) {}
  half(int x) : value(static_cast<_Float16>(x)) {}
  half(unsigned x) : value(static_cast<_Float16>(x)) {}
  half(long x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
using __half = half;
struct alignas(4) half2 {
  half x, y;
};
using __half2 = half2;
inline half2 make_half2(half x, half y) { return {x, y}; }
inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return x; }
inline half __float2half_rn(float x) { return x; }
inline half __ushort_as_half(unsigned short x) {
  half y;
  std::memcpy(&y, &x, 2);
  return y;
}
#define CUDA_HOST_HALF(op)                                                                         \
  inline half operator op(half a, half b) { return float(a) op float(b); }
CUDA_HOST_HALF(+)
CUDA_HOST_HALF(-)
CUDA_HOST_HALF(*)
CUDA_HOST_HALF(/)
inline bool __hgt(half a, half b) { return float(a) > float(b); }
inline bool __hlt(half a, half b) { return float(a) < float(b); }
inline bool __hisnan(half a) { return std::isnan(float(a)); }
inline half __hmax(half a, half b) { return std::fmax(float(a), float(b)); }
inline half __hmin(half a, half b) { return std::fmin(float(a), float(b)); }
inline half __hfma(half a, half b, half c) { return std::fma(float(a), float(b), float(c)); }
inline half hexp(half x) { return std::exp(float(x)); }
inline half hlog(half x) { return std::log(float(x)); }
inline half hsqrt(half x) { return std::sqrt(float(x)); }
inline half htanh(half x) { return std::tanh(float(x)); }

inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
#define CUDA_HOST_ORDERED(T)                                                                       \
  inline T max(T a, T b) { return a > b ? a : b; }                                                 \
  inline T min(T a, T b) { return a < b ? a : b; }
CUDA_HOST_ORDERED(int)
CUDA_HOST_ORDERED(unsigned)
CUDA_HOST_ORDERED(long)
CUDA_HOST_ORDERED(unsigned long)
CUDA_HOST_ORDERED(long long)
inline long max(long a, int b) { return max(a, long(b)); }
inline long min(long a, int b) { return min(a, long(b)); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) {
  // Not to be fused with what follows.
  volatile float product = a * b;
  return product;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
template <typename T>
T __ldg(const T* address) {
  return *address;
}
inline int __float_as_int(float x) {
  int y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline float __int_as_float(int x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline int __dp4a(int a, int b, int c) {
  signed char x[4], y[4];
  std::memcpy(x, &a, 4), std::memcpy(y, &b, 4);
  for (int i = 0; i < 4; ++i) c += x[i] * y[i];
  return c;
}
// glibc declares functions of these names.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __exp10f(x) powf(10.0f, x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)

#define CUDART_INF_F std::numeric_limits<float>::infinity()
#define CUDART_INF std::numeric_limits<double>::infinity()
#define CUDART_NAN_F std::numeric_limits<float>::quiet_NaN()
#define CUDART_NAN std::numeric_limits<double>::quiet_NaN()
#define CUDART_INF_FP16 half(CUDART_INF_F)
#define CUDART_NAN_FP16 half(CUDART_NAN_F)
using std::isfinite;
using std::isinf;
using std::isnan;

template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
