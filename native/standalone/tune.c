// The tuning that applications call.
#include "tune.h"

#include "alternatives.h"
#include "companion.h"
#include "entry.h"
#include "programs.h"

tvmflow_status tf_do_tune(tvmflow_model* m, uint32_t budget_ms, tvmflow_tune_progress progress,
                          void* user) {
  const tvmflow_status status = tf_check_idle(m, "Tuning");
  if (status) return status;
  if (!budget_ms)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Tuning: the budget is 0 ms, expected at least 1. Remedy: give it 1000.");
  if (m->backend == TVMFLOW_CPU)
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Tuning: the network runs on the CPU, whose kernels have no choices.");
  if (!tf_alternatives_count(m, TF_CHOICE, false))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Tuning: the library has no choices. Remedy: compile it with --choices 4.");
  if (tf_companion_tunes(m))
    return tf_fail(&m->message, TVMFLOW_ERROR_BUSY,
                   "Tuning: one is under way. Remedy: call tvmflow_tune_wait first.");
  tf_companion_end(m->companion);
  m->companion = NULL;
  // PoCL falls over its own files if a program is built while another's binary is stored.
  tf_programs_stored(m);
  const tf_tune_order order = {budget_ms, progress, user};
  m->companion = tf_companion_begin(m, TF_TUNE, order);
  if (m->companion) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY,
                 "Tuning: no memory for a second instance of the network.");
}

tvmflow_status tf_do_tune_wait(tvmflow_model* m) {
  const tvmflow_status status = tf_check_idle(m, "Waiting for a tuning");
  return status ? status : tf_companion_wait(m);
}

const char* tvmflow_tune_report(const tvmflow_model* m) { return m && m->tuned ? m->tuned : "{}"; }
