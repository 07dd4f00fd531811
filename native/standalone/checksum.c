// XXH64 with seed 0, after its specification (xxHash, "XXH64 algorithm description").
#include <string.h>

#include "plan.h"

static const uint64_t P1 = 0x9E3779B185EBCA87u;
static const uint64_t P2 = 0xC2B2AE3D27D4EB4Fu;
static const uint64_t P3 = 0x165667B19E3779F9u;
static const uint64_t P4 = 0x85EBCA77C2B2AE63u;
static const uint64_t P5 = 0x27D4EB2F165667C5u;

static uint64_t rotate(uint64_t value, unsigned bits) {
  return (value << bits) | (value >> (64 - bits));
}

static uint64_t word(const uint8_t* at) {
  uint64_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

static uint64_t mix(uint64_t lane, uint64_t input) { return rotate(lane + input * P2, 31) * P1; }

tf_checksum tf_checksum_begin(void) { return (tf_checksum){.lanes = {P1 + P2, P2, 0, 0u - P1}}; }

void tf_checksum_stripes(tf_checksum* sum, const uint8_t* data, size_t bytes) {
  // Local variables stay in registers.
  uint64_t a = sum->lanes[0];
  uint64_t b = sum->lanes[1];
  uint64_t c = sum->lanes[2];
  uint64_t d = sum->lanes[3];
  for (const uint8_t* at = data; at < data + bytes; at += TF_STRIPE_BYTES) {
    a = mix(a, word(at));
    b = mix(b, word(at + 8));
    c = mix(c, word(at + 16));
    d = mix(d, word(at + 24));
  }
  *sum = (tf_checksum){.lanes = {a, b, c, d}, .bytes = sum->bytes + bytes};
}

uint64_t tf_checksum_end(const tf_checksum* sum, const uint8_t* rest, size_t bytes) {
  const uint64_t* const v = sum->lanes;
  uint64_t hash = P5;
  if (sum->bytes) {
    hash = rotate(v[0], 1) + rotate(v[1], 7) + rotate(v[2], 12) + rotate(v[3], 18);
    for (unsigned i = 0; i < 4; ++i) hash = (hash ^ mix(0, v[i])) * P1 + P4;
  }
  hash += sum->bytes + bytes;
  for (; bytes >= 8; rest += 8, bytes -= 8) hash = rotate(hash ^ mix(0, word(rest)), 27) * P1 + P4;
  if (bytes >= 4) {
    uint32_t half;
    memcpy(&half, rest, sizeof(half));
    hash = rotate(hash ^ half * P1, 23) * P2 + P3;
    rest += 4;
    bytes -= 4;
  }
  for (; bytes; ++rest, --bytes) hash = rotate(hash ^ *rest * P5, 11) * P1;
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

uint64_t tf_checksum_of(const uint8_t* data, size_t bytes) {
  const size_t whole = bytes / TF_STRIPE_BYTES * TF_STRIPE_BYTES;
  tf_checksum sum = tf_checksum_begin();
  tf_checksum_stripes(&sum, data, whole);
  return tf_checksum_end(&sum, data + whole, bytes - whole);
}
