// The file next to the library with binaries for several devices, in the format of tuning journals
// (docs/journal.md and docs/standalone.md).
#include <string.h>
#include <sys/mman.h>

#include "cache.h"
#include "weights.h"

static const uint8_t signature[8] = {0x89, 'T', 'V', 'J', '\r', '\n', 0x1A, '\n'};
static const uint8_t mark[2] = {0xD7, 0x4A};
enum { HEADER_BYTES = 16, FRAME_BYTES = 10, KEY_BYTES = 32, PROGRAM = 6, MAX_PATH = 4096 };

static uint32_t number(const uint8_t* at) {
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t crc32(uint32_t crc, const uint8_t* data, size_t bytes) {
  // Remainders of the polynomial 0xEDB88320, for four bits at a time.
  static const uint32_t table[16] = {0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC,
                                     0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
                                     0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
                                     0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C};
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    crc = crc >> 4 ^ table[crc & 15];
    crc = crc >> 4 ^ table[crc & 15];
  }
  return ~crc;
}

void tf_shipped_open(tf_cache* cache) {
  char path[MAX_PATH];
  const uint8_t* data;
  size_t bytes;
  const char* wrong;
  if (!tf_library_path(path, sizeof(path), ".programs") ||
      tf_map_file(path, HEADER_BYTES, &data, &bytes, &wrong))
    return;
  // Only this major version is understood.
  if (memcmp(data, signature, sizeof(signature)) || data[8] != 1 || data[9] != 0 ||
      number(data + 12) != crc32(0, data, 12)) {
    munmap((void*)(uintptr_t)data, bytes);
    return;
  }
  cache->shipped = data;
  cache->shipped_bytes = bytes;
}

const uint8_t* tf_shipped_find(const tf_cache* cache, const uint8_t key[32], size_t* bytes) {
  const uint8_t* const data = cache->shipped;
  const size_t end = data ? cache->shipped_bytes : 0;
  for (size_t at = HEADER_BYTES; at + FRAME_BYTES < end;) {
    const size_t room = end - at - FRAME_BYTES;
    const uint32_t kind = number(data + at + 2);
    const size_t length = kind & 0xFFFFFF;
    const uint8_t* const payload = data + at + FRAME_BYTES;
    if (memcmp(data + at, mark, sizeof(mark)) || length > room) {
      ++at;  // damaged, or a torn tail: a whole frame may follow
      continue;
    }
    // The key, the length of a description for people, the description, and the binary.
    const uint64_t begin =
        length > KEY_BYTES + 4 ? KEY_BYTES + 4 + (uint64_t)number(payload + KEY_BYTES) : length;
    if (kind >> 24 == PROGRAM && begin < length && !memcmp(payload, key, KEY_BYTES)) {
      uint8_t offset[8];
      for (int i = 0; i < 8; ++i) offset[i] = (uint8_t)((uint64_t)at >> 8 * i);
      const uint32_t crc = crc32(crc32(0, offset, 8), data + at + 2, 4);
      if (crc32(crc, payload, length) == number(data + at + 6)) {
        *bytes = length - (size_t)begin;
        return payload + begin;
      }
    }
    // Only the frame with the key is checked.  A damaged length leads into the middle of another
    // frame, where no mark follows: then the next mark is searched for.
    const size_t next = at + FRAME_BYTES + length;
    const bool whole = next == end || (next + 2 <= end && !memcmp(data + next, mark, 2));
    at = whole ? next : at + 1;
  }
  return NULL;
}
