// The input that the library carries as a seed, and the results that belong to it.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../opencl/half.h"
#include "model.h"

// SplitMix64: the i-th number does not depend on those before it.
static double uniform(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return (double)(z >> 40) * 0x1p-24;
}

static uint16_t to_bfloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bfloat(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof(result));
  return result;
}

// Rounded down; the plan's limits are far from those of the type.
static int64_t whole(double value) { return (int64_t)floor(value); }

// One row for each dtype: its type in C, from and to a double.
#define TF_DTYPES(ROW)                                                                             \
  ROW(TVMFLOW_FLOAT32, float, (float)value, stored)                                                \
  ROW(TVMFLOW_FLOAT16, uint16_t, ToHalf((float)value), FromHalf(stored))                           \
  ROW(TVMFLOW_FLOAT64, double, value, stored)                                                      \
  ROW(TVMFLOW_BFLOAT16, uint16_t, to_bfloat((float)value), from_bfloat(stored))                    \
  ROW(TVMFLOW_INT8, int8_t, (int8_t)whole(value), stored)                                          \
  ROW(TVMFLOW_INT16, int16_t, (int16_t)whole(value), stored)                                       \
  ROW(TVMFLOW_INT32, int32_t, (int32_t)whole(value), stored)                                       \
  ROW(TVMFLOW_INT64, int64_t, whole(value), (double)stored)                                        \
  ROW(TVMFLOW_UINT8, uint8_t, (uint8_t)whole(value), stored)                                       \
  ROW(TVMFLOW_UINT16, uint16_t, (uint16_t)whole(value), stored)                                    \
  ROW(TVMFLOW_UINT32, uint32_t, (uint32_t)whole(value), stored)                                    \
  ROW(TVMFLOW_UINT64, uint64_t, (uint64_t)whole(value), (double)stored)                            \
  ROW(TVMFLOW_BOOL, uint8_t, whole(value) != 0, stored)

static void store(uint32_t dtype, uint8_t* data, uint64_t i, double value) {
  switch (dtype) {
#define TF_STORE(name, type, to, from)                                                             \
  case name: {                                                                                     \
    const type stored = to;                                                                        \
    memcpy(data + i * sizeof(type), &stored, sizeof(type));                                        \
    break;                                                                                         \
  }
    TF_DTYPES(TF_STORE)
#undef TF_STORE
    default:
      break;
  }
}

static double load(uint32_t dtype, const uint8_t* data, uint64_t i) {
  switch (dtype) {
#define TF_LOAD(name, type, to, from)                                                              \
  case name: {                                                                                     \
    type stored;                                                                                   \
    memcpy(&stored, data + i * sizeof(type), sizeof(type));                                        \
    return from;                                                                                   \
  }
    TF_DTYPES(TF_LOAD)
#undef TF_LOAD
    default:
      return NAN;
  }
}

static tvmflow_status no_memory(tvmflow_model* m, uint64_t bytes) {
  return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Self-test: no memory for %llu bytes.",
                 (unsigned long long)bytes);
}

static tvmflow_status set(tvmflow_model* m, uint32_t index) {
  const tf_interface* const t = &m->plan.inputs[index];
  const tf_test_input* const test = &m->plan.test_inputs[index];
  uint8_t* const data = malloc(t->bytes);
  if (!data) return no_memory(m, t->bytes);
  for (uint64_t i = 0; i < tf_elements(t); ++i)
    store(t->dtype, data, i, test->low + (test->high - test->low) * uniform(test->seed, i));
  const tvmflow_status status =
      tvmflow_set_input(m, index, (tvmflow_dtype)t->dtype, data, t->bytes);
  free(data);
  return status;
}

static tvmflow_status compare(tvmflow_model* m, const tf_test_output* test, tvmflow_test* result) {
  const tf_interface* const t = &m->plan.outputs[test->output];
  uint8_t* const data = malloc(t->bytes);
  if (!data) return no_memory(m, t->bytes);
  const tvmflow_status status =
      tvmflow_get_output(m, test->output, (tvmflow_dtype)t->dtype, data, t->bytes);
  for (uint32_t i = 0; !status && i < test->count; ++i) {
    const double expected = m->plan.test_values[test->first_value + i];
    // An element that may be anything.
    if (isnan(expected)) continue;
    const double got = load(t->dtype, data, i * test->stride);
    // Infinities are right when they are the same.
    double error = got == expected ? 0 : fabs(got - expected);
    if (isnan(error)) error = INFINITY;
    const double tolerance = test->atol + test->rtol * fabs(expected);
    const double used = error > 0 ? error / tolerance : 0;
    if (error > result->largest_error) result->largest_error = error;
    if (used > result->tolerance_used || isnan(used))
      result->tolerance_used = isnan(used) ? INFINITY : used;
    ++result->compared;
  }
  free(data);
  return status;
}

tvmflow_status tvmflow_self_test(tvmflow_model* m, tvmflow_test* result) {
  tvmflow_status status = tf_check_idle(m, "Self-test");
  if (status) return status;
  if (!tf_count(&m->plan, TF_TEST_OUTPUTS))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Self-test: the library carries none. Remedy: compile the network with one.");
  tvmflow_test found = {0};
  for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_TEST_INPUTS); ++i) status = set(m, i);
  if (!status) status = tvmflow_run(m);
  for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_TEST_OUTPUTS); ++i)
    status = compare(m, &m->plan.test_outputs[i], &found);
  if (status) return status;
  if (result) *result = found;
  if (found.tolerance_used <= 1) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_WRONG,
                 "Self-test: of %llu results the worst uses %g of its tolerance; the largest "
                 "error is %g. Remedy: update the device's driver, or use another device.",
                 (unsigned long long)found.compared, found.tolerance_used, found.largest_error);
}
