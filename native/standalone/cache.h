// Built programs on disk, in a folder that the application gives.
#ifndef TVMFLOW_STANDALONE_CACHE_H
#define TVMFLOW_STANDALONE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The binary that was stored under the key, a hash of source, options, device and driver; to be
// freed.  NULL where there is none, or it is damaged.
uint8_t* tf_cache_load(const char* folder, const uint8_t key[32], size_t* bytes);

// A folder that cannot be written to is no error: the program is built again the next time.
void tf_cache_store(const char* folder, const uint8_t key[32], const uint8_t* binary, size_t bytes);

#endif
