#include "cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void give_up(tf_cache* cache, const char* attempt, int code) {
  snprintf(cache->note, sizeof(cache->note), "%s the cache folder failed (%s): nothing is kept",
           attempt,
           code == ENOSPC   ? "it is full"
           : code == EACCES ? "no permission"
                            : strerror(code));
}

static tf_binaries binaries_of(const tf_cache* cache) {
  return (tf_binaries){cache->folder, TF_CACHE_LIMIT_BYTES, cache->driver};
}

bool tf_cache_open(tf_cache* cache, const char* folder, const void* driver_function) {
  tf_shipped_open(cache);
  if (!folder || !*folder) return true;
  struct stat file;
  if (tf_file_of(driver_function, &file))
    cache->driver = (uint32_t)file.st_size * 31 + (uint32_t)file.st_mtim.tv_sec;
  cache->folder = malloc(strlen(folder) + 1);
  if (!cache->folder) return false;
  strcpy(cache->folder, folder);
  const int code = tf_make_folder(folder);
  if (code) give_up(cache, "Making", code);
  return true;
}

void tf_cache_close(tf_cache* cache) {
  if (cache->shipped) munmap((void*)(uintptr_t)cache->shipped, cache->shipped_bytes);
  free(cache->folder);
  *cache = (tf_cache){0};
}

uint8_t* tf_cache_load(const tf_cache* cache, const uint8_t key[32], size_t* bytes, bool* shipped) {
  const tf_binaries binaries = binaries_of(cache);
  bool damaged;
  uint8_t* binary = cache->folder ? tf_binary_load(&binaries, key, bytes, &damaged) : NULL;
  const uint8_t* const found = binary ? NULL : tf_shipped_find(cache, key, bytes);
  *shipped = found != NULL;
  if (!found) return binary;
  binary = malloc(*bytes);
  if (binary) memcpy(binary, found, *bytes);
  return binary;
}

void tf_cache_store(tf_cache* cache, const uint8_t key[32], const uint8_t* binary, size_t bytes) {
  if (!cache->folder || *cache->note) return;
  const tf_binaries binaries = binaries_of(cache);
  const int code = tf_binary_store(&binaries, key, binary, bytes);
  if (code > 0) give_up(cache, "Writing to", code);
}
