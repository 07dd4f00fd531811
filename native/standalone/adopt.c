// Adopt an instance in a forked process, where most of its threads are missing.
#include <sched.h>
#include <string.h>

#include "cpu.h"
#include "find_device.h"
#include "model.h"
#include "open.h"
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
  // The threads that report the end of a run or store programs are in the other process only.
  m->storing = false;
  m->notice = NULL;
  m->companion = NULL;
  const bool unfinished = in_run || m->started;
  m->started = false;
  m->half_done = m->half_done || unfinished;
  if (m->backend == TVMFLOW_CPU) {
    // A picture may have been half written to an input.
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
