// Programs' binaries in a folder, each in a file that is named after its key.  No failure here is
// an error: a binary that is missing, damaged or cannot be stored costs a build of its program.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TF_KEY_BYTES = 32 };

typedef struct tf_binaries {
  const char* folder;
  uint64_t limit_bytes;  // beyond this, the least recently used files are removed
  uint32_t driver;       // a part of the key that is not in the file's name
} tf_binaries;

// Creates a folder and its parents for this user only.  Returns 0, or the code of the failure.
int tf_make_folder(const char* path);

// Returns the binary stored under the key; the caller frees it.  NULL: there is none, or it is not
// whole (`damaged`).  Several threads may call this at a time.
uint8_t* tf_binary_load(const tf_binaries* binaries, const uint8_t key[TF_KEY_BYTES], size_t* bytes,
                        bool* damaged);

// Stores a binary; processes that load it find the old file, the new one, or none.  Returns 0, the
// code of the failure, or -1 for a binary beyond the limit or a path that is too long.
int tf_binary_store(const tf_binaries* binaries, const uint8_t key[TF_KEY_BYTES],
                    const uint8_t* binary, size_t bytes);

// Opens a regular file and sets its size.  Returns -1, and sets `wrong` to the reason, on failure.
int tf_open_file(const char* path, size_t* bytes, const char** wrong);

// Finds the file that a function was loaded from; updates of a driver may keep its version.
bool tf_file_of(const void* function, struct stat* file);

#ifdef __cplusplus
}
#endif
