// Conversion to and from half precision.
#pragma once

#include <stdint.h>
#include <string.h>

// Returns the bits of `value` in IEEE half precision, rounded to nearest even.
static inline uint16_t ToHalf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t biased = (bits >> 23) & 0xFF;
  uint32_t mantissa = bits & 0x7FFFFF;
  if (biased == 0xFF)  // infinity, or NaN with a payload bit that stays set
    return (uint16_t)(sign | 0x7C00 | (mantissa ? 0x200 : 0));
  const int32_t exponent = (int32_t)biased - 127 + 15;
  if (exponent >= 31) return (uint16_t)(sign | 0x7C00);
  uint32_t shift = 13;
  uint32_t base = (uint32_t)exponent << 10;
  if (exponent <= 0) {  // subnormal, or zero
    if (exponent < -10) return (uint16_t)(sign);
    mantissa |= 0x800000;
    shift = (uint32_t)(14 - exponent);
    base = 0;
  }
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  const uint32_t up = rest > tie || (rest == tie && (kept & 1)) ? 1 : 0;
  // A carry out of the mantissa correctly increments the exponent, up to infinity.
  return (uint16_t)(sign | (base + kept + up));
}

// Returns the exact value of a number in IEEE half precision.
static inline float FromHalf(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1F;
  const uint32_t mantissa = half & 0x3FF;
  if (exponent == 0) {  // subnormal, or zero: a multiple of 2^-24
    const float magnitude = (float)mantissa * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t biased = exponent == 31 ? 0xFF : exponent - 15 + 127;
  const uint32_t bits = sign | (biased << 23) | (mantissa << 13);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
