// The state of an instance: whether calls can be made now, failures, and the log.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

tvmflow_status tf_check_idle(tvmflow_model* m, const char* attempt) {
  const tvmflow_status status = tf_check(m);
  if (status || !m->started) return status;
  return tf_fail(&m->message, TVMFLOW_ERROR_BUSY,
                 "%s: a run was started and not waited for. Remedy: call tvmflow_wait first.",
                 attempt);
}

tvmflow_status tf_device_failed(tvmflow_model* m, tvmflow_status status) {
  m->broken = m->may_fall_back && m->backend == TVMFLOW_OPENCL;
  if (m->broken)
    tf_append(m->message.text, sizeof(m->message.text),
              " Remedy: set the inputs and run again: the next call takes the CPU.");
  return status;
}

tvmflow_status tf_check_inputs(tvmflow_model* m) {
  for (uint32_t i = 0; i < tf_count_each(&m->plan, TF_INPUTS); ++i)
    if (m->missing[i])
      return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                     "Running: input '%s' has not been set since the device failed, or since the "
                     "process was forked during a run. Remedy: set it.",
                     m->plan.strings + tf_inputs(m)[i].name);
  return TVMFLOW_OK;
}

void tf_log(const tvmflow_model* m, tvmflow_log_level level, const char* format, ...) {
  if (!m->log) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  const size_t bytes = length < 0 ? 0 : (size_t)length + 1;
  char* const whole = bytes > sizeof(text) ? malloc(bytes) : NULL;
  if (whole) {
    va_start(arguments, format);
    vsnprintf(whole, bytes, format, arguments);
    va_end(arguments);
  }
  // The text is cut if no memory is left.
  m->log(m->log_user, level, whole ? whole : text);
  free(whole);
}
