#include "../core/commands.h"
#include "entry.h"
#include "model.h"
#include "run.h"

static tvmflow_status read_times(tvmflow_model* m) {
  for (uint32_t i = 0; i < m->ordered; ++i) {
    const tf_launch* const l = &m->plan.launches[m->launch_of[i]];
    tvmflow_kernel* const k = &m->kernels[i];
    k->name = m->plan.strings + l->kernel;
    k->function = m->plan.strings + l->function;
    const cl_int code = tf_event_times(&m->device, m->events[i], &k->start_ns, &k->end_ns);
    if (code != CL_SUCCESS)
      return tf_fail_opencl(&m->message, code, "Reading the time of kernel '%s'", k->name);
  }
  return TVMFLOW_OK;
}

tvmflow_status tf_do_profile(tvmflow_model* m, const tvmflow_kernel** kernels, uint32_t* count) {
  tvmflow_status status = tf_check_idle(m, "Profiling");
  if (status) return status;
  if (!kernels || !count)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT, "Profiling: kernels or count is NULL.");
  if (!(m->flags & TVMFLOW_PROFILE))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Profiling: kernels are not measured. Remedy: set TVMFLOW_PROFILE in the "
                   "options' flags.");
  const uint32_t launches = m->ordered;
  status = tf_enqueue(m, m->events);
  if (!status) status = tf_finish(m);
  if (!status) status = read_times(m);
  for (uint32_t i = 0; i < launches; ++i) {
    if (m->events[i]) (void)m->device.api.clReleaseEvent(m->events[i]);
    m->events[i] = NULL;
  }
  if (status) return status;
  *kernels = m->kernels;
  *count = launches;
  return TVMFLOW_OK;
}
