// All of Android's processors are little-endian.
#pragma once
#include <stdint.h>

static inline uint16_t htons(uint16_t value) { return __builtin_bswap16(value); }
static inline uint16_t ntohs(uint16_t value) { return __builtin_bswap16(value); }
static inline uint32_t ntohl(uint32_t value) { return __builtin_bswap32(value); }

int inet_pton(int family, const char* text, void* address);
