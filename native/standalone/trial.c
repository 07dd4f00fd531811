// One self-test: inputs generated from seeds, the expected results, and repeated runs.
#include "trial.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "../core/threads.h"
#include "alternatives.h"
#include "entry.h"
#include "model.h"
#include "numbers.h"
#include "open.h"
#include "programs.h"
#include "tensors.h"

// Returns the i-th number of SplitMix64, which does not depend on those before it.
static double uniform(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return (double)(z >> 40) * 0x1p-24;
}

static tvmflow_status no_memory(tvmflow_model* m, uint64_t bytes) {
  return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Self-test: no memory for %llu bytes.",
                 (unsigned long long)bytes);
}

static tvmflow_status set(tvmflow_model* m, uint32_t index) {
  const tf_interface* const t = &tf_inputs(m)[index];
  const uint32_t before = m->shape * tf_count_each(&m->plan, TF_TEST_INPUTS);
  const tf_test_input* const test = &m->plan.test_inputs[before + index];
  uint8_t* const data = malloc(t->bytes);
  if (!data) return no_memory(m, t->bytes);
  for (uint64_t i = 0; i < tf_elements(t); ++i)
    tf_store_number(t->dtype, data + i * tf_dtype_bytes(t->dtype),
                    test->low + (test->high - test->low) * uniform(test->seed, i));
  const tvmflow_status status = tf_set_packed(m, index, data);
  free(data);
  return status;
}

static tvmflow_status compare(tvmflow_model* m, const tf_test_output* test, tvmflow_test* result) {
  const tf_interface* const t = &m->plan.outputs[test->output];
  const uint32_t index = test->output % tf_count_each(&m->plan, TF_OUTPUTS);
  uint8_t* const data = malloc(t->bytes);
  if (!data) return no_memory(m, t->bytes);
  const tvmflow_status status = tf_do_get_output(m, index, (tvmflow_dtype)t->dtype, data, t->bytes);
  for (uint32_t i = 0; !status && i < test->count; ++i) {
    const double expected = m->plan.test_values[test->first_value + i];
    // The element is undefined.
    if (isnan(expected)) continue;
    const uint8_t* const at = data + i * test->stride * tf_dtype_bytes(t->dtype);
    const double error = tf_error(tf_load_number(t->dtype, at), expected);
    const double used = tf_tolerance_used(error, test->atol + test->rtol * fabs(expected));
    if (error > result->largest_error) result->largest_error = error;
    if (used > result->tolerance_used) result->tolerance_used = used;
    ++result->compared;
  }
  free(data);
  return status;
}

tvmflow_status tf_set_test_inputs(tvmflow_model* m) {
  tvmflow_status status = TVMFLOW_OK;
  const uint32_t inputs = tf_count_each(&m->plan, TF_TEST_INPUTS);
  for (uint32_t i = 0; !status && i < inputs; ++i) status = set(m, i);
  return status;
}

static uint32_t replaced_functions(const tf_trial* trial) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < trial->found; ++i) count += trial->findings[i].replaced;
  return count;
}

// Replaces functions whose results differ between runs.  Sets whether there was one.
static tvmflow_status replace_unsteady(tvmflow_model* m, tf_trial* trial, bool* replaced) {
  const uint32_t before = replaced_functions(trial);
  const tvmflow_status status =
      tf_count(&m->plan, TF_TEST_TENSORS) ? tf_find_unsteady(m, trial) : TVMFLOW_OK;
  *replaced = replaced_functions(trial) != before;
  return status;
}

// Runs the network, and compares its outputs.  Where they are wrong although each function was
// right, kernels are enqueued one by one from now on, or one of them is unsteady.
static tvmflow_status test_outputs(tvmflow_model* m, tf_trial* trial) {
  const tvmflow_test before = trial->result;
  for (bool again = true; again;) {
    tvmflow_status status = tf_do_run(m);
    for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_TEST_OUTPUTS); ++i) {
      const tf_test_output* const test = &m->plan.test_outputs[i];
      if (test->output / tf_count_each(&m->plan, TF_OUTPUTS) == m->shape)
        status = compare(m, test, &trial->result);
    }
    if (status || trial->result.tolerance_used <= 1) return status;
    if (m->recording) {
      trial->without_recording = true;
      m->flags |= TVMFLOW_NO_COMMAND_BUFFER;
      m->recording_is_old = true;
    } else {
      status = replace_unsteady(m, trial, &again);
      if (status) return status;
    }
    if (again) trial->result = before;
  }
  return TVMFLOW_OK;
}

