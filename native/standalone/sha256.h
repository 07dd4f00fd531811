// SHA-256 (FIPS 180-4): checksums of plans, keys and checksums of cached programs.
#ifndef TVMFLOW_STANDALONE_SHA256_H
#define TVMFLOW_STANDALONE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define TF_DIGEST_BYTES 32

typedef struct tf_sha256 {
  uint32_t state[8];
  uint8_t pending[64];
  size_t pending_bytes;
  uint64_t bytes;
} tf_sha256;

void tf_sha256_begin(tf_sha256* hash);
void tf_sha256_add(tf_sha256* hash, const void* data, size_t bytes);
// A text with its zero byte, so that two texts cannot run into each other.
void tf_sha256_add_text(tf_sha256* hash, const char* text);
void tf_sha256_end(tf_sha256* hash, uint8_t digest[TF_DIGEST_BYTES]);

#endif
