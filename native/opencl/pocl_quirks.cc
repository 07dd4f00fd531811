#include "pocl_quirks.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "host_processor.h"

namespace tvmflow::opencl {
namespace {

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

}  // namespace

bool IsPocl(const Platform& platform) { return platform.name == kPlatformName; }

void PreparePocl() {
  constexpr int kKeepUsersChoice = 0;
  setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", kKeepUsersChoice);
}

std::string NameProcessor(const Platform& platform, cl_device_id device) {
  const char* name = OlderProcessorName();
  if (!IsPocl(platform) || !name) return "";
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
