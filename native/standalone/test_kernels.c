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
  const size_t element = tf_dtype_bytes(t->dtype);
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
    const uint8_t* const at = data + (size_t)i * t->stride * tf_dtype_bytes(t->dtype);
    const double got = tf_load_number(t->dtype, at);
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

// Sets how far the tensors of a part are from what they should be: more than 1 is wrong.
typedef tvmflow_status (*measure)(tvmflow_model* m, tf_part part, tested tensors, uint32_t* worst,
                                  double* wrong);

static tvmflow_status measure_values(tvmflow_model* m, tf_part part, tested tensors,
                                     uint32_t* worst, double* wrong) {
  const tvmflow_status status = tf_run_range(m, part.first, part.count);
  return status ? status : check(m, tensors, worst, wrong);
}

// Runs a part and hashes its tensors.
static tvmflow_status hash(tvmflow_model* m, tf_part part, tested tensors, uint64_t* found) {
  tvmflow_status status = tf_run_range(m, part.first, part.count);
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

static tvmflow_status measure_steadiness(tvmflow_model* m, tf_part part, tested tensors,
                                         uint32_t* worst, double* wrong) {
  uint64_t first = 0, other = 0;
  *worst = tensors.first;
  *wrong = 0;
  tvmflow_status status = hash(m, part, tensors, &first);
  for (uint32_t i = 0; !status && *wrong <= 1 && i < REPEATS; ++i) {
    status = hash(m, part, tensors, &other);
    if (other != first) *wrong = INFINITY;
  }
  return status;
}

// Measures a part, and replaces it as long as it is wrong and there is something else.  What it
// ran is what is in use afterwards.
static tvmflow_status try_part(tvmflow_model* m, tf_trial* trial, measure how, tf_part part,
                               tested tensors) {
  tf_finding f = {.differs = how == measure_steadiness, .alternative = TF_NONE};
  bool own_wrong = false;
  tvmflow_status status = how(m, part, tensors, &f.tensor, &f.tolerance_used);
  if (status || f.tolerance_used <= 1) return status;
  while (!f.right) {
    own_wrong |= part.alternative == TF_NONE || m->avoided & TF_USE_SAFE_KERNELS;
    if (!tf_part_replace(m, part, own_wrong, &f.alternative, &status)) break;
    if (status) return status;
    f.replaced = true;
    part.alternative = f.alternative;
    uint32_t worst;
    double wrong = 0;
    status = how(m, part, tensors, &worst, &wrong);
    if (status) return status;
    f.right = wrong <= 1;
    // The calls that a wider alternative replaced are measured one by one.
    if (tf_part_at(m, part.first).count != part.count) break;
  }
  trial->findings[trial->found++] = f;
  return TVMFLOW_OK;
}

static tvmflow_status each_part(tvmflow_model* m, tf_trial* trial, measure how) {
  const tf_shape shape = tf_launches(m);
  const uint32_t all = tf_count(&m->plan, TF_TEST_TENSORS),
                 end = shape.first_launch + shape.launches;
  tvmflow_status status = tf_check_inputs(m);
  uint32_t next = 0;
  for (uint32_t i = shape.first_launch; !status && i < end;) {
    if (tf_trial_stopped(trial)) break;
    const tf_part part = tf_part_at(m, i);
    const uint32_t before = next;
    // Those of inner launches may not exist when an alternative replaces several calls.
    const uint32_t last = i + part.count - 1;
    const uint32_t begin = part.alternative == TF_NONE ? i : last;
    while (next < all && m->plan.test_tensors[next].launch < begin) ++next;
    tested tensors = {next, 0};
    while (next < all && m->plan.test_tensors[next].launch <= last) ++next;
    tensors.count = next - tensors.first;
    // A function that failed once before is not listed twice.
    status = tensors.count && trial->found < all ? try_part(m, trial, how, part, tensors)
                                                 : tf_run_range(m, part.first, part.count);
    if (tf_part_at(m, i).count == part.count)
      i += part.count;
    else
      next = before;
  }
  return status;
}

tvmflow_status tf_compare_tensors(tvmflow_model* m, uint32_t first, uint32_t count, double* used) {
  const uint32_t all = tf_count(&m->plan, TF_TEST_TENSORS), last = first + count - 1;
  tested tensors = {0, 0};
  while (tensors.first < all && m->plan.test_tensors[tensors.first].launch < last) ++tensors.first;
  for (uint32_t i = tensors.first; i < all && m->plan.test_tensors[i].launch == last; ++i)
    ++tensors.count;
  *used = INFINITY;
  uint32_t worst;
  return tensors.count ? check(m, tensors, &worst, used) : TVMFLOW_OK;
}

tvmflow_status tf_test_kernels(tvmflow_model* m, tf_trial* trial) {
  if (!tf_count(&m->plan, TF_TEST_TENSORS)) return TVMFLOW_OK;
  return each_part(m, trial, measure_values);
}

tvmflow_status tf_find_unsteady(tvmflow_model* m, tf_trial* trial) {
  return each_part(m, trial, measure_steadiness);
}
