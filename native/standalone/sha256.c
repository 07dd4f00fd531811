#include "sha256.h"

#include <string.h>

#include "../opencl/sha256_block.h"

void tf_sha256_begin(tf_sha256* hash) {
  static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memset(hash, 0, sizeof(*hash));
  memcpy(hash->state, initial, sizeof(initial));
}

void tf_sha256_add(tf_sha256* hash, const void* data, size_t bytes) {
  const uint8_t* input = data;
  hash->bytes += bytes;
  while (bytes > 0) {
    if (hash->pending_bytes == 0 && bytes >= 64) {
      Sha256Block(hash->state, input);
      input += 64;
      bytes -= 64;
      continue;
    }
    const size_t room = 64 - hash->pending_bytes;
    const size_t taken = bytes < room ? bytes : room;
    memcpy(hash->pending + hash->pending_bytes, input, taken);
    hash->pending_bytes += taken;
    input += taken;
    bytes -= taken;
    if (hash->pending_bytes == 64) {
      Sha256Block(hash->state, hash->pending);
      hash->pending_bytes = 0;
    }
  }
}

void tf_sha256_add_text(tf_sha256* hash, const char* text) {
  tf_sha256_add(hash, text, strlen(text) + 1);
}

void tf_sha256_end(tf_sha256* hash, uint8_t digest[TF_DIGEST_BYTES]) {
  const uint64_t bits = hash->bytes * 8;
  static const uint8_t padding[64] = {0x80};
  const size_t used = hash->pending_bytes;
  tf_sha256_add(hash, padding, (used < 56 ? 56 : 120) - used);
  uint8_t length[8];
  for (unsigned i = 0; i < 8; ++i) length[i] = (uint8_t)(bits >> (56 - 8 * i));
  tf_sha256_add(hash, length, sizeof(length));
  for (unsigned i = 0; i < TF_DIGEST_BYTES; ++i)
    digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}
