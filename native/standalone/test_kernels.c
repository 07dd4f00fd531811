// The self-test of single functions: their results, and whether these are the same each time.
#include <math.h>
#include <stdlib.h>

#include "alternatives.h"
#include "numbers.h"
#include "run.h"
#include "tensors.h"
#include "trial.h"

// Runs of each function when one of them must be unsteady.
enum { REPEATS = 64 };

// The test tensors that a call completes.
typedef struct tested {
  uint32_t first;
  uint32_t count;
} tested;

static size_t bytes_of(const tvmflow_model* m, const tf_test_tensor* t) {
  const size_t element = t->half ? 2 : 4;
  if (m->plan.allocations[t->allocation].kind == TF_IMAGE)
    return (size_t)t->size[0] * t->size[1] * 4 * element;
  return ((size_t)(t->count - 1) * t->stride + 1) * element;
}

// Reads the elements of a tensor up to the last one that is compared; the caller frees them.
static tvmflow_status read(tvmflow_model* m, const tf_test_tensor* t, uint8_t** data) {
  const bool is_image = m->plan.allocations[t->allocation].kind == TF_IMAGE;
  const tf_region part = {.size = {t->size[0], t->size[1], 1}};
  const size_t bytes = bytes_of(m, t);
  *data = malloc(bytes);
  if (!*data)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Self-test: no memory for %zu bytes.", bytes);
  const cl_int code =
      tf_transfer(m, m->bound[t->allocation], is_image ? &part : NULL, *data, bytes, false);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  free(*data);
  *data = NULL;
  return tf_device_failed(
      m, tf_fail_opencl(&m->message, code, "Self-test: reading a tensor of device '%s'",
                        m->device.name));
}

// Returns the largest ratio of an error to its tolerance.
static double compare(const tvmflow_model* m, const tf_test_tensor* t, const uint8_t* data) {
  double largest = 0;
  for (uint32_t i = 0; i < t->count; ++i) {
    const double expected = (double)m->plan.tensor_values[t->first_value + i];
    // The element is undefined.
    if (isnan(expected)) continue;
    const uint8_t* const at = data + (size_t)i * t->stride * (t->half ? 2 : 4);
    const double got = tf_load_number(t->half ? TVMFLOW_FLOAT16 : TVMFLOW_FLOAT32, at);
    const double tolerance = (double)t->atol + (double)t->rtol * fabs(expected);
    const double used = tf_tolerance_used(tf_error(got, expected), tolerance);
    if (used > largest) largest = used;
  }
  return largest;
}

// Compares the tensors of a call.  Sets the worst of them and how much of its tolerance it uses.
static tvmflow_status check(tvmflow_model* m, tested tensors, uint32_t* worst, double* used) {
  *used = 0;
  for (uint32_t i = tensors.first; i < tensors.first + tensors.count; ++i) {
    const tf_test_tensor* const t = &m->plan.test_tensors[i];
    uint8_t* data;
    const tvmflow_status status = read(m, t, &data);
    if (status) return status;
    const double ratio = compare(m, t, data);
    free(data);
    if (i == tensors.first || ratio > *used) {
      *used = ratio;
      *worst = i;
    }
  }
  return TVMFLOW_OK;
}

static tvmflow_status run(tvmflow_model* m, tf_call call) {
  const tf_call used = tf_call_used(m, call);
  return tf_run_launches(m, used.first, used.count);
}

// Returns whether a call has an alternative that is not used yet.
static bool is_replaceable(const tvmflow_model* m, tf_call call) {
  return call.alternative != TF_NONE && !m->used[call.alternative];
}

static tvmflow_status check_values(tvmflow_model* m, tf_trial* trial, tf_call call,
                                   tested tensors) {
  tf_finding f = {0};
  tvmflow_status status = run(m, call);
  if (!status) status = check(m, tensors, &f.tensor, &f.tolerance_used);
  if (status || f.tolerance_used <= 1) return status;
  if (is_replaceable(m, call)) {
    uint32_t worst;
    double used = 0;
    f.replaced = true;
    status = tf_use_alternative(m, call.alternative);
    if (!status) status = run(m, call);
    if (!status) status = check(m, tensors, &worst, &used);
    f.right = used <= 1;
  }
  trial->findings[trial->found++] = f;
  return status;
}

// Runs a call and hashes its tensors.
static tvmflow_status hash(tvmflow_model* m, tf_call call, tested tensors, uint64_t* found) {
  tvmflow_status status = run(m, call);
  *found = 0;
  for (uint32_t i = tensors.first; !status && i < tensors.first + tensors.count; ++i) {
    const tf_test_tensor* const t = &m->plan.test_tensors[i];
    uint8_t* data;
    status = read(m, t, &data);
    if (status) break;
    *found = *found * 31 + tf_checksum_of(data, bytes_of(m, t));
    free(data);
  }
  return status;
}

// Sets whether the results of a call differ in some of its runs.
static tvmflow_status repeat(tvmflow_model* m, tf_call call, tested tensors, bool* differs) {
  uint64_t first = 0, other = 0;
  *differs = false;
  tvmflow_status status = hash(m, call, tensors, &first);
  for (uint32_t i = 0; !status && !*differs && i < REPEATS; ++i) {
    status = hash(m, call, tensors, &other);
    *differs = other != first;
  }
  return status;
}

static tvmflow_status check_steadiness(tvmflow_model* m, tf_trial* trial, tf_call call,
                                       tested tensors) {
  bool differs = false;
  tvmflow_status status = repeat(m, call, tensors, &differs);
  if (status || !differs) return status;
  tf_finding f = {.tensor = tensors.first, .differs = true};
  if (is_replaceable(m, call)) {
    f.replaced = true;
    status = tf_use_alternative(m, call.alternative);
    if (!status) status = repeat(m, call, tensors, &differs);
    f.right = !differs;
  }
  trial->findings[trial->found++] = f;
  return status;
}

typedef tvmflow_status (*test)(tvmflow_model*, tf_trial*, tf_call, tested);

static tvmflow_status each_call(tvmflow_model* m, tf_trial* trial, test what) {
  const tf_shape shape = tf_launches(m);
  const uint32_t all = tf_count(&m->plan, TF_TEST_TENSORS),
                 end = shape.first_launch + shape.launches;
  tvmflow_status status = tf_check_inputs(m);
  uint32_t next = 0;
  while (next < all && m->plan.test_tensors[next].launch < shape.first_launch) ++next;
  for (uint32_t i = shape.first_launch; !status && i < end;) {
    if (tf_trial_stopped(trial)) break;
    const tf_call call = tf_call_at(m, i);
    i += call.count;
    tested tensors = {next, 0};
    while (next < all && m->plan.test_tensors[next].launch < i) ++next;
    tensors.count = next - tensors.first;
    // A function that failed once before is not listed twice.
    status = tensors.count && trial->found < all ? what(m, trial, call, tensors) : run(m, call);
  }
  return status;
}

tvmflow_status tf_test_kernels(tvmflow_model* m, tf_trial* trial) {
  if (!tf_count(&m->plan, TF_TEST_TENSORS)) return TVMFLOW_OK;
  return each_call(m, trial, check_values);
}

tvmflow_status tf_find_unsteady(tvmflow_model* m, tf_trial* trial) {
  return each_call(m, trial, check_steadiness);
}