static tvmflow_status hash_outputs(tvmflow_model* m, uint64_t* found) {
  *found = 0;
  for (uint32_t i = 0; i < tf_count_each(&m->plan, TF_OUTPUTS); ++i) {
    const tf_interface* const t = &tf_outputs(m)[i];
    uint8_t* const data = malloc(t->bytes);
    if (!data) return no_memory(m, t->bytes);
    const tvmflow_status status = tf_do_get_output(m, i, (tvmflow_dtype)t->dtype, data, t->bytes);
    if (!status) *found = *found * 31 + tf_checksum_of(data, t->bytes);
    free(data);
    if (status) return status;
  }
  return TVMFLOW_OK;
}

// Returns whether no further run begins.
static bool has_ended(const tf_trial* trial) {
  const uint64_t budget = (uint64_t)trial->options.budget_ms * 1000000u;
  return tf_trial_stopped(trial) || (budget && tf_nanoseconds() - trial->begin >= budget);
}

// Repeats runs until the outputs of one differ from those of the last comparison.
static tvmflow_status repeat(tvmflow_model* m, tf_trial* trial, bool* differ) {
  uint64_t first = 0, other = 0;
  *differ = false;
  tvmflow_status status = hash_outputs(m, &first);
  for (uint32_t i = 0; !status && !*differ && i < trial->options.runs; ++i) {
    if (has_ended(trial)) break;
    if (i == trial->options.runs / 2 && trial->options.pause_ms) {
      const struct timespec pause = {trial->options.pause_ms / 1000,
                                     (long)(trial->options.pause_ms % 1000) * 1000000};
      (void)nanosleep(&pause, NULL);
    }
    status = tf_do_run(m);
    if (!status) status = hash_outputs(m, &other);
    *differ = other != first;
    ++trial->runs;
  }
  return status;
}

// Tests the chosen shape.
static tvmflow_status test_shape(tvmflow_model* m, tf_trial* trial) {
  tvmflow_status status = tf_set_test_inputs(m);
  if (!status) status = tf_test_kernels(m, trial);
  if (!status) status = test_outputs(m, trial);
  for (bool replaced = true; !status && replaced;) {
    bool differ = false;
    status = repeat(m, trial, &differ);
    if (status || !differ) break;
    ++trial->different;
    status = replace_unsteady(m, trial, &replaced);
    if (!replaced) ++trial->unlocated;
    if (!status) status = tf_do_run(m);
  }
  return status;
}

tvmflow_status tf_try(tvmflow_model* m, tf_trial* trial) {
  const uint32_t chosen = m->shape;
  tvmflow_status status = TVMFLOW_OK;
  trial->begin = tf_nanoseconds();
  trial->findings = calloc(tf_count(&m->plan, TF_TEST_TENSORS) + 1u, sizeof(tf_finding));
  if (!trial->findings) status = no_memory(m, sizeof(tf_finding));
  for (uint32_t i = 1; !status && i <= tf_count(&m->plan, TF_SHAPES); ++i) {
    // The chosen shape comes last, so that it stays chosen.
    status = tf_do_choose_shape(m, (chosen + i) % tf_count(&m->plan, TF_SHAPES));
    if (!status) status = test_shape(m, trial);
  }
  tf_sources_forget(m);
  if (!status && tf_trial_stopped(trial)) status = TVMFLOW_ERROR_CANCELLED;
  if (!status) status = tf_report(m, trial);
  const bool changed = trial->without_recording || replaced_functions(trial);
  free(trial->findings);
  trial->findings = NULL;
  if (status) return status;
  const bool right = trial->result.tolerance_used <= 1 && !trial->unlocated;
  m->tested |= right;
  if (right && changed) tf_choice_store(m, false);
  if (trial->result.tolerance_used > 1)
    return tf_fail(&m->message, TVMFLOW_ERROR_WRONG,
                   "Self-test: of %llu results the worst uses %g of its tolerance; the largest "
                   "error is %g. Remedy: update the device's driver, or use another device.",
                   (unsigned long long)trial->result.compared, trial->result.tolerance_used,
                   trial->result.largest_error);
  if (trial->unlocated)
    return tf_fail(&m->message, TVMFLOW_ERROR_WRONG,
                   "Self-test: results of the same input differ in %u of %u runs. Remedy: update "
                   "the device's driver, or use another device.",
                   trial->different, trial->runs);
  return TVMFLOW_OK;
}
