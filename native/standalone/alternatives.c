#include "alternatives.h"

#include <stdlib.h>
#include <string.h>

#include "programs.h"
#include "run.h"
#include "tensors.h"

static uint32_t count_of(const tvmflow_model* m) { return tf_count(&m->plan, TF_ALTERNATIVES); }

uint32_t tf_alternatives_from(const tvmflow_model* m, uint32_t launch) {
  // They are in the order of their first launches.
  uint32_t low = 0, high = count_of(m);
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (m->plan.alternatives[middle].first < launch)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

tf_part tf_part_at(const tvmflow_model* m, uint32_t launch) {
  uint32_t count = 1;
  // Of those with the same first launch, the widest come first.
  for (uint32_t i = tf_alternatives_from(m, launch);
       i < count_of(m) && m->plan.alternatives[i].first == launch; ++i) {
    const tf_alternative* const a = &m->plan.alternatives[i];
    if (m->standing[i] == TF_USED) return (tf_part){launch, a->count, i};
    if (a->calls == 1) count = a->count;
  }
  return (tf_part){launch, count, TF_NONE};
}

static tf_part launches_of(const tvmflow_model* m, tf_part part) {
  if (part.alternative == TF_NONE) return part;
  const tf_alternative* const a = &m->plan.alternatives[part.alternative];
  return (tf_part){a->other_first, a->other_count, part.alternative};
}

tvmflow_status tf_enqueue_range(tvmflow_model* m, uint32_t first, uint32_t count) {
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = first; !status && i < first + count;) {
    const tf_part part = tf_part_at(m, i), run = launches_of(m, part);
    status = tf_enqueue_launches(m, run.first, run.count);
    i += part.count;
  }
  return status;
}

tvmflow_status tf_run_range(tvmflow_model* m, uint32_t first, uint32_t count) {
  const tvmflow_status status = tf_enqueue_range(m, first, count);
  return status ? status : tf_drain(m);
}

void tf_order(tvmflow_model* m) {
  const tf_shape shape = tf_launches(m);
  const uint32_t end = shape.first_launch + shape.launches;
  m->ordered = 0;
  for (uint32_t i = shape.first_launch; i < end;) {
    const tf_part part = tf_part_at(m, i), run = launches_of(m, part);
    for (uint32_t j = 0; j < run.count; ++j) {
      m->launch_of[m->ordered] = run.first + j;
      m->order[m->ordered++] = m->steps[run.first + j];
    }
    i += part.count;
  }
  m->recording_is_old = true;
}

tvmflow_status tf_alternative_prepare(tvmflow_model* m, uint32_t index) {
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

void tf_alternative_select(tvmflow_model* m, uint32_t index) {
  const tf_alternative* const a = &m->plan.alternatives[index];
  for (uint32_t i = tf_alternatives_from(m, a->first);
       i < count_of(m) && m->plan.alternatives[i].first == a->first; ++i)
    if (m->plan.alternatives[i].count == a->count && m->standing[i] == TF_USED)
      m->standing[i] = TF_UNTRIED;
  m->standing[index] = TF_USED;
}

tvmflow_status tf_alternative_use(tvmflow_model* m, uint32_t index) {
  const tvmflow_status status = tf_alternative_prepare(m, index);
  if (status) return status;
  tf_alternative_select(m, index);
  tf_order(m);
  return TVMFLOW_OK;
}

void tf_alternative_reject(tvmflow_model* m, uint32_t index, tf_standing standing) {
  const bool used = m->standing[index] == TF_USED;
  m->standing[index] = (uint8_t)standing;
  if (used) tf_order(m);
}

bool tf_part_replace(tvmflow_model* m, tf_part part, bool own_wrong, uint32_t* alternative,
                     tvmflow_status* status) {
  if (part.alternative != TF_NONE && !own_wrong) {
    tf_alternative_reject(m, part.alternative, TF_WRONG);
    *alternative = TF_NONE;
    return true;
  }
  // Plain kernels are the last ones of a call.
  for (uint32_t i = tf_alternatives_from(m, part.first);
       i < count_of(m) && m->plan.alternatives[i].first == part.first; ++i) {
    if (m->plan.alternatives[i].count != part.count || m->standing[i] == TF_WRONG ||
        i == part.alternative)
      continue;
    if (part.alternative != TF_NONE) m->standing[part.alternative] = TF_WRONG;
    *alternative = i;
    *status = tf_alternative_use(m, i);
    return true;
  }
  return false;
}

uint32_t tf_alternatives_count(const tvmflow_model* m, tf_alternative_kind kind, bool used) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count_of(m); ++i)
    found += m->plan.alternatives[i].kind == kind && (!used || m->standing[i] == TF_USED);
  return found;
}

tvmflow_status tf_alternatives_create(tvmflow_model* m) {
  // An alternative may have more launches than what it replaces.
  const size_t launches = tf_count(&m->plan, TF_LAUNCHES);
  m->order = calloc(launches + 1, sizeof(*m->order));
  m->launch_of = calloc(launches + 1, sizeof(*m->launch_of));
  if (!m->order || !m->launch_of)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %zu launches.", launches);
  for (uint32_t i = 0; i < count_of(m); ++i) {
    if (m->avoided & TF_USE_SAFE_KERNELS)
      m->standing[i] = m->plan.alternatives[i].kind == TF_PLAIN ? TF_USED : TF_WRONG;
    const tvmflow_status status =
        m->standing[i] == TF_USED ? tf_alternative_prepare(m, i) : TVMFLOW_OK;
    if (status) return status;
  }
  tf_order(m);
  return TVMFLOW_OK;
}

void tf_alternatives_destroy(tvmflow_model* m) {
  free(m->standing);
  free(m->order);
  free(m->launch_of);
}
