#include "alternatives.h"

#include <stdlib.h>
#include <string.h>

#include "programs.h"
#include "tensors.h"

static uint32_t count_of(const tvmflow_model* m) { return tf_count(&m->plan, TF_ALTERNATIVES); }

tf_call tf_call_at(const tvmflow_model* m, uint32_t launch) {
  // They are in the order of their first launches.
  uint32_t low = 0, high = count_of(m);
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (m->plan.alternatives[middle].first < launch)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == count_of(m) || m->plan.alternatives[low].first != launch)
    return (tf_call){launch, 1, TF_NONE};
  return (tf_call){launch, m->plan.alternatives[low].count, low};
}

tf_call tf_call_used(const tvmflow_model* m, tf_call call) {
  if (call.alternative == TF_NONE || !m->used[call.alternative]) return call;
  const tf_alternative* const a = &m->plan.alternatives[call.alternative];
  return (tf_call){a->other_first, a->other_count, call.alternative};
}

void tf_order(tvmflow_model* m) {
  const tf_shape shape = tf_launches(m);
  const uint32_t end = shape.first_launch + shape.launches;
  m->ordered = 0;
  for (uint32_t i = shape.first_launch; i < end;) {
    const tf_call call = tf_call_at(m, i), used = tf_call_used(m, call);
    for (uint32_t j = 0; j < used.count; ++j) {
      m->launch_of[m->ordered] = used.first + j;
      m->order[m->ordered++] = m->steps[used.first + j];
    }
    i += call.count;
  }
  m->recording_is_old = true;
}

// Makes the kernels of an alternative, and the memory that only alternatives use.
static tvmflow_status prepare(tvmflow_model* m, uint32_t index) {
  const tf_alternative* const a = &m->plan.alternatives[index];
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = a->other_first; !status && i < a->other_first + a->other_count; ++i) {
    const tf_launch* const l = &m->plan.launches[i];
    for (uint32_t j = 0; !status && j < l->arguments; ++j) {
      const tf_argument* const argument = &m->plan.arguments[l->first_argument + j];
      if (argument->kind == TF_MEMORY) status = tf_memory_spare(m, argument->allocation);
    }
    if (!status) status = tf_step_create(m, i);
  }
  return status;
}

tvmflow_status tf_use_alternative(tvmflow_model* m, uint32_t alternative) {
  const tvmflow_status status = prepare(m, alternative);
  if (status) return status;
  m->used[alternative] = true;
  tf_order(m);
  return TVMFLOW_OK;
}

uint32_t tf_alternatives_used(const tvmflow_model* m) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < count_of(m); ++i) used += m->used[i];
  return used;
}

tvmflow_status tf_alternatives_create(tvmflow_model* m) {
  // An alternative may have more launches than what it replaces.
  const size_t launches = tf_count(&m->plan, TF_LAUNCHES);
  m->order = calloc(launches + 1, sizeof(*m->order));
  m->launch_of = calloc(launches + 1, sizeof(*m->launch_of));
  if (!m->order || !m->launch_of)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %zu launches.", launches);
  for (uint32_t i = 0; i < count_of(m); ++i) {
    if (m->avoided & TF_USE_SAFE_KERNELS) m->used[i] = true;
    const tvmflow_status status = m->used[i] ? prepare(m, i) : TVMFLOW_OK;
    if (status) return status;
  }
  tf_order(m);
  return TVMFLOW_OK;
}

void tf_alternatives_destroy(tvmflow_model* m) {
  free(m->used);
  free(m->order);
  free(m->launch_of);
}
