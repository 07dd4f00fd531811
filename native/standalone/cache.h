// Programs' binaries on disk: in a folder that the application gives, and in a file beside the
// library that came with it (docs/standalone.md).  Nothing here is an error: where a binary is
// missing, damaged or cannot be kept, the program is built.
#ifndef TVMFLOW_STANDALONE_CACHE_H
#define TVMFLOW_STANDALONE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A folder's files may grow to this; those that were not used for longest go.
#ifndef TF_CACHE_LIMIT_BYTES
#define TF_CACHE_LIMIT_BYTES ((uint64_t)256 << 20)
#endif

typedef struct tf_cache {
  char* folder;            // NULL: nothing is kept
  uint32_t driver;         // of the driver's file: an update need not change its version
  const uint8_t* shipped;  // the file beside the library, mapped; NULL: there is none
  size_t shipped_bytes;
  char note[128];  // why nothing is kept; "" where that is not so
} tf_cache;

// `folder` may be NULL; `driver_function` is one of the driver's.  False: no memory.
bool tf_cache_open(tf_cache* cache, const char* folder, const void* driver_function);
void tf_cache_close(tf_cache* cache);

// The binary stored under the key, a hash of source, options, device and driver; to be freed.
// NULL: there is none that is whole.  `shipped`: it is from the file beside the library.  From
// several threads at a time.
uint8_t* tf_cache_load(const tf_cache* cache, const uint8_t key[32], size_t* bytes, bool* shipped);

// Other processes find the old file, the new one, or none.
void tf_cache_store(tf_cache* cache, const uint8_t key[32], const uint8_t* binary, size_t bytes);

// shipped.c: maps `<library>.programs`; finds a binary in what was mapped, NULL: not there.
void tf_shipped_open(tf_cache* cache);
const uint8_t* tf_shipped_find(const tf_cache* cache, const uint8_t key[32], size_t* bytes);

#endif
