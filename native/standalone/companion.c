#include "companion.h"

#include <stdlib.h>
#include <string.h>

#include "alternatives.h"
#include "entry.h"
#include "open.h"
#include "process.h"
#include "programs.h"
#include "trial.h"
#include "tune.h"

// A phone should not be busy for longer at one start.
enum { BUDGET_MS = 1000 };

struct tf_companion {
  tvmflow_model* model;
  tvmflow_options options;
  tf_companion_task task;
  tf_tuning tuning;
  uint8_t* standing;  // of the other instance's alternatives, at the beginning
  uint32_t shape;
  char* report;  // of a tuning
  atomic_bool stopped;
  atomic_bool ended;
  tvmflow_status status;
  pthread_t thread;
};

static tvmflow_status run_until_stopped(tf_companion* c) {
  tvmflow_status status = tf_do_warm_up(c->model);
  while (!status && !atomic_load(&c->stopped)) status = tf_do_run(c->model);
  return status;
}

static tvmflow_status test(tf_companion* c) {
  tvmflow_model* const m = c->model;
  const uint32_t missing = (TF_STEADY_RUNS - m->equal_runs) / tf_count(&m->plan, TF_SHAPES) + 1;
  tf_trial trial = {.options = {.runs = missing, .budget_ms = BUDGET_MS}, .stopped = &c->stopped};
  const tvmflow_status status = tf_try(m, &trial);
  m->equal_runs = trial.different ? 0 : m->equal_runs + trial.runs;
  if (m->equal_runs > TF_STEADY_RUNS) m->equal_runs = TF_STEADY_RUNS;
  if (!status || (status == TVMFLOW_ERROR_CANCELLED && !trial.different))
    tf_choice_store(m, false);
  else if (status == TVMFLOW_ERROR_WRONG && m->may_fall_back)
    tf_choice_store(m, true);
  return status;
}

static tvmflow_status tune(tf_companion* c) {
  tvmflow_model* const m = c->model;
  tvmflow_status status = tf_do_choose_shape(m, c->shape);
  if (!status) status = tf_tune(m, &c->tuning);
  if (status) c->tuning.end = TF_TUNING_STOPPED;
  if (c->tuning.own && c->tuning.other && c->tuning.base) c->report = tf_tune_report(m, &c->tuning);
  if (!status) tf_choice_store(m, false);
  tf_sources_forget(m);
  return status;
}

// Gives the instance the other one's standings, which a cache need not have.
static tvmflow_status take_standings(tf_companion* c) {
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = 0; !status && i < tf_count(&c->model->plan, TF_ALTERNATIVES); ++i) {
    if (c->standing[i] == TF_USED)
      status = tf_alternative_use(c->model, i);
    else
      tf_alternative_reject(c->model, i, (tf_standing)c->standing[i]);
  }
  return status;
}

static void* work(void* argument) {
  static tvmflow_status (*const tasks[])(tf_companion*) = {run_until_stopped, test, tune};
  tf_companion* const c = argument;
  tvmflow_status status = tf_open(c->model, &c->options, TVMFLOW_OPENCL);
  if (!status) status = take_standings(c);
  if (!status) status = tasks[c->task](c);
  c->status = status;
  atomic_store(&c->ended, true);
  return NULL;
}

static void release(tf_companion* c) {
  if (c->model) {
    // The weights are the other instance's.
    c->model->weights = (tf_weights){0};
    tf_release(c->model);
  }
  tf_tuning_free(&c->tuning);
  free(c->model);
  free(c->standing);
  free(c->report);
  free(c);
}

