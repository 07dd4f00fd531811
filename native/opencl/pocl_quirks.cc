#include "pocl_quirks.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace tvmflow::opencl {
namespace {

// Newer releases of PoCL have a setting for the name and know more processors.
constexpr const char* kPlatformName = "Portable Computing Language";
// The device object of PoCL 3.0 has about 1200 bytes; the names stand in its middle.
constexpr size_t kDeviceObjectBytes = 2048;

// Reads memory that may not be mapped: the kernel checks the address for write(2).
class CarefulReader {
 public:
  CarefulReader() {
    if (pipe(ends_) != 0) ends_[0] = ends_[1] = -1;
  }
  ~CarefulReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  bool Read(const void* address, void* destination, size_t bytes) const {
    if (ends_[1] < 0 || write(ends_[1], address, bytes) != static_cast<ssize_t>(bytes))
      return false;
    return read(ends_[0], destination, bytes) == static_cast<ssize_t>(bytes);
  }
  // True when `address` holds the text, which is compared byte by byte so that nothing
  // behind the end of a shorter text is touched.
  bool StartsWith(uintptr_t address, const char* text, bool whole) const {
    const size_t length = std::strlen(text) + (whole ? 1 : 0);
    for (size_t i = 0; i < length; ++i) {
      char c;
      if (!Read(reinterpret_cast<const void*>(address + i), &c, 1) || c != text[i]) return false;
    }
    return true;
  }

 private:
  int ends_[2];
};

// Names that LLVM has known for ten years, best first.
const char* OlderProcessor() {
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

}  // namespace

std::string NameProcessor(const Platform& platform, cl_device_id device) {
  const char* name = OlderProcessor();
  if (platform.name != kPlatformName || !name) return "";
  const CarefulReader reader;
  auto* words = reinterpret_cast<uintptr_t*>(device);
  // Two neighbours identify the place: the target triple and the processor's name.
  for (size_t i = 0; i + 1 < kDeviceObjectBytes / sizeof(uintptr_t); ++i) {
    uintptr_t pair[2];
    if (!reader.Read(words + i, pair, sizeof(pair))) return "";
    if (pair[0] < 4096 || pair[1] < 4096) continue;
    if (!reader.StartsWith(pair[0], "x86_64-", false)) continue;
    if (!reader.StartsWith(pair[1], "generic", true)) continue;
    words[i + 1] = reinterpret_cast<uintptr_t>(name);
    return name;
  }
  return "";
}

}  // namespace tvmflow::opencl
