#include "program_cache.h"

#if !defined(__x86_64__)
#include <sys/auxv.h>
#endif

#include <atomic>
#include <cstdio>

#include "../core/binaries.h"
#include "../core/host_features.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

std::atomic<uint64_t> hits{0}, misses{0}, rebuilt{0}, stored{0};

// Returns the identity of the driver's own library, even if a loader opened it, because updates
// of a driver do not always change its version.
std::string LibraryIdentity(const Device& device) {
  struct stat status{};
  if (!tf_file_of(tf_device_code(device.core()), &status)) return "";
  return std::to_string(status.st_size) + "," + std::to_string(status.st_mtim.tv_sec) + "," +
         std::to_string(status.st_mtim.tv_nsec);
}

// Returns a text that differs between processors with different instruction sets.
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

// The folder of the settings; the driver is a part of the key.
tf_binaries Binaries(const Settings& settings) {
  return {settings.cache_enabled ? settings.cache_folder.c_str() : "", settings.cache_limit_bytes,
          0};
}

}  // namespace

Digest ProgramKey(const Device& device, const std::string& source, const std::string& options) {
  const DeviceInfo& info = device.info();
  Sha256 hash;
  hash.Field("1").Field(source).Field(options);
  hash.Field(info.name).Field(info.vendor).Field(info.version).Field(info.driver_version);
  hash.Field(info.platform).Field(info.platform_version);
  hash.Field(LibraryIdentity(device));
  hash.Field(tf_is_cpu(device.core()) ? HostProcessorIdentity() : "");
  return hash.Finish();
}

CacheStatistics GlobalCacheStatistics() { return {hits, misses, rebuilt, stored}; }
void CountCacheHit() { ++hits; }
void CountCacheRefusal() { ++rebuilt; }

Allocated<uint8_t> LoadBinary(const Digest& key, size_t* bytes) {
  const Settings settings = CurrentSettings();
  const tf_binaries binaries = Binaries(settings);
  if (!*binaries.folder) return nullptr;
  bool damaged = false;
  Allocated<uint8_t> binary(tf_binary_load(&binaries, key.data(), bytes, &damaged));
  if (!binary) ++(damaged ? rebuilt : misses);
  return binary;
}

void StoreBinary(const Digest& key, const uint8_t* binary, size_t bytes) {
  const Settings settings = CurrentSettings();
  const tf_binaries binaries = Binaries(settings);
  if (!*binaries.folder || tf_make_folder(binaries.folder)) return;
  if (tf_binary_store(&binaries, key.data(), binary, bytes) == 0) ++stored;
}

}  // namespace tvmflow::opencl
