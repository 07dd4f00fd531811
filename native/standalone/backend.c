// The choice of an instance's backend: OpenCL, or this machine's processors.
#include <stdlib.h>
#include <string.h>

#include "../core/threads.h"
#include "companion.h"
#include "entry.h"
#include "model.h"
#include "open.h"
#include "process.h"
#include "programs.h"
#include "weights.h"

// Measured runs of each backend when the faster one is chosen, after one that is not measured.
enum { RUNS = 5 };
static bool has(tvmflow_backend backend) {
  size_t bytes = 0;
  (void)tf_library_plan(backend, &bytes);
  return bytes != 0;
}

// Opens the CPU's plan instead of OpenCL, which cannot be used; the message says why.
static tvmflow_status fall_back(tvmflow_model* m, const tvmflow_options* options,
                                tvmflow_status status) {
  char* const reason = strdup(m->message.text);
  tf_log(m, TVMFLOW_LOG_WARNING, "OpenCL is not used: %s", m->message.text);
  free(m->rejected);
  tf_companion_end(m->companion);
  tf_close(m);
  const tvmflow_model kept = {.weights = m->weights,
                              .log = m->log,
                              .log_user = m->log_user,
                              .priority = m->priority,
                              .performance = m->performance,
                              .flags = m->flags,
                              .rejected = reason,
                              .faults = m->faults,
                              .rejected_status = status,
                              .cpu_threads = m->cpu_threads,
                              .device_index = m->device_index,
                              .drivers = m->drivers,
                              .missing = m->missing};
  // Other threads may read the fields before `message`.
  const size_t begin = offsetof(tvmflow_model, message);
  memcpy((char*)m + begin, (const char*)&kept + begin, sizeof(*m) - begin);
  return tf_open(m, options, TVMFLOW_CPU);
}

// Measures the least time of a run, with the inputs as they are.
static tvmflow_status measure(tvmflow_model* m, uint64_t* least) {
  tvmflow_status status = tf_do_run(m);
  for (unsigned i = 0; !status && i < RUNS; ++i) {
    const uint64_t begin = tf_nanoseconds();
    status = tf_do_run(m);
    const uint64_t taken = tf_nanoseconds() - begin;
    if (!i || taken < *least) *least = taken;
  }
  return status;
}

// Returns whether the CPU takes less time than the instance, which uses OpenCL.
static bool cpu_is_faster(tvmflow_model* m) {
  const tvmflow_options options = {.struct_size = sizeof(options),
                                   .backend = TVMFLOW_CPU,
                                   .flags = m->flags,
                                   .cpu_threads = m->cpu_threads};
  tvmflow_model* const other = calloc(1, sizeof(tvmflow_model));
  if (!other) return false;
  atomic_store(&other->process, tf_process());
  other->flags = m->flags;
  other->cpu_threads = m->cpu_threads;
  uint64_t of_opencl = 0, of_cpu = 0;
  const bool faster = !measure(m, &of_opencl) && !tf_open(other, &options, TVMFLOW_CPU) &&
                      !measure(other, &of_cpu) && of_cpu < of_opencl;
  tf_release(other);
  free(other);
  if (faster)
    (void)tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                  "Device '%s' takes %.3g ms a run, the CPU %.3g ms.", m->device.name,
                  (double)of_opencl * 1e-6, (double)of_cpu * 1e-6);
  return faster;
}

tvmflow_status tf_backend_open(tvmflow_model* m, const tvmflow_options* options) {
  const tvmflow_backend asked = (tvmflow_backend)options->backend;
  const bool opencl = has(TVMFLOW_OPENCL), cpu = has(TVMFLOW_CPU);
  if (options->backend > TVMFLOW_CPU)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' backend is %u, expected one of tvmflow_backend.",
                   options->backend);
  if ((asked == TVMFLOW_OPENCL && !opencl) || (asked == TVMFLOW_CPU && !cpu))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "The options' backend is %s, but the library has kernels for %s only. Remedy: "
                   "compile it with %s.",
                   cpu ? "opencl" : "cpu", cpu ? "the CPU" : "OpenCL",
                   cpu ? "--target opencl" : "--fallback cpu");
  m->cpu_threads = options->cpu_threads;
  m->device_index = options->device_index;
  m->drivers = options->drivers ? strdup(options->drivers) : NULL;
  m->may_fall_back = asked == TVMFLOW_AUTO && opencl && cpu;
  const bool on_cpu = asked == TVMFLOW_CPU || !opencl;
  tvmflow_status status = tf_open(m, options, on_cpu ? TVMFLOW_CPU : TVMFLOW_OPENCL);
  if (on_cpu || asked != TVMFLOW_AUTO || status == TVMFLOW_ERROR_ARGUMENT ||
      status == TVMFLOW_ERROR_DAMAGED)
    return status;
  const bool tests = !status && tf_count(&m->plan, TF_TEST_OUTPUTS) &&
                     (cpu || tf_count(&m->plan, TF_ALTERNATIVES));
  if (!status && !m->tested && (cpu || tests)) {
    if (tests) status = tf_do_self_test(m, NULL);
    if (!status && m->flags & TVMFLOW_CHOOSE_FASTER && cpu_is_faster(m))
      status = TVMFLOW_ERROR_UNSUPPORTED;
    if (m->broken) status = TVMFLOW_ERROR_DEVICE;
    // The choice is not stored after other failures, whose cause may be temporary.
    if (!status ||
        (cpu && (status == TVMFLOW_ERROR_WRONG || status == TVMFLOW_ERROR_UNSUPPORTED))) {
      m->tested = true;
      tf_choice_store(m, cpu && status);
    }
  }
  // Repeated runs in a thread find a device that is wrong only at times.
  if (!status && tests && m->cache.folder && m->equal_runs < TF_STEADY_RUNS &&
      !(m->flags & TVMFLOW_NO_REPEATED_RUNS)) {
    tf_programs_stored(m);
    m->companion = tf_companion_begin(m, TF_TEST, (tf_tune_order){0});
  }
  return status && cpu ? fall_back(m, options, status) : status;
}

tvmflow_status tf_backend_replace(tvmflow_model* m) {
  const uint32_t shape = m->shape, inputs = tf_count_each(&m->plan, TF_INPUTS);
  const tvmflow_options options = {.flags = m->flags, .cpu_threads = m->cpu_threads};
  // The inputs' data is lost with the device.
  memset(m->missing, 1, inputs);
  const tvmflow_status status = fall_back(m, &options, TVMFLOW_ERROR_DEVICE);
  if (status) return m->failed = status;
  return shape ? tf_do_choose_shape(m, shape) : TVMFLOW_OK;
}

tvmflow_backend tvmflow_backend_used(const tvmflow_model* m) {
  if (m) tf_adopt((tvmflow_model*)(uintptr_t)m);
  return tf_check(m) ? TVMFLOW_AUTO : m->backend;
}
