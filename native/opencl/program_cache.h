// Built programs on disk, so that a second process need not build them again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "sha256.h"

namespace tvmflow::opencl {

// Hash of everything a program's binary depends on: source, build options, the device
// with its driver's versions and library file, the host processor where kernels run
// on it, and the version of the entry's format.
Digest ProgramKey(const Device& device, const std::string& source, const std::string& options);

// What happened in this process.
struct CacheStatistics {
  uint64_t hits = 0;     // programs made from an entry
  uint64_t misses = 0;   // programs without an entry
  uint64_t rebuilt = 0;  // entries that were damaged or that the driver refused
  uint64_t stored = 0;   // entries written
};
CacheStatistics GlobalCacheStatistics();
// Counts a program made from an entry, or one whose entry the driver refused.
void CountCacheHit();
void CountCacheRefusal();

// The binary stored under `key`, whose integrity was checked.  Nothing when there is
// none, when it is damaged, or when there is no usable cache folder; never throws.
std::optional<std::vector<unsigned char>> LoadBinary(const Digest& key);

// Stores a binary under `key`, replacing what is there.  A reader in another process
// sees the old entry, the new one, or none.  Does nothing when the folder cannot be
// written.  Removes the entries unused for longest when the folder outgrows its limit.
void StoreBinary(const Digest& key, const std::vector<unsigned char>& binary);

}  // namespace tvmflow::opencl
