#include "model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

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
                  TVMFLOW_PIN_THREADS | TVMFLOW_CHOOSE_FASTER))
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
  m->flags = options->flags;
  m->log = options->log;
  m->log_user = options->log_user;
  m->priority = options->priority;
  return TVMFLOW_OK;
}

// From the texts of cl_khr_priority_hints and cl_qcom_priority_hint.
enum {
  QUEUE_PROPERTIES = 0x1093,
  QUEUE_PRIORITY_KHR = 0x1096,
  CONTEXT_PRIORITY_HINT_QCOM = 0x40C9
};
static const cl_ulong priorities_khr[] = {0, 1u << 2, 1u << 0};
static const intptr_t priorities_qcom[] = {0, 0x40CC, 0x40CA};

typedef cl_command_queue (*create_queue_with_properties)(cl_context, cl_device_id, const cl_ulong*,
                                                         cl_int*);

// A queue with the priority; NULL: the driver has none for queues, or refuses.
static cl_command_queue make_urgent_queue(tvmflow_model* m, cl_bitfield flags) {
  const cl_ulong properties[] = {QUEUE_PROPERTIES, flags, QUEUE_PRIORITY_KHR,
                                 priorities_khr[m->priority], 0};
  if (!m->priority || !tf_device_has(&m->device, "cl_khr_priority_hints")) return NULL;
  const create_queue_with_properties create = (create_queue_with_properties)tf_opencl_extension(
      &m->device.api, m->device.platform, "clCreateCommandQueueWithProperties");
  cl_int code = CL_SUCCESS;
  const cl_command_queue queue =
      create ? create(m->context, m->device.id, properties, &code) : NULL;
  return code == CL_SUCCESS ? queue : NULL;
}

static tvmflow_status make_queue(tvmflow_model* m, const tvmflow_options* options) {
  const tf_opencl* const api = &m->device.api;
  cl_int code = CL_SUCCESS;
  const bool qcom = m->priority && tf_device_has(&m->device, "cl_qcom_priority_hint");
  if (options->cl_context) {
    code = api->clRetainContext(options->cl_context);
    if (code == CL_SUCCESS) m->context = options->cl_context;
  } else {
    const intptr_t properties[] = {CL_CONTEXT_PLATFORM, (intptr_t)m->device.platform,
                                   qcom ? CONTEXT_PRIORITY_HINT_QCOM : 0,
                                   priorities_qcom[m->priority], 0};
    m->context = api->clCreateContext(properties, 1, &m->device.id, NULL, NULL, &code);
  }
  if (code != CL_SUCCESS) {
    m->context = NULL;
    return tf_fail_opencl(&m->message, code, "Creating a context on device '%s'", m->device.name);
  }
  const cl_bitfield properties = m->flags & TVMFLOW_PROFILE ? CL_QUEUE_PROFILING_ENABLE : 0;
  m->queue = make_urgent_queue(m, properties);
  if (m->priority && !m->queue && (!qcom || options->cl_context))
    tf_log(m, TVMFLOW_LOG_WARNING, "Device '%s' takes no priority.", m->device.name);
  if (!m->queue) m->queue = api->clCreateCommandQueue(m->context, m->device.id, properties, &code);
  if (code == CL_SUCCESS) {
    tf_cpu_watch(&m->device, m->queue, &m->stop);
    return TVMFLOW_OK;
  }
  m->queue = NULL;
  if (!properties)
    return tf_fail_opencl(&m->message, code, "Creating a queue on device '%s'", m->device.name);
  const tvmflow_status status = tf_fail_opencl(
      &m->message, code, "Creating a queue that measures kernels on device '%s'", m->device.name);
  tf_append(m->message.text, sizeof(m->message.text),
            " Remedy: measure whole runs, without TVMFLOW_PROFILE.");
  return status;
}

