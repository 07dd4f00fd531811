// Enqueue, start and wait for runs, and report their end to the application.
#include "run.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../core/threads.h"
#include "cpu.h"
#include "entry.h"
#include "model.h"
#include "programs.h"

// CPUs gain nothing, and Intel's runtime leaks 100 KB at each run (docs/notes.md).  Tests record
// there nevertheless, because PoCL has the extension.
#ifndef TF_RECORD_ON_CPUS
#define TF_RECORD_ON_CPUS 0
#endif

// The application's function to call at the end of a run.  The driver may call it after the model
// was destroyed.
struct tf_notice {
  void (*done)(void*, tvmflow_status);
  void* user;
  _Atomic(tvmflow_model*) model;  // NULL: it was destroyed
  atomic_bool begun;              // the call has begun, which does not use the model any more
  atomic_uint references;         // the model's and the driver's
};

static void release(tf_notice* n) {
  if (atomic_fetch_sub(&n->references, 1) == 1) free(n);
}

static void report_end(cl_event event, cl_int code, void* data) {
  (void)event;
  tf_notice* const n = data;
  const tvmflow_model* const m = atomic_load(&n->model);
  const bool cancelled = m && tf_is_stopped(&m->stop);
  atomic_store(&n->begun, true);
  n->done(n->user, cancelled           ? TVMFLOW_ERROR_CANCELLED
                   : code < CL_SUCCESS ? TVMFLOW_ERROR_DEVICE
                                       : TVMFLOW_OK);
  release(n);
}

void tf_notice_end(tvmflow_model* m) {
  tf_notice* const n = m->notice;
  if (!n) return;
  // Drivers call shortly after the end; the wait for one that does not is limited.
  const uint64_t begin = tf_nanoseconds();
  while (!atomic_load(&n->begun) && tf_nanoseconds() - begin < 1000000000u) sched_yield();
  atomic_store(&n->model, NULL);
  m->notice = NULL;
  release(n);
}

// Records all launches of the shape, which costs the host less for each kernel.  NULL: the driver
// cannot or the options forbid it, and they are enqueued one by one.
static tf_recording* record(const tvmflow_model* m) {
  cl_int code;
  // Kernels of a recording cannot be measured separately.
  if (m->flags & (TVMFLOW_NO_COMMAND_BUFFER | TVMFLOW_PROFILE)) return NULL;
  if (m->avoided & TF_AVOID_RECORDING) return NULL;
  if (tf_is_cpu(&m->device) && !TF_RECORD_ON_CPUS) return NULL;
  return tf_recording_begin(&m->device, m->context, m->queue, m->order, m->ordered, &code);
}

// Enqueues the recording.  Returns false if nothing was enqueued, because there is no recording or
// the driver refuses it.
static bool enqueue_recording(tvmflow_model* m, cl_int* code) {
  if (m->recording_is_old) {
    tf_recording_end(m->recording);
    m->recording = record(m);
    m->recording_is_old = false;
  }
  if (!m->recording) return false;
  bool begun = false;
  *code = tf_recording_enqueue(m->recording, &begun);
  if (*code == CL_SUCCESS) return true;
  // The first parts of the recording may be running.
  (void)m->device.api.clFinish(m->queue);
  tf_recording_end(m->recording);
  m->recording = NULL;
  m->flags |= TVMFLOW_NO_COMMAND_BUFFER;
  // A run that has begun cannot begin again: inputs may have been overwritten.
  return begun;
}

tvmflow_status tf_drain(tvmflow_model* m) {
  const cl_int code = m->device.api.clFinish(m->queue);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_device_failed(
      m, tf_fail_opencl(&m->message, code, "Waiting for device '%s'", m->device.name));
}

tvmflow_status tf_enqueue_launches(tvmflow_model* m, uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) {
    const tf_step* const s = &m->steps[i];
    const cl_int code = m->device.api.clEnqueueNDRangeKernel(
        m->queue, s->kernel, s->dimensions, NULL, s->global, s->local, 0, NULL, NULL);
    if (code != CL_SUCCESS)
      return tf_device_failed(m, tf_fail_opencl(&m->message, code, "Running kernel '%s'",
                                                m->plan.strings + m->plan.launches[i].kernel));
  }
  return TVMFLOW_OK;
}

