#include "host_processor.h"

#include <cstdio>

#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

namespace tvmflow::opencl {

std::string HostProcessorIdentity() {
  char text[256];
#if defined(__x86_64__)
  // Leaf 1: family and features up to AVX.  Leaf 7: features since AVX2.
  unsigned a1 = 0, b1 = 0, c1 = 0, d1 = 0, a7 = 0, b7 = 0, c7 = 0, d7 = 0;
  __get_cpuid(1, &a1, &b1, &c1, &d1);
  __get_cpuid_count(7, 0, &a7, &b7, &c7, &d7);
  // b1 is left out: it holds the number of the core that happens to execute this.
  std::snprintf(text, sizeof(text), "x86 %08x %08x %08x %08x %08x %08x", a1, c1, d1, b7, c7, d7);
#else
  std::snprintf(text, sizeof(text), "hwcap %lx %lx", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
  return text;
}

const char* OlderProcessorName() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "skylake-avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    return "haswell";
  if (__builtin_cpu_supports("avx")) return "sandybridge";
  if (__builtin_cpu_supports("sse4.1")) return "penryn";
  return "x86-64";
#else
  return nullptr;
#endif
}

bool HostHasVectorDotProducts() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

}  // namespace tvmflow::opencl
