#include "numbers.h"

#include <math.h>
#include <string.h>

#include "../core/half.h"
#include "plan.h"

void tf_store_number(uint32_t dtype, uint8_t* at, double value) {
  const float single = (float)value;
  // All hosts are little-endian, so the first bytes are the number in fewer bits.
  uint64_t bits = 0;
  if (dtype == TVMFLOW_FLOAT64) {
    memcpy(&bits, &value, sizeof(value));
  } else if (dtype == TVMFLOW_FLOAT16) {
    bits = ToHalf(single);
  } else if (dtype == TVMFLOW_FLOAT32 || dtype == TVMFLOW_BFLOAT16) {
    memcpy(&bits, &single, sizeof(single));
    // The upper half of a float, rounded to nearest even.
    if (dtype == TVMFLOW_BFLOAT16) bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  } else {
    bits = (uint64_t)(int64_t)floor(value);
    if (dtype == TVMFLOW_BOOL) bits = bits != 0;
  }
  memcpy(at, &bits, tf_dtype_bytes(dtype));
}

double tf_load_number(uint32_t dtype, const uint8_t* at) {
  uint64_t bits = 0;
  double value;
  float single;
  memcpy(&bits, at, tf_dtype_bytes(dtype));
  if (dtype == TVMFLOW_FLOAT16) return FromHalf((uint16_t)bits);
  if (dtype == TVMFLOW_BFLOAT16) bits <<= 16;
  memcpy(&value, &bits, sizeof(value));
  memcpy(&single, &bits, sizeof(single));
  if (dtype == TVMFLOW_FLOAT64) return value;
  if (dtype < TVMFLOW_INT8) return single;
  if (dtype >= TVMFLOW_UINT8) return (double)bits;
  const uint32_t unused = 64 - 8 * tf_dtype_bytes(dtype);
  return (double)((int64_t)(bits << unused) >> unused);
}

double tf_error(double got, double expected) {
  const double error = got == expected ? 0 : fabs(got - expected);
  return isnan(error) ? INFINITY : error;
}

double tf_tolerance_used(double error, double tolerance) {
  const double used = error > 0 ? error / tolerance : 0;
  return isnan(used) ? INFINITY : used;
}