tvmflow_status tf_enqueue(tvmflow_model* m, cl_event* events) {
  const tf_opencl* const api = &m->device.api;
  tvmflow_status ready = tf_check_inputs(m);
  // Kernels of an earlier run may still be running.
  if (!ready && m->half_done) ready = tf_drain(m);
  if (ready) return ready;
  atomic_store(&m->stop.cancelled, false);
  atomic_store(&m->stop.running, true);
  atomic_fetch_add(&m->runs, 1);
  cl_int code = CL_SUCCESS;
  uint32_t i = 0;
  m->half_done = true;
  if (events || !enqueue_recording(m, &code)) {
    code = CL_SUCCESS;
    for (; code == CL_SUCCESS && i < m->ordered && !tf_is_stopped(&m->stop); ++i) {
      const tf_step* const s = &m->order[i];
      code = api->clEnqueueNDRangeKernel(m->queue, s->kernel, s->dimensions, NULL, s->global,
                                         s->local, 0, NULL, events ? &events[i] : NULL);
    }
  }
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  (void)api->clFinish(m->queue);
  atomic_store(&m->stop.running, false);
  const tvmflow_status status =
      tf_fail_opencl(&m->message, code, "Running kernel '%s'",
                     i ? m->plan.strings + m->plan.launches[m->launch_of[i - 1]].kernel : "(all)");
  return tf_device_failed(m, status);
}

tvmflow_status tf_finish(tvmflow_model* m) {
  const tvmflow_status status = tf_drain(m);
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

static tvmflow_status read_options(tvmflow_model* m, const tvmflow_run_options* given,
                                   tvmflow_run_options* options) {
  memset(options, 0, sizeof(*options));
  if (!given) return TVMFLOW_OK;
  if (given->struct_size < offsetof(tvmflow_run_options, user) + sizeof(given->user))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Starting a run: the options' struct_size is %zu, expected "
                   "sizeof(tvmflow_run_options). Remedy: set it.",
                   given->struct_size);
  memcpy(options, given,
         given->struct_size < sizeof(*options) ? given->struct_size : sizeof(*options));
  if (options->wait_count && !options->wait_events)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Starting a run: wait_events is NULL, and wait_count is %u.",
                   options->wait_count);
  const bool events = options->wait_count || options->event;
  if (events && m->backend == TVMFLOW_CPU)
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Starting a run: the network runs on the CPU, where there are no cl_events. "
                   "Remedy: use done, or tvmflow_wait.");
  const tf_opencl* const api = &m->device.api;
  if ((options->wait_count && !api->clEnqueueBarrierWithWaitList) ||
      ((options->event || options->done) && !api->clEnqueueMarkerWithWaitList) ||
      (options->done && !api->clSetEventCallback))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Starting a run: the driver of device '%s' lacks OpenCL's functions for events. "
                   "Remedy: use tvmflow_start.",
                   m->device.name);
  return TVMFLOW_OK;
}

// Creates the event at the end of the run, and has the driver report it.
static cl_int mark_end(tvmflow_model* m, const tvmflow_run_options* options, tf_notice* n) {
  const tf_opencl* const api = &m->device.api;
  cl_event end = NULL;
  cl_int code = api->clEnqueueMarkerWithWaitList(m->queue, 0, NULL, &end);
  if (code != CL_SUCCESS) return code;
  if (n) {
    atomic_store(&n->references, 2);
    code = api->clSetEventCallback(end, CL_COMPLETE, report_end, n);
    if (code == CL_SUCCESS)
      m->notice = n;
    else
      atomic_store(&n->references, 1);
  }
  if (code == CL_SUCCESS && options->event)
    *options->event = end;
  else
    (void)api->clReleaseEvent(end);
  return code;
}

tvmflow_status tf_do_run_async(tvmflow_model* m, const tvmflow_run_options* given) {
  tvmflow_run_options options;
  tvmflow_status status = tf_check_idle(m, "Starting a run");
  if (!status) status = read_options(m, given, &options);
  if (status) return status;
  const tf_opencl* const api = &m->device.api;
  tf_notice* n = options.done ? calloc(1, sizeof(*n)) : NULL;
  if (options.done && !n)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Starting a run: no memory is left.");
  cl_int code = CL_SUCCESS;
  if (options.wait_count)
    code = api->clEnqueueBarrierWithWaitList(
        m->queue, options.wait_count, (const cl_event*)(const void*)options.wait_events, NULL);
  if (code == CL_SUCCESS) status = tf_enqueue(m, NULL);
  if (code == CL_SUCCESS && !status) {
    m->started = true;
    if (n) {
      n->done = options.done;
      n->user = options.user;
      atomic_store(&n->model, m);
    }
    if (n || options.event) code = mark_end(m, &options, n);
    // The driver and the model own it now.
    if (m->notice) n = NULL;
    if (code == CL_SUCCESS) code = api->clFlush(m->queue);
  }
  if (code == CL_SUCCESS && !status) return TVMFLOW_OK;
  free(n);
  if (status) return status;
  (void)tf_do_wait(m);
  m->half_done = true;
  return tf_device_failed(
      m, tf_fail_opencl(&m->message, code, "Starting a run on device '%s'", m->device.name));
}

tvmflow_status tf_do_start(tvmflow_model* m) { return tf_do_run_async(m, NULL); }

tvmflow_status tf_do_wait(tvmflow_model* m) {
  const tvmflow_status status = tf_check(m);
  if (status || !m->started) return status;
  m->started = false;
  return tf_finish(m);
}
