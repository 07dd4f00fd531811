#include "host_processor.h"

#include <cstdio>

#include "host_features.h"

#if !defined(__x86_64__)
#include <sys/auxv.h>
#endif

namespace tvmflow::opencl {

std::string HostProcessorIdentity() {
  char text[256];
#if defined(__x86_64__)
  uint32_t w[6];
  HostFeatures(w);
  std::snprintf(text, sizeof(text), "x86 %08x %08x %08x %08x %08x %08x", w[0], w[1], w[2], w[3],
                w[4], w[5]);
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

bool HostHasVectorDotProducts() { return HostHasAvx512Vnni() != 0; }

}  // namespace tvmflow::opencl
