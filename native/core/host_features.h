// Features of the processor that this process runs on.  A standalone library cannot use a
// compiler's run-time library for that.
#pragma once

#include <stdint.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Sets words that differ between x86 processors with different instruction sets; zeros on others.
static inline void HostFeatures(uint32_t words[6]) {
  for (unsigned i = 0; i < 6; ++i) words[i] = 0;
#if defined(__x86_64__)
  // Leaf 1: family and features up to AVX.  Leaf 7: features since AVX2.
  uint32_t not_features = 0;  // contains the number of the executing core
  __get_cpuid(1, &words[0], &not_features, &words[1], &words[2]);
  __get_cpuid_count(7, 0, &not_features, &words[3], &words[4], &words[5]);
#endif
}

// Returns whether the system saves vector registers, given as a mask of XCR0's bits.
static inline int HostSaves(uint32_t vectors) {
#if defined(__x86_64__)
  uint32_t words[6];
  HostFeatures(words);
  if (!(words[1] >> 27 & 1)) return 0;  // xgetbv
  uint32_t saved = 0;
  uint32_t high = 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  (void)high;
  return (saved & vectors) == vectors;
#else
  return vectors == 0;
#endif
}

// Masks of XCR0 for registers of up to 256 and 512 bits, the latter with mask registers.
enum { HOST_VECTORS_256 = 0x06, HOST_VECTORS_512 = 0xE6 };

// Returns whether the processor has vpdpbusd on vectors of 512 bits, and the system saves these.
static inline int HostHasAvx512Vnni(void) {
  uint32_t words[6];
  HostFeatures(words);
  return HostSaves(HOST_VECTORS_512) && (words[3] >> 16 & 1) && (words[4] >> 11 & 1);
}
