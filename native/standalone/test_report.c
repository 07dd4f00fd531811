// The report of a self-test, as JSON.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/text.h"
#include "alternatives.h"
#include "open.h"
#include "trial.h"

// Appends a number; JSON has no infinity.
static void append_number(char* json, size_t bytes, const char* key, double value) {
  tf_append(json, bytes, "\"%s\":%.6g,", key, isfinite(value) ? value : 1e300);
}

static const char* flag(bool value) { return value ? "true" : "false"; }

static void append_finding(const tvmflow_model* m, char* json, size_t bytes, const tf_finding* f) {
  const tf_test_tensor* const t = &m->plan.test_tensors[f->tensor];
  const tf_launch* const l = &m->plan.launches[t->launch];
  tf_append(json, bytes, "{");
  tf_describe_text(json, bytes, "function", m->plan.strings + l->function);
  tf_describe_text(json, bytes, "kernel", m->plan.strings + l->kernel);
  tf_describe_text(json, bytes, "nodes", m->plan.strings + t->nodes);
  tf_describe_text(json, bytes, "fault", f->differs ? "differs" : "wrong");
  if (!f->differs) append_number(json, bytes, "tolerance_used", f->tolerance_used);
  if (f->replaced)
    tf_append(json, bytes, "\"by\":\"%s\",",
              f->alternative == TF_NONE                               ? "default"
              : m->plan.alternatives[f->alternative].kind == TF_PLAIN ? "plain"
                                                                      : "choice");
  tf_append(json, bytes, "\"replaced\":%s,\"right\":%s}", flag(f->replaced), flag(f->right));
}

tvmflow_status tf_report(tvmflow_model* m, const tf_trial* trial) {
  size_t bytes = 1024;
  for (uint32_t i = 0; i < trial->found; ++i) {
    const tf_test_tensor* const t = &m->plan.test_tensors[trial->findings[i].tensor];
    const tf_launch* const l = &m->plan.launches[t->launch];
    // Names may double in length when their quotes are escaped.
    bytes += 256 + 2 * (strlen(m->plan.strings + l->function) +
                        strlen(m->plan.strings + l->kernel) + strlen(m->plan.strings + t->nodes));
  }
  free(m->report);
  char* const json = m->report = calloc(bytes, 1);
  if (!json)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Self-test: no memory for a report.");
  tf_append(json, bytes, "{\"compared\":%llu,", (unsigned long long)trial->result.compared);
  append_number(json, bytes, "largest_error", trial->result.largest_error);
  append_number(json, bytes, "tolerance_used", trial->result.tolerance_used);
  tf_append(json, bytes, "\"tensors\":%u,\"runs\":%u,\"different_runs\":%u,",
            tf_count(&m->plan, TF_TEST_TENSORS), trial->runs, trial->different);
  tf_append(json, bytes, "\"recording_wrong\":%s,\"alternatives\":%u,\"alternatives_used\":%u,",
            flag(trial->without_recording), tf_alternatives_count(m, TF_PLAIN, false),
            tf_alternatives_count(m, TF_PLAIN, true));
  tf_append(json, bytes, "\"choices\":%u,\"choices_used\":%u,",
            tf_alternatives_count(m, TF_CHOICE, false), tf_alternatives_count(m, TF_CHOICE, true));
  tf_append(json, bytes, "\"functions\":[");
  for (uint32_t i = 0; i < trial->found; ++i) {
    if (i) tf_append(json, bytes, ",");
    append_finding(m, json, bytes, &trial->findings[i]);
  }
  tf_append(json, bytes, "]}");
  return TVMFLOW_OK;
}

const char* tvmflow_test_report(const tvmflow_model* m) {
  return m && m->report ? m->report : "{}";
}