// What runs need, so that none of them allocates.
static tvmflow_status make_room(tvmflow_model* m) {
  size_t halves = 0;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_INPUTS) + tf_count(&m->plan, TF_OUTPUTS); ++i) {
    const uint32_t inputs = tf_count(&m->plan, TF_INPUTS);
    const tf_interface* const t = i < inputs ? &m->plan.inputs[i] : &m->plan.outputs[i - inputs];
    if (t->half && tf_elements(t) > halves) halves = tf_elements(t);
  }
  const uint32_t launches = tf_count(&m->plan, TF_LAUNCHES);
  // As many in both plans: where the CPU replaces a device, it is there.
  if (!m->missing) m->missing = calloc(tf_count(&m->plan, TF_INPUTS) + 1u, sizeof(bool));
  m->given = calloc(tf_count(&m->plan, TF_INPUTS) + 1u, sizeof(bool));
  const bool profile = m->flags & TVMFLOW_PROFILE;
  m->halves_bytes = halves * sizeof(uint16_t);
  if (halves) m->halves = malloc(m->halves_bytes);
  if (profile) {
    m->events = calloc(launches, sizeof(cl_event));
    m->kernels = calloc(launches, sizeof(tvmflow_kernel));
  }
  if (!m->missing || !m->given || (halves && !m->halves) ||
      (profile && (!m->events || !m->kernels)))
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for inputs and outputs.");
  return TVMFLOW_OK;
}

static tvmflow_status find_device(tvmflow_model* m, const tvmflow_options* options) {
  if (m->backend != TVMFLOW_CPU) {
    if (!tf_process_opens_driver()) return tf_fail(&m->message, TVMFLOW_ERROR_DEVICE, TF_FORKED);
    return tf_device_find(&m->device, options, &m->message);
  }
  const bool pinned = options->flags & TVMFLOW_PIN_THREADS;
  if (!tf_cpu_begin(&m->device, options->cpu_threads, pinned))
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for the CPU's device.");
  tf_device_describe(&m->device);
  return TVMFLOW_OK;
}

tvmflow_status tf_open(tvmflow_model* m, const tvmflow_options* options, tvmflow_backend backend) {
  size_t bytes = 0;
  const void* const plan = tf_library_plan(backend, &bytes);
  m->backend = backend;
  tvmflow_status status = tf_plan_open(&m->plan, plan, bytes, &m->message);
  const bool check = !(options->flags & TVMFLOW_UNCHECKED_WEIGHTS);
  if (!status && !m->weights.data)
    status = tf_weights_open(&m->weights, &m->plan, options->weights_path, check, &m->message);
  if (!status) status = find_device(m, options);
  if (!status) status = tf_device_check(&m->device, &m->plan, &m->message);
  if (!status && !tf_cache_open(&m->cache, options->cache_folder, tf_device_code(&m->device)))
    status = tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for the cache's folder.");
  if (!status)
    tf_log(m, TVMFLOW_LOG_INFO, "The network runs on '%s' of '%s' (%s, driver %s).", m->device.name,
           m->device.platform_name, m->device.library, m->device.driver);
  if (!status) status = tf_backend_recall(m);
  if (!status) status = make_queue(m, options);
  if (!status) status = tf_weights_checked(&m->weights, &m->message);
  if (!status) status = tf_memory_create(m);
  if (!status) status = tf_programs_create(m);
  if (!status)
    tf_log(m, TVMFLOW_LOG_INFO, "%u of %u programs were built, %u came with the library.", m->built,
           tf_count(&m->plan, TF_PROGRAMS), m->shipped);
  if (!status && *m->cache.note)
    tf_log(m, TVMFLOW_LOG_WARNING, "Programs are not kept: %s.", m->cache.note);
  if (!status) status = tf_pictures_create(m);
  tf_sources_forget(m);
  if (!status) status = make_room(m);
  // Others have compiled all of it by the first run only.
  if (!status && !m->device.compiles_at_launch) tf_programs_store(m);
  m->recording_is_old = true;
  return status ? status : tf_describe_create(m);
}

void tf_close(tvmflow_model* m) {
  const tf_opencl* const api = &m->device.api;
  if (m->queue) (void)api->clFinish(m->queue);
  tf_notice_end(m);
  tf_recording_end(m->recording);
  tf_pictures_destroy(m);
  tf_programs_destroy(m);
  tf_memory_destroy(m);
  if (m->queue) (void)api->clReleaseCommandQueue(m->queue);
  if (m->context) (void)api->clReleaseContext(m->context);
  tf_cpu_end(&m->device);
  free(m->given);
  free(m->halves);
  free(m->events);
  free(m->kernels);
  free(m->description);
  tf_cache_close(&m->cache);
}

static tvmflow_status create(tvmflow_model* m, const tvmflow_options* given) {
  tvmflow_options options;
  tvmflow_status status = read_options(m, given, &options);
  if (!status) status = tf_library_check(&m->message);
  return status ? status : tf_backend_open(m, &options);
}

// Gives everything back that there is.
static void release(tvmflow_model* m) {
  tf_close(m);
  tf_weights_close(&m->weights);
  free(m->rejected);
  free(m->missing);
}

