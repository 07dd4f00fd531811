// SPDX-License-Identifier: Apache-2.0
// Check, before a library is opened, that it is as `tvmflow compile --standalone` wrote it:
//
//   const char* reason = tvmflow_library_check("./libmobilenet.so");
//   if (reason == NULL) reason = tvmflow_library_open(&net, "./libmobilenet.so");
//
// This detects damage, such as a bit that a disk or a transfer has changed.  It is no signature: an
// attacker can change the digest with the library, and opening a library runs its code.
// `tvmflow_create` checks the weights.  `tvmflow/module/standalone/code_digest.py` documents the
// digest.
#ifndef TVMFLOW_CHECK_H
#define TVMFLOW_CHECK_H

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if UINTPTR_MAX > 0xFFFFFFFFu
typedef Elf64_Ehdr tvmflow_elf_header;
typedef Elf64_Phdr tvmflow_elf_segment;
#define TVMFLOW_ELF_CLASS ELFCLASS64
#else
typedef Elf32_Ehdr tvmflow_elf_header;
typedef Elf32_Phdr tvmflow_elf_segment;
#define TVMFLOW_ELF_CLASS ELFCLASS32
#endif

enum {
  TVMFLOW_MAX_SEGMENTS = 64,
  TVMFLOW_CHECK_BLOCK = 16 << 10,
  TVMFLOW_NOTE_BYTES = 20,  // of the note before the digest
  TVMFLOW_WEIGHTS_HEADER = 128,
};

static inline uint64_t tvmflow_rotate(uint64_t value, unsigned bits) {
  return (value << bits) | (value >> (64 - bits));
}

// Returns XXH64, as specified in xxHash's "XXH64 algorithm description".
static inline uint64_t tvmflow_xxh64(const unsigned char* at, size_t bytes, uint64_t seed) {
  const uint64_t p1 = 0x9E3779B185EBCA87u;
  const uint64_t p2 = 0xC2B2AE3D27D4EB4Fu;
  const uint64_t p3 = 0x165667B19E3779F9u;
  const uint64_t p4 = 0x85EBCA77C2B2AE63u;
  const uint64_t p5 = 0x27D4EB2F165667C5u;
  uint64_t lanes[4];
  uint64_t hash = seed + p5;
  uint64_t word;
  uint32_t half;
  size_t left = bytes;
  unsigned i;
  if (bytes >= 32) {
    lanes[0] = seed + p1 + p2;
    lanes[1] = seed + p2;
    lanes[2] = seed;
    lanes[3] = seed - p1;
    for (; left >= 32; left -= 32) {
      for (i = 0; i < 4; ++i, at += 8) {
        memcpy(&word, at, 8);
        lanes[i] = tvmflow_rotate(lanes[i] + word * p2, 31) * p1;
      }
    }
    hash = tvmflow_rotate(lanes[0], 1) + tvmflow_rotate(lanes[1], 7) +
           tvmflow_rotate(lanes[2], 12) + tvmflow_rotate(lanes[3], 18);
    for (i = 0; i < 4; ++i) hash = (hash ^ tvmflow_rotate(lanes[i] * p2, 31) * p1) * p1 + p4;
  }
  hash += bytes;
  for (; left >= 8; left -= 8, at += 8) {
    memcpy(&word, at, 8);
    hash = tvmflow_rotate(hash ^ tvmflow_rotate(word * p2, 31) * p1, 27) * p1 + p4;
  }
  if (left >= 4) {
    memcpy(&half, at, 4);
    hash = tvmflow_rotate(hash ^ half * p1, 23) * p2 + p3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; --left, ++at) hash = tvmflow_rotate(hash ^ *at * p5, 11) * p1;
  hash = (hash ^ (hash >> 33)) * p2;
  hash = (hash ^ (hash >> 29)) * p3;
  return hash ^ (hash >> 32);
}

// Reads bytes at an offset; returns whether the file has all of them.
static inline int tvmflow_read_at(FILE* file, uint64_t offset, void* data, size_t bytes) {
  return offset <= 0x7FFFFFFFu && fseek(file, (long)offset, SEEK_SET) == 0 &&
         fread(data, 1, bytes, file) == bytes;
}

// Continues the digest with bytes of the file; returns 0 if the file does not have them.
static inline int tvmflow_digest_range(FILE* file, uint64_t begin, uint64_t end, uint64_t* digest) {
  unsigned char block[TVMFLOW_CHECK_BLOCK];
  uint64_t at;
  for (at = begin; at < end; at += sizeof(block)) {
    const size_t bytes = end - at < sizeof(block) ? (size_t)(end - at) : sizeof(block);
    if (!tvmflow_read_at(file, at, block, bytes)) return 0;
    *digest = tvmflow_xxh64(block, bytes, *digest);
  }
  return 1;
}