tf_companion* tf_companion_begin(tvmflow_model* m, tf_companion_task task, tf_tune_order order) {
  const uint32_t alternatives = tf_count(&m->plan, TF_ALTERNATIVES);
  tf_companion* const c = calloc(1, sizeof(*c));
  if (!c) return NULL;
  tvmflow_model* const other = c->model = calloc(1, sizeof(*other));
  c->standing = malloc(alternatives + 1u);
  if (!other || !c->standing) {
    release(c);
    return NULL;
  }
  // An application's own context stays its own.
  c->options = (tvmflow_options){
      .struct_size = sizeof(c->options),
      .flags = (m->flags & (TVMFLOW_NO_COMMAND_BUFFER | TVMFLOW_UNCHECKED_WEIGHTS)) |
               (task == TF_TUNE ? TVMFLOW_PROFILE : 0),
      .device_index = m->device_index,
      .opencl_library = m->device.library[0] == '(' ? NULL : m->device.library,
      .cache_folder = m->cache.folder,
      .drivers = m->drivers,
      .priority = task == TF_KEEP_BUSY ? m->priority : TVMFLOW_PRIORITY_LOW,
  };
  c->task = task;
  c->shape = m->shape;
  c->tuning = (tf_tuning){.budget_ms = order.budget_ms,
                          .progress = order.progress,
                          .user = order.user,
                          .application = m,
                          .stopped = &c->stopped};
  memcpy(c->standing, m->standing, alternatives);
  atomic_store(&other->process, tf_process());
  other->weights = m->weights;
  other->flags = c->options.flags;
  other->priority = c->options.priority;
  other->performance = m->performance;
  other->may_fall_back = m->may_fall_back;
  if (!pthread_create(&c->thread, NULL, work, c)) return c;
  release(c);
  return NULL;
}

void tf_companion_end(tf_companion* c) {
  if (!c) return;
  atomic_store(&c->stopped, true);
  pthread_join(c->thread, NULL);
  release(c);
}

// Uses the alternatives that the companion uses.
static tvmflow_status follow(tvmflow_model* m, const uint8_t* found) {
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_ALTERNATIVES); ++i) {
    const tf_alternative* const a = &m->plan.alternatives[i];
    // What this instance has found wrong stays wrong.
    if (found[i] == m->standing[i] || found[i] == TF_UNTRIED || m->standing[i] == TF_WRONG)
      continue;
    if (found[i] != TF_USED) {
      tf_alternative_reject(m, i, (tf_standing)found[i]);
      continue;
    }
    if (a->kind == TF_PLAIN)
      tf_log(m, TVMFLOW_LOG_WARNING, "Plain kernels replace function '%s': its results differ.",
             m->plan.strings + m->plan.launches[a->first].function);
    status = tf_alternative_use(m, i);
  }
  tf_sources_forget(m);
  return status;
}

// Follows a companion whose thread ends by itself.  Sets how that ended.
static tvmflow_status conclude(tvmflow_model* m, tvmflow_status* ended) {
  tf_companion* const c = m->companion;
  pthread_join(c->thread, NULL);
  m->companion = NULL;
  tvmflow_status status = TVMFLOW_OK;
  *ended = c->status;
  const bool wrong = c->task == TF_TEST && c->status == TVMFLOW_ERROR_WRONG;
  if (c->report) {
    free(m->tuned);
    m->tuned = c->report;
    c->report = NULL;
  }
  if (wrong && m->may_fall_back) {
    tf_fail(&m->message, TVMFLOW_ERROR_WRONG, "%s", c->model->message.text);
    m->broken = true;
  } else if (!c->status || wrong) {
    status = follow(m, c->model->standing);
  } else if (c->task == TF_TUNE) {
    tf_fail(&m->message, c->status, "Tuning: %s", c->model->message.text);
    tf_log(m, TVMFLOW_LOG_WARNING, "%s", m->message.text);
  }
  release(c);
  return status;
}

tvmflow_status tf_companion_follow(tvmflow_model* m) {
  tvmflow_status ended;
  return m->companion && atomic_load(&m->companion->ended) ? conclude(m, &ended) : TVMFLOW_OK;
}

bool tf_companion_tunes(const tvmflow_model* m) {
  return m->companion && m->companion->task == TF_TUNE;
}

tvmflow_status tf_companion_wait(tvmflow_model* m) {
  tvmflow_status ended;
  if (!tf_companion_tunes(m)) return TVMFLOW_OK;
  const tvmflow_status status = conclude(m, &ended);
  return status ? status : ended;
}
