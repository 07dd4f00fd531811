#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "companion.h"
#include "open.h"
#include "process.h"
#include "weights.h"

uint32_t tvmflow_api_version(void) { return TVMFLOW_API_VERSION; }

const char* tvmflow_status_name(tvmflow_status status) {
#define NAME(status) [status] = #status
  static const char* const names[] = {
      NAME(TVMFLOW_OK),
      NAME(TVMFLOW_ERROR_ARGUMENT),
      NAME(TVMFLOW_ERROR_NO_OPENCL),
      NAME(TVMFLOW_ERROR_UNSUPPORTED),
      NAME(TVMFLOW_ERROR_BUILD),
      NAME(TVMFLOW_ERROR_MEMORY),
      NAME(TVMFLOW_ERROR_DAMAGED),
      NAME(TVMFLOW_ERROR_DEVICE),
      NAME(TVMFLOW_ERROR_BUSY),
      NAME(TVMFLOW_ERROR_WRONG),
      NAME(TVMFLOW_ERROR_CANCELLED),
  };
#undef NAME
  return (uint32_t)status < sizeof(names) / sizeof(names[0]) ? names[status]
                                                             : "an unknown tvmflow_status";
}

static tvmflow_status read_options(tvmflow_model* m, const tvmflow_options* given,
                                   tvmflow_options* options) {
  memset(options, 0, sizeof(*options));
  if (!given) return TVMFLOW_OK;
  if (given->struct_size < offsetof(tvmflow_options, opencl_library))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' struct_size is %zu, expected sizeof(tvmflow_options). Remedy: "
                   "set it.",
                   given->struct_size);
  // An application may be older than the library, or newer.
  const size_t known =
      given->struct_size < sizeof(*options) ? given->struct_size : sizeof(*options);
  memcpy(options, given, known);
  if (options->flags &
      ~(uint32_t)(TVMFLOW_PROFILE | TVMFLOW_NO_COMMAND_BUFFER | TVMFLOW_UNCHECKED_WEIGHTS |
                  TVMFLOW_PIN_THREADS | TVMFLOW_CHOOSE_FASTER | TVMFLOW_NO_REPEATED_RUNS))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' flags 0x%x hold one that this library does not know.",
                   options->flags);
  if (options->cl_context && !options->cl_device)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options have a cl_context without its cl_device. Remedy: set both.");
  if (options->priority > TVMFLOW_PRIORITY_HIGH)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' priority is %u, expected one of tvmflow_priority.",
                   options->priority);
  if (options->performance > TVMFLOW_PERFORMANCE_LOW)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' performance is %u, expected one of tvmflow_performance.",
                   options->performance);
  m->flags = options->flags;
  m->log = options->log;
  m->log_user = options->log_user;
  m->priority = options->priority;
  m->performance = options->performance;
  return TVMFLOW_OK;
}

static tvmflow_status create(tvmflow_model* m, const tvmflow_options* given) {
  tvmflow_options options;
  tvmflow_status status = read_options(m, given, &options);
  if (!status) status = tf_library_check(&m->message);
  return status ? status : tf_backend_open(m, &options);
}

tvmflow_status tvmflow_create(const tvmflow_options* options, tvmflow_model** model) {
  if (!model) return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_model* const m = calloc(1, sizeof(tvmflow_model));
  *model = m;
  if (!m) return TVMFLOW_ERROR_MEMORY;
  atomic_store(&m->process, tf_process());
  const tvmflow_status status = create(m, options);
  if (!status) return TVMFLOW_OK;
  tf_release(m);
  const tf_message message = m->message;
  *m = (tvmflow_model){.message = message, .failed = status, .process = tf_process()};
  return status;
}

void tvmflow_destroy(tvmflow_model* m) {
  if (!m) return;
  tf_adopt(m);
  // A missing thread may have left any field half changed, so nothing is released.
  if (!m->torn) {
    tf_companion_end(m->companion);
    tf_release(m);
  }
  free(m);
}
