// Programs' binaries on disk: in a folder that the application gives, and in a file next to the
// library that came with it (docs/standalone.md).  No failure here is an error: a binary that is
// missing, damaged or cannot be stored costs a build of its program.
#ifndef TVMFLOW_STANDALONE_CACHE_H
#define TVMFLOW_STANDALONE_CACHE_H

#include "../core/binaries.h"

// Most bytes of a folder's files; the least recently used ones are removed.
#ifndef TF_CACHE_LIMIT_BYTES
#define TF_CACHE_LIMIT_BYTES ((uint64_t)256 << 20)
#endif

typedef struct tf_cache {
  char* folder;            // NULL: no binary is stored
  uint32_t driver;         // hash of the driver's file: an update may keep its version
  const uint8_t* shipped;  // the file next to the library, mapped; NULL: there is none
  size_t shipped_bytes;
  char note[128];  // why no binary is stored; "" if they are
} tf_cache;

// Opens a cache; `folder` may be NULL, and `driver_function` is one of the driver's.  Returns false
// if no memory is left.
bool tf_cache_open(tf_cache* cache, const char* folder, const void* driver_function);
void tf_cache_close(tf_cache* cache);

// Returns the binary stored under the key, a hash of source, options, device and driver; the caller
// frees it.  NULL: there is none that is whole.  `shipped`: it is from the file next to the
// library.  Several threads may call this at a time.
uint8_t* tf_cache_load(const tf_cache* cache, const uint8_t key[32], size_t* bytes, bool* shipped);

// Stores a binary.  Other processes find the old file, the new one, or none.
void tf_cache_store(tf_cache* cache, const uint8_t key[32], const uint8_t* binary, size_t bytes);

// shipped.c: maps `<library>.programs`.
void tf_shipped_open(tf_cache* cache);
// Returns a binary in the mapped file; NULL: it is not there.
const uint8_t* tf_shipped_find(const tf_cache* cache, const uint8_t key[32], size_t* bytes);

#endif
