// SHA-256 (FIPS 180-4).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct Sha256State {
  uint32_t words[8];
  uint8_t pending[64];
  size_t pending_bytes;
  uint64_t bytes;
} Sha256State;

static inline uint32_t Sha256Rotate(uint32_t word, unsigned bits) {
  return word >> bits | word << (32 - bits);
}

static inline void Sha256Block(uint32_t state[8], const uint8_t* block) {
  // First 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static const uint32_t round[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) {
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
           (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
  }
  for (unsigned i = 16; i < 64; ++i) {
    const uint32_t x = w[i - 15];
    const uint32_t y = w[i - 2];
    w[i] = w[i - 16] + (Sha256Rotate(x, 7) ^ Sha256Rotate(x, 18) ^ (x >> 3)) + w[i - 7] +
           (Sha256Rotate(y, 17) ^ Sha256Rotate(y, 19) ^ (y >> 10));
  }
  uint32_t v[8];  // a to h
  for (unsigned i = 0; i < 8; ++i) v[i] = state[i];
  for (unsigned i = 0; i < 64; ++i) {
    const uint32_t sum1 = Sha256Rotate(v[4], 6) ^ Sha256Rotate(v[4], 11) ^ Sha256Rotate(v[4], 25);
    const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t t1 = v[7] + sum1 + choice + round[i] + w[i];
    const uint32_t sum0 = Sha256Rotate(v[0], 2) ^ Sha256Rotate(v[0], 13) ^ Sha256Rotate(v[0], 22);
    const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    for (unsigned j = 7; j > 0; --j) v[j] = v[j - 1];
    v[4] += t1;
    v[0] = t1 + sum0 + majority;
  }
  for (unsigned i = 0; i < 8; ++i) state[i] += v[i];
}

static inline void Sha256Begin(Sha256State* hash) {
  static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memset(hash, 0, sizeof(*hash));
  memcpy(hash->words, initial, sizeof(initial));
}

static inline void Sha256Add(Sha256State* hash, const void* data, size_t bytes) {
  const uint8_t* input = (const uint8_t*)data;
  hash->bytes += bytes;
  while (bytes > 0) {
    if (hash->pending_bytes == 0 && bytes >= 64) {
      Sha256Block(hash->words, input);
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
      Sha256Block(hash->words, hash->pending);
      hash->pending_bytes = 0;
    }
  }
}

static inline void Sha256End(Sha256State* hash, uint8_t digest[32]) {
  static const uint8_t padding[64] = {0x80};
  const uint64_t bits = hash->bytes * 8;
  const size_t used = hash->pending_bytes;
  Sha256Add(hash, padding, (used < 56 ? 56 : 120) - used);
  uint8_t length[8];
  for (unsigned i = 0; i < 8; ++i) length[i] = (uint8_t)(bits >> (56 - 8 * i));
  Sha256Add(hash, length, sizeof(length));
  for (unsigned i = 0; i < 32; ++i) digest[i] = (uint8_t)(hash->words[i / 4] >> (24 - 8 * (i % 4)));
}

static inline void Sha256Digest(const void* data, size_t bytes, uint8_t digest[32]) {
  Sha256State hash;
  Sha256Begin(&hash);
  Sha256Add(&hash, data, bytes);
  Sha256End(&hash, digest);
}
