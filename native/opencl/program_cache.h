// Cache of built programs on disk, so that other processes need not build them again.
#pragma once

#include <cstdint>
#include <string>

#include "allocated.h"
#include "device.h"
#include "sha256.h"

namespace tvmflow::opencl {

// Returns a hash of everything that a program's binary depends on: source, build options, the
// device with its driver's versions and library file, the host processor if kernels run on it,
// and the version of the entry's format.
Digest ProgramKey(const Device& device, const std::string& source, const std::string& options);

// Statistics of the cache in this process.
struct CacheStatistics {
  uint64_t hits = 0;     // programs created from an entry
  uint64_t misses = 0;   // programs without an entry
  uint64_t rebuilt = 0;  // entries that were damaged or that the driver refused
  uint64_t stored = 0;   // entries written
};
CacheStatistics GlobalCacheStatistics();
// Count a program created from an entry, and one whose entry the driver refused.
void CountCacheHit();
void CountCacheRefusal();

// Returns the binary stored under `key`, after checking its integrity, and sets its size.  Returns
// null if there is none, it is damaged, or there is no usable cache folder; never throws.
Allocated<uint8_t> LoadBinary(const Digest& key, size_t* bytes);

// Stores a binary under `key`, replacing an earlier one.  A reader in another process
// sees the old entry, the new one, or none.  Does nothing if the folder is not writable.
// Removes the least recently used entries if the folder exceeds its size limit.
void StoreBinary(const Digest& key, const uint8_t* binary, size_t bytes);

}  // namespace tvmflow::opencl