tvmflow_status tvmflow_create(const tvmflow_options* options, tvmflow_model** model) {
  if (!model) return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_model* const m = calloc(1, sizeof(tvmflow_model));
  *model = m;
  if (!m) return TVMFLOW_ERROR_MEMORY;
  atomic_store(&m->process, tf_process());
  const tvmflow_status status = create(m, options);
  if (!status) return TVMFLOW_OK;
  release(m);
  const tf_message message = m->message;
  *m = (tvmflow_model){.message = message, .failed = status, .process = tf_process()};
  return status;
}

void tvmflow_destroy(tvmflow_model* m) {
  if (!m) return;
  tf_adopt(m);
  // Nothing is known of what a missing thread was changing.
  if (!m->torn) release(m);
  free(m);
}

tvmflow_status tf_check_idle(tvmflow_model* m, const char* attempt) {
  tvmflow_status status = tf_check(m);
  if (!status && m->broken) status = tf_backend_replace(m);
  if (status || !m->started) return status;
  return tf_fail(&m->message, TVMFLOW_ERROR_BUSY,
                 "%s: a run was started and not waited for. Remedy: call tvmflow_wait first.",
                 attempt);
}

// False: nothing was enqueued, because there is no recording or the driver does not take it.
static bool enqueue_recording(tvmflow_model* m, cl_int* code) {
  if (m->recording_is_old) {
    tf_recording_end(m->recording);
    m->recording = tf_recording_begin(m);
    m->recording_is_old = false;
  }
  if (!m->recording) return false;
  bool begun = false;
  *code = tf_recording_enqueue(m, m->recording, &begun);
  if (*code == CL_SUCCESS) return true;
  // Its first parts may be running.
  (void)m->device.api.clFinish(m->queue);
  tf_recording_end(m->recording);
  m->recording = NULL;
  m->flags |= TVMFLOW_NO_COMMAND_BUFFER;
  // What was begun cannot be begun again: inputs may have been overwritten.
  return begun;
}

static tvmflow_status drain(tvmflow_model* m) {
  const cl_int code = m->device.api.clFinish(m->queue);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_backend_failed(
      m, tf_fail_opencl(&m->message, code, "Waiting for device '%s'", m->device.name));
}

tvmflow_status tf_enqueue(tvmflow_model* m, cl_event* events) {
  const tf_opencl* const api = &m->device.api;
  const tf_shape launches = tf_launches(m);
  tvmflow_status ready = tf_backend_check_inputs(m);
  // What an earlier run has left may still be running.
  if (!ready && m->half_done) ready = drain(m);
  if (ready) return ready;
  atomic_store(&m->stop.cancelled, false);
  atomic_store(&m->stop.running, true);
  cl_int code = CL_SUCCESS;
  uint32_t i = 0;
  m->half_done = true;
  if (events || !enqueue_recording(m, &code)) {
    code = CL_SUCCESS;
    for (; code == CL_SUCCESS && i < launches.launches && !tf_is_stopped(&m->stop); ++i) {
      const tf_step* const s = &m->steps[launches.first_launch + i];
      code = api->clEnqueueNDRangeKernel(m->queue, s->kernel, s->dimensions, NULL, s->global,
                                         s->local, 0, NULL, events ? &events[i] : NULL);
    }
  }
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  (void)api->clFinish(m->queue);
  atomic_store(&m->stop.running, false);
  const tvmflow_status status = tf_fail_opencl(
      &m->message, code, "Running kernel '%s'",
      i ? m->plan.strings + m->plan.launches[launches.first_launch + i - 1].kernel : "(all)");
  return tf_backend_failed(m, status);
}

tvmflow_status tf_finish(tvmflow_model* m) {
  const tvmflow_status status = drain(m);
  const bool cancelled = tf_is_stopped(&m->stop);
  tf_notice_end(m);
  atomic_store(&m->stop.running, false);
  if (status) return status;
  if (cancelled)
    return tf_fail(&m->message, TVMFLOW_ERROR_CANCELLED,
                   "The run was cancelled: there is no result.");
  m->half_done = false;
  m->ran = true;
  tf_programs_store(m);
  return TVMFLOW_OK;
}

tvmflow_status tf_do_run(tvmflow_model* m) {
  tvmflow_status status = tf_check_idle(m, "Running");
  if (!status) status = tf_enqueue(m, NULL);
  return status ? status : tf_finish(m);
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
  // Without memory it is cut.
  m->log(m->log_user, level, whole ? whole : text);
  free(whole);
}
