// Open and close what an instance needs for one of the library's plans: device, queue, memory,
// programs.
#include "open.h"

#include <stdlib.h>

#include "alternatives.h"
#include "cache.h"
#include "cpu.h"
#include "driver_faults.h"
#include "find_device.h"
#include "model.h"
#include "picture.h"
#include "process.h"
#include "programs.h"
#include "run.h"
#include "tensors.h"
#include "weights.h"

// Values from the specifications of cl_khr_priority_hints, cl_qcom_priority_hint and
// cl_qcom_perf_hint.
enum {
  QUEUE_PROPERTIES = 0x1093,
  QUEUE_PRIORITY_KHR = 0x1096,
  CONTEXT_PRIORITY_HINT_QCOM = 0x40C9,
  CONTEXT_PERF_HINT_QCOM = 0x40C2,  // the values follow, in the order of tvmflow_performance
};
static const cl_ulong priorities_khr[] = {0, 1u << 2, 1u << 0};
static const intptr_t priorities_qcom[] = {0, 0x40CC, 0x40CA};

typedef cl_command_queue (*create_queue_with_properties)(cl_context, cl_device_id, const cl_ulong*,
                                                         cl_int*);

// Creates a queue with the priority.  NULL: the driver has no priorities of queues, or refuses.
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
    const bool clocks = m->performance && tf_device_has(&m->device, "cl_qcom_perf_hint");
    if (m->performance && !clocks)
      tf_log(m, TVMFLOW_LOG_WARNING, "Device '%s' takes no hint of performance.", m->device.name);
    intptr_t properties[7] = {CL_CONTEXT_PLATFORM, (intptr_t)m->device.platform};
    uint32_t count = 2;
    if (qcom) {
      properties[count++] = CONTEXT_PRIORITY_HINT_QCOM;
      properties[count++] = priorities_qcom[m->priority];
    }
    if (clocks) {
      properties[count++] = CONTEXT_PERF_HINT_QCOM;
      properties[count++] = CONTEXT_PERF_HINT_QCOM + (intptr_t)m->performance;
    }
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

// Allocates the buffers of runs, so that no run allocates.
static tvmflow_status allocate_buffers(tvmflow_model* m) {
  size_t halves = 0;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_INPUTS) + tf_count(&m->plan, TF_OUTPUTS); ++i) {
    const uint32_t inputs = tf_count(&m->plan, TF_INPUTS);
    const tf_interface* const t = i < inputs ? &m->plan.inputs[i] : &m->plan.outputs[i - inputs];
    if (t->half && tf_elements(t) > halves) halves = tf_elements(t);
  }
  // Alternatives may have more launches than one shape.
  const uint32_t launches = tf_count(&m->plan, TF_LAUNCHES);
  // Both plans have the same inputs, so it stays when the CPU replaces a device.
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
  if (!status) status = tf_faults_find(m, options->drivers);
  if (m->avoided & TF_AVOID_PRIORITY) m->priority = TVMFLOW_PRIORITY_DEFAULT;
  if (!status) status = tf_choice_recall(m);
  if (!status) status = make_queue(m, options);
  if (!status) status = tf_weights_checked(&m->weights, &m->message);
  if (!status) status = tf_memory_create(m);
  if (!status) status = tf_programs_create(m);
  if (!status) status = tf_alternatives_create(m);
  if (!status)
    tf_log(m, TVMFLOW_LOG_INFO, "%u of %u programs were built, %u came with the library.", m->built,
           tf_count(&m->plan, TF_PROGRAMS), m->shipped);
  if (!status && *m->cache.note)
    tf_log(m, TVMFLOW_LOG_WARNING, "Programs are not kept: %s.", m->cache.note);
  if (!status) status = tf_pictures_create(m);
  tf_sources_forget(m);
  if (!status) status = allocate_buffers(m);
  // Other drivers finish compiling in the first run only.
  if (!status && !m->device.is_pocl) tf_programs_store(m);
  return status ? status : tf_describe_create(m);
}

void tf_close(tvmflow_model* m) {
  const tf_opencl* const api = &m->device.api;
  if (m->queue) (void)api->clFinish(m->queue);
  tf_notice_end(m);
  tf_recording_end(m->recording);
  tf_pictures_destroy(m);
  tf_programs_destroy(m);
  tf_alternatives_destroy(m);
  tf_memory_destroy(m);
  if (m->queue) (void)api->clReleaseCommandQueue(m->queue);
  if (m->context) (void)api->clReleaseContext(m->context);
  tf_cpu_end(&m->device);
  free(m->given);
  free(m->halves);
  free(m->events);
  free(m->kernels);
  free(m->description);
  free(m->report);
  free(m->tuned);
  tf_cache_close(&m->cache);
}

void tf_release(tvmflow_model* m) {
  tf_close(m);
  tf_weights_close(&m->weights);
  free(m->rejected);
  free(m->drivers);
  free(m->faults);
  free(m->missing);
}
