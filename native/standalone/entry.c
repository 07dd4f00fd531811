// What applications call of an instance: one thread at a time.
#include <sched.h>
#include <string.h>

#include "model.h"
#include "process.h"

static void adopt(tvmflow_model* m) {
  const bool in_call = atomic_exchange(&m->entered, false);
  const bool in_run = atomic_exchange(&m->stop.running, false);
  atomic_store(&m->refused, false);
  atomic_store(&m->stop.cancelled, false);
  if (m->failed) return;
  if (in_call && !in_run) {
    m->torn = true;
    m->failed = tf_fail(&m->message, TVMFLOW_ERROR_BUSY,
                        "Another thread was in a call of this model when the process was forked. "
                        "Remedy: create another one.");
    return;
  }
  // The threads that report the end of a run, or store programs, are in the other process.
  m->storing = false;
  m->notice = NULL;
  const bool unfinished = in_run || m->started;
  m->started = false;
  m->half_done = m->half_done || unfinished;
  if (m->backend == TVMFLOW_CPU) {
    // A picture may have been on its way to an input.
    if (unfinished) memset(m->missing, 1, tf_count_each(&m->plan, TF_INPUTS));
    tf_cpu_adopt(m->queue, !unfinished);
    return;
  }
  tf_device_abandon(&m->device);
  m->recording = NULL;
  m->half_done = true;
  const tvmflow_status status = tf_fail(&m->message, TVMFLOW_ERROR_DEVICE, TF_FORKED);
  m->broken = m->may_fall_back;
  if (!m->broken) m->failed = status;
}

void tf_adopt(tvmflow_model* m) {
  static atomic_flag adopting = ATOMIC_FLAG_INIT;
  const unsigned process = tf_process();
  if (atomic_load(&m->process) == process) return;
  while (atomic_flag_test_and_set(&adopting)) sched_yield();
  if (atomic_load(&m->process) != process) adopt(m);
  atomic_store(&m->process, process);
  atomic_flag_clear(&adopting);
}

// False: another thread is in a call.
static bool enter(tvmflow_model* m) {
  tf_adopt(m);
  const bool alone = !atomic_exchange(&m->entered, true);
  atomic_store(&m->refused, !alone);
  return alone;
}

#define TF_DEFINE(name, parameters, arguments)                                                     \
  tvmflow_status tvmflow_##name parameters {                                                       \
    if (!m) return TVMFLOW_ERROR_ARGUMENT;                                                         \
    if (!enter(m)) return TVMFLOW_ERROR_BUSY;                                                      \
    const tvmflow_status status = tf_do_##name arguments;                                          \
    atomic_store(&m->entered, false);                                                              \
    return status;                                                                                 \
  }
TF_ENTRIES(TF_DEFINE)
#undef TF_DEFINE

const char* tvmflow_message(const tvmflow_model* m) {
  if (!m) return "There is no instance: no memory was left for it.";
  // The other thread may be writing to the message.
  if (atomic_load(&m->refused))
    return "Another thread is in a call of this model. Remedy: use a model from one thread at a "
           "time, or create one for each thread.";
  return m->message.text;
}

void tvmflow_cancel(tvmflow_model* m) {
  if (!m || m->failed) return;
  if (atomic_load(&m->stop.running)) atomic_store(&m->stop.cancelled, true);
}
