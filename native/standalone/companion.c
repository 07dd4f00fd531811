#include "companion.h"

#include <stdlib.h>
#include <string.h>

#include "alternatives.h"
#include "entry.h"
#include "open.h"
#include "process.h"
#include "trial.h"

// A phone should not be busy for longer at one start.
enum { BUDGET_MS = 1000 };

struct tf_companion {
  tvmflow_model* model;
  tvmflow_options options;
  bool busy;
  atomic_bool stopped;
  atomic_bool ended;
  tvmflow_status status;
  pthread_t thread;
};

static void* work(void* argument) {
  tf_companion* const c = argument;
  tvmflow_status status = tf_open(c->model, &c->options, TVMFLOW_OPENCL);
  if (c->busy) {
    if (!status) status = tf_do_warm_up(c->model);
    while (!status && !atomic_load(&c->stopped)) status = tf_do_run(c->model);
  } else if (!status) {
    tvmflow_model* const m = c->model;
    const uint32_t missing = (TF_STEADY_RUNS - m->equal_runs) / tf_count(&m->plan, TF_SHAPES) + 1;
    tf_trial trial = {.options = {.runs = missing, .budget_ms = BUDGET_MS}, .stopped = &c->stopped};
    status = tf_try(m, &trial);
    m->equal_runs = trial.different ? 0 : m->equal_runs + trial.runs;
    if (m->equal_runs > TF_STEADY_RUNS) m->equal_runs = TF_STEADY_RUNS;
    if (!status || (status == TVMFLOW_ERROR_CANCELLED && !trial.different))
      tf_choice_store(m, false);
    else if (status == TVMFLOW_ERROR_WRONG && m->may_fall_back)
      tf_choice_store(m, true);
  }
  c->status = status;
  atomic_store(&c->ended, true);
  return NULL;
}

static void release(tf_companion* c) {
  // The weights are the other instance's.
  c->model->weights = (tf_weights){0};
  tf_release(c->model);
  free(c->model);
  free(c);
}

tf_companion* tf_companion_begin(const tvmflow_model* m, bool busy) {
  tf_companion* const c = calloc(1, sizeof(*c));
  tvmflow_model* const other = calloc(1, sizeof(*other));
  if (!c || !other) {
    free(c);
    free(other);
    return NULL;
  }
  // An application's own context stays its own.
  c->options = (tvmflow_options){
      .struct_size = sizeof(c->options),
      .flags = m->flags & (TVMFLOW_NO_COMMAND_BUFFER | TVMFLOW_UNCHECKED_WEIGHTS),
      .device_index = m->device_index,
      .opencl_library = m->device.library[0] == '(' ? NULL : m->device.library,
      .cache_folder = m->cache.folder,
      .drivers = m->drivers,
      .priority = busy ? m->priority : TVMFLOW_PRIORITY_LOW,
  };
  c->model = other;
  c->busy = busy;
  atomic_store(&other->process, tf_process());
  other->weights = m->weights;
  other->flags = c->options.flags;
  other->priority = c->options.priority;
  other->may_fall_back = m->may_fall_back;
  if (!pthread_create(&c->thread, NULL, work, c)) return c;
  free(other);
  free(c);
  return NULL;
}

void tf_companion_end(tf_companion* c) {
  if (!c) return;
  atomic_store(&c->stopped, true);
  pthread_join(c->thread, NULL);
  release(c);
}

tvmflow_status tf_companion_follow(tvmflow_model* m) {
  tf_companion* const c = m->companion;
  if (!c || !atomic_load(&c->ended)) return TVMFLOW_OK;
  tvmflow_status status = TVMFLOW_OK;
  pthread_join(c->thread, NULL);
  m->companion = NULL;
  if (c->status == TVMFLOW_ERROR_WRONG && m->may_fall_back) {
    tf_fail(&m->message, TVMFLOW_ERROR_WRONG, "%s", c->model->message.text);
    m->broken = true;
  } else if (!c->status || c->status == TVMFLOW_ERROR_WRONG) {
    for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_ALTERNATIVES); ++i)
      if (c->model->used[i] && !m->used[i]) {
        tf_log(m, TVMFLOW_LOG_WARNING, "Plain kernels replace function '%s': its results differ.",
               m->plan.strings + m->plan.launches[m->plan.alternatives[i].first].function);
        status = tf_use_alternative(m, i);
      }
  }
  release(c);
  return status;
}
