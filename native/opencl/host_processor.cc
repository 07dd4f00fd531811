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

bool HostHasVectorDotProducts() { return HostHasAvx512Vnni() != 0; }

}  // namespace tvmflow::opencl
