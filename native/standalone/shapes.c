// The choice among several shapes, which applies to the calls that follow.
#include <string.h>

#include "alternatives.h"
#include "entry.h"
#include "model.h"
#include "tensors.h"

uint32_t tvmflow_shape_count(const tvmflow_model* m) {
  return tf_check(m) ? 0 : tf_count(&m->plan, TF_SHAPES);
}

uint32_t tvmflow_shape(const tvmflow_model* m) { return tf_check(m) ? 0 : m->shape; }

tvmflow_status tf_do_choose_shape(tvmflow_model* m, uint32_t index) {
  tvmflow_status status = tf_check_idle(m, "Choosing a shape");
  if (status) return status;
  if (index >= tf_count(&m->plan, TF_SHAPES))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "There is no shape %u: the network has %u, counted from 0.", index,
                   tf_count(&m->plan, TF_SHAPES));
  if (index == m->shape) return TVMFLOW_OK;
  status = tf_reset_bindings(m);
  if (status) return status;
  m->shape = index;
  m->ran = false;
  memset(m->given, 0, tf_count_each(&m->plan, TF_INPUTS));
  tf_order(m);
  return TVMFLOW_OK;
}

static const tf_interface* input_of(const tvmflow_model* m, uint32_t shape, uint32_t input) {
  return &m->plan.inputs[(size_t)shape * tf_count_each(&m->plan, TF_INPUTS) + input];
}

static bool is_equal(const tf_interface* t, const int64_t* dims, uint32_t count) {
  return t->dimensions == count && (!count || !memcmp(t->shape, dims, count * sizeof(*dims)));
}

// Returns how many inputs of a shape have the same extents as now.
static uint32_t kept(const tvmflow_model* m, uint32_t shape) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < tf_count_each(&m->plan, TF_INPUTS); ++i) {
    const tf_interface* const now = input_of(m, m->shape, i);
    found += is_equal(input_of(m, shape, i), now->shape, now->dimensions);
  }
  return found;
}

// Returns the sum of the ratios of extents, each at least 1.
static double distance(const tf_interface* t, const int64_t* dims, uint32_t count) {
  if (t->dimensions != count) return 1e300;
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const double asked = dims[i] > 0 ? (double)dims[i] : 0.5;
    const double there = (double)t->shape[i];
    sum += asked > there ? asked / there : there / asked;
  }
  return sum;
}

static void append_dims(char* text, size_t bytes, const int64_t* dims, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    tf_append(text, bytes, "%s%lld", i ? ", " : "", (long long)dims[i]);
}

static tvmflow_status refuse(tvmflow_model* m, uint32_t input, const int64_t* dims,
                             uint32_t count) {
  uint32_t near = 0;
  for (uint32_t i = 1; i < tf_count(&m->plan, TF_SHAPES); ++i)
    if (distance(input_of(m, i, input), dims, count) <
        distance(input_of(m, near, input), dims, count))
      near = i;
  const tf_interface* const t = input_of(m, near, input);
  char asked[256] = "", there[256] = "";
  append_dims(asked, sizeof(asked), dims, count);
  append_dims(there, sizeof(there), t->shape, t->dimensions);
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "Input '%s': the network has %u shapes, but not [%s]; the nearest is [%s]. "
                 "Remedy: resize the data to it, or compile the network for this shape, too.",
                 m->plan.strings + t->name, tf_count(&m->plan, TF_SHAPES), asked, there);
}

tvmflow_status tf_do_set_shape(tvmflow_model* m, uint32_t input, const int64_t* dims,
                               uint32_t count) {
  const tvmflow_status status = tf_check_idle(m, "Setting a shape");
  if (status) return status;
  const uint32_t inputs = tf_count_each(&m->plan, TF_INPUTS);
  if (input >= inputs)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "There is no input %u: the network has %u, counted from 0.", input, inputs);
  if ((!dims && count) || count > TVMFLOW_MAX_DIMENSIONS)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Setting the shape of input %u: expected up to %d extents, got %u%s.", input,
                   TVMFLOW_MAX_DIMENSIONS, count, dims ? "" : " at NULL");
  uint32_t best = TF_NONE;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_SHAPES); ++i)
    if (is_equal(input_of(m, i, input), dims, count) &&
        (best == TF_NONE || kept(m, i) > kept(m, best)))
      best = i;
  return best == TF_NONE ? refuse(m, input, dims, count) : tf_do_choose_shape(m, best);
}
