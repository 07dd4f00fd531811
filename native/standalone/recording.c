// Record the launches once and replay them at each run, which costs the host less for each kernel:
// with cl_khr_command_buffer or Qualcomm's recordable queues.
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "model.h"
#include "programs.h"
#include "run.h"

// CPUs gain nothing, and Intel's runtime leaks 100 KB at each run (docs/notes.md).  Tests record
// there nevertheless, because PoCL has the extension.
#ifndef TF_RECORD_ON_CPUS
#define TF_RECORD_ON_CPUS 0
#endif

// Values from the specifications of cl_qcom_recordable_queues 1.0 and of cl_khr_command_buffer,
// whose functions used here have not changed since version 0.9.0.
enum { DEVICE_RECORDABLE_QUEUE_MAX_SIZE_QCOM = 0x41DE };
static const cl_bitfield queue_recordable_qcom = 1u << 30;

typedef void* (*create_command_buffer)(cl_uint, const cl_command_queue*, const cl_ulong*, cl_int*);
typedef cl_int (*command_ndrange_kernel)(void*, cl_command_queue, const cl_ulong*, cl_kernel,
                                         cl_uint, const size_t*, const size_t*, const size_t*,
                                         cl_uint, const cl_uint*, cl_uint*, void**);
typedef cl_int (*enqueue_command_buffer)(cl_uint, cl_command_queue*, void*, cl_uint,
                                         const cl_event*, cl_event*);
typedef void* (*new_recording)(cl_command_queue, cl_int*);
typedef cl_int (*enqueue_recording)(cl_command_queue, void*, size_t, const void*, size_t,
                                    const void*, size_t, const void*, size_t, const void*, cl_uint,
                                    const cl_event*, cl_event*);
typedef cl_int (*of_handle)(void*);

struct tf_recording {
  const char* name;
  // Command buffers or Qualcomm's recordings, which take a limited number of launches each.
  void** parts;
  size_t count;
  of_handle release;
  enqueue_command_buffer enqueue_buffer;  // one of these is NULL
  enqueue_recording enqueue_qcom;
  cl_command_queue recordable;  // Qualcomm's: it records what is enqueued
  const tf_opencl* api;
};

// Finds an extension's function.  C has no conversion from void* to function pointers, but POSIX
// guarantees that they fit.
static bool find(const tvmflow_model* m, const char* name, void* function) {
  void* const address = tf_opencl_extension(&m->device.api, m->device.platform, name);
  memcpy(function, &address, sizeof(address));
  return address != NULL;
}

typedef bool record(const tvmflow_model* m, tf_recording* r);

static bool record_command_buffer(const tvmflow_model* m, tf_recording* r) {
  create_command_buffer create;
  command_ndrange_kernel launch;
  of_handle finalize;
  if (!tf_device_has(&m->device, "cl_khr_command_buffer") ||
      !find(m, "clCreateCommandBufferKHR", &create) ||
      !find(m, "clCommandNDRangeKernelKHR", &launch) ||
      !find(m, "clFinalizeCommandBufferKHR", &finalize) ||
      !find(m, "clEnqueueCommandBufferKHR", &r->enqueue_buffer) ||
      !find(m, "clReleaseCommandBufferKHR", &r->release))
    return false;
  r->name = "cl_khr_command_buffer";
  cl_int code = CL_SUCCESS;
  void* const buffer = create(1, &m->queue, NULL, &code);
  if (code != CL_SUCCESS || !buffer) return false;
  r->parts[r->count++] = buffer;
  const tf_shape launches = tf_launches(m);
  for (uint32_t i = 0; i < launches.launches; ++i) {
    const tf_step* const s = &m->steps[launches.first_launch + i];
    // The queue is in order, so that the commands are too, without synchronization points.
    code = launch(buffer, NULL, NULL, s->kernel, s->dimensions, NULL, s->global, s->local, 0, NULL,
                  NULL, NULL);
    if (code != CL_SUCCESS) return false;
  }
  return finalize(buffer) == CL_SUCCESS;
}

static bool record_qualcomm(const tvmflow_model* m, tf_recording* r) {
  new_recording create;
  of_handle finish;
  cl_uint limit = 0;
  if (!tf_device_has(&m->device, "cl_qcom_recordable_queues") ||
      !find(m, "clNewRecordingQCOM", &create) || !find(m, "clEndRecordingQCOM", &finish) ||
      !find(m, "clEnqueueRecordingQCOM", &r->enqueue_qcom) ||
      !find(m, "clReleaseRecordingQCOM", &r->release) ||
      r->api->clGetDeviceInfo(m->device.id, DEVICE_RECORDABLE_QUEUE_MAX_SIZE_QCOM, sizeof(limit),
                              &limit, NULL) != CL_SUCCESS ||
      limit == 0)
    return false;
  r->name = "cl_qcom_recordable_queues";
  cl_int code = CL_SUCCESS;
  r->recordable =
      r->api->clCreateCommandQueue(m->context, m->device.id, queue_recordable_qcom, &code);
  if (code != CL_SUCCESS) {
    r->recordable = NULL;
    return false;
  }
  const uint32_t launches = tf_launches(m).launches;
  const tf_step* const steps = m->steps + tf_launches(m).first_launch;
  for (uint32_t first = 0; first < launches; first += limit) {
    void* const recording = create(r->recordable, &code);
    if (code != CL_SUCCESS || !recording) return false;
    r->parts[r->count++] = recording;
    for (uint32_t i = first; code == CL_SUCCESS && i < launches && i - first < limit; ++i) {
      const tf_step* const s = &steps[i];
      code = r->api->clEnqueueNDRangeKernel(r->recordable, s->kernel, s->dimensions, NULL,
                                            s->global, s->local, 0, NULL, NULL);
    }
    if (finish(recording) != CL_SUCCESS || code != CL_SUCCESS) return false;
  }
  return true;
}

tf_recording* tf_recording_begin(const tvmflow_model* m) {
  // Kernels of a recording cannot be measured separately.
  if (m->flags & (TVMFLOW_NO_COMMAND_BUFFER | TVMFLOW_PROFILE)) return NULL;
  if (tf_is_cpu(&m->device) && !TF_RECORD_ON_CPUS) return NULL;
  record* const records[] = {record_command_buffer, record_qualcomm};
  for (unsigned i = 0; i < 2; ++i) {
    tf_recording* const r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->api = &m->device.api;
    // Each recording has at least one launch.
    r->parts = calloc(tf_count(&m->plan, TF_LAUNCHES) + 1u, sizeof(void*));
    if (r->parts && records[i](m, r)) return r;
    tf_recording_end(r);
  }
  return NULL;
}

cl_int tf_recording_enqueue(const tvmflow_model* m, const tf_recording* r, bool* begun) {
  cl_int code = CL_SUCCESS;
  for (size_t i = 0; code == CL_SUCCESS && i < r->count; ++i) {
    *begun = i > 0;
    code = r->enqueue_buffer ? r->enqueue_buffer(0, NULL, r->parts[i], 0, NULL, NULL)
                             : r->enqueue_qcom(m->queue, r->parts[i], 0, NULL, 0, NULL, 0, NULL, 0,
                                               NULL, 0, NULL, NULL);
  }
  return code;
}

void tf_recording_end(tf_recording* r) {
  if (!r) return;
  for (size_t i = 0; i < r->count; ++i) (void)r->release(r->parts[i]);
  if (r->recordable) (void)r->api->clReleaseCommandQueue(r->recordable);
  free(r->parts);
  free(r);
}

const char* tf_recording_name(const tf_recording* recording) { return recording->name; }
