// All of Android's processors are little-endian.
#pragma once
#include <stdint.h>

#define htons(value) __builtin_bswap16(value)
#define ntohs(value) __builtin_bswap16(value)
#define ntohl(value) __builtin_bswap32(value)

int inet_pton(int family, const char* text, void* address);