// Returns the offset of the digest in the file; 0 if there is none.
static inline uint64_t tvmflow_find_digest(FILE* file, const tvmflow_elf_segment* segments,
                                           unsigned count) {
  static const unsigned char note[TVMFLOW_NOTE_BYTES] = {
      8, 0, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 't', 'v', 'm', 'f', 'l', 'o', 'w', 0};
  unsigned char found[TVMFLOW_NOTE_BYTES];
  uint64_t at;
  unsigned i;
  for (i = 0; i < count; ++i) {
    const uint64_t bytes = segments[i].p_filesz < 4096 ? segments[i].p_filesz : 4096;
    if (segments[i].p_type != PT_NOTE) continue;
    for (at = 0; at + TVMFLOW_NOTE_BYTES + 24 <= bytes; at += 4) {
      if (tvmflow_read_at(file, segments[i].p_offset + at, found, sizeof(found)) &&
          memcmp(found, note, sizeof(note)) == 0)
        return segments[i].p_offset + at + TVMFLOW_NOTE_BYTES;
    }
  }
  return 0;
}

static inline const char* tvmflow_check_file(FILE* file) {
  static const char* const damaged = "its code is not what was written: copy it again";
  static const char* const cut = "it was cut short: copy it again";
  tvmflow_elf_header header;
  tvmflow_elf_segment segments[TVMFLOW_MAX_SEGMENTS];
  uint64_t content[3];  // the digest, address and bytes of the weights
  uint64_t holes[2][2] = {{0, 0}, {0, 0}};
  uint64_t digest;
  uint64_t head;
  uint64_t slot;
  unsigned i;
  unsigned hole;
  if (!tvmflow_read_at(file, 0, &header, sizeof(header)) ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != TVMFLOW_ELF_CLASS)
    return "it is no library for this processor, or damaged";
  if (header.e_phoff != sizeof(header) || header.e_phentsize != sizeof(segments[0]) ||
      header.e_phnum > TVMFLOW_MAX_SEGMENTS)
    return damaged;
  head = sizeof(header) + header.e_phnum * sizeof(segments[0]);
  if (!tvmflow_read_at(file, sizeof(header), segments, header.e_phnum * sizeof(segments[0])))
    return cut;
  slot = tvmflow_find_digest(file, segments, header.e_phnum);
  if (slot == 0 || !tvmflow_read_at(file, slot, content, sizeof(content)) || content[0] == 0)
    return "it has no digest: it is damaged, or was not written by `tvmflow compile --standalone`";
  holes[0][0] = slot;
  holes[0][1] = slot + sizeof(content[0]);
  for (i = 0; i < header.e_phnum; ++i) {
    const tvmflow_elf_segment* const load = &segments[i];
    if (load->p_type != PT_LOAD || content[2] <= TVMFLOW_WEIGHTS_HEADER ||
        content[1] < load->p_vaddr || content[1] - load->p_vaddr >= load->p_filesz)
      continue;
    holes[1][0] = load->p_offset + (content[1] - load->p_vaddr) + TVMFLOW_WEIGHTS_HEADER;
    holes[1][1] = holes[1][0] + (content[2] - TVMFLOW_WEIGHTS_HEADER);
  }
  // Stripping a library may change these fields.
  header.e_shoff = 0;
  header.e_shentsize = 0;
  header.e_shnum = 0;
  header.e_shstrndx = 0;
  digest = tvmflow_xxh64((const unsigned char*)&header, sizeof(header), 0);
  for (i = 0; i < header.e_phnum; ++i)
    digest = tvmflow_xxh64((const unsigned char*)&segments[i], sizeof(segments[i]), digest);
  for (i = 0; i < header.e_phnum; ++i) {
    uint64_t at = segments[i].p_offset < head ? head : segments[i].p_offset;
    const uint64_t end = (uint64_t)segments[i].p_offset + segments[i].p_filesz;
    if (segments[i].p_type != PT_LOAD) continue;
    // The weights come after the digest.
    for (hole = 0; hole < 2; ++hole) {
      if (holes[hole][0] < at || holes[hole][0] >= end) continue;
      if (!tvmflow_digest_range(file, at, holes[hole][0], &digest)) return cut;
      at = holes[hole][1];
    }
    if (!tvmflow_digest_range(file, at, end, &digest)) return cut;
  }
  return digest == content[0] ? NULL : damaged;
}

// Returns NULL, or the reason not to open the library at a path.
static inline const char* tvmflow_library_check(const char* path) {
  FILE* const file = fopen(path, "rb");
  const char* reason;
  if (file == NULL) return "it cannot be read";
  reason = tvmflow_check_file(file);
  fclose(file);
  return reason;
}

#endif
