#include "recording.h"

#include <stdlib.h>
#include <string.h>

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
  const tf_device* device;
  cl_command_queue queue;
  create_command_buffer create_buffer;
  command_ndrange_kernel record_kernel;
  enqueue_command_buffer enqueue_buffer;
  cl_command_queue recordable;  // Qualcomm's: it records what is enqueued; NULL: command buffers
  new_recording create_recording;
  enqueue_recording enqueue_recording;
  of_handle finish;
  of_handle release;
  cl_uint limit;  // launches that a part takes
  size_t count;
  void* parts[];  // command buffers or Qualcomm's recordings
};

// Finds an extension's function.  C has no conversion from void* to function pointers, but POSIX
// guarantees that they fit.
static bool find(const tf_recording* r, const char* name, void* function) {
  void* const address = tf_opencl_extension(&r->device->api, r->device->platform, name);
  memcpy(function, &address, sizeof(address));
  return address != NULL;
}

static bool find_command_buffers(tf_recording* r) {
  r->name = "cl_khr_command_buffer";
  r->limit = UINT32_MAX;
  return tf_device_has(r->device, r->name) &&
         find(r, "clCreateCommandBufferKHR", &r->create_buffer) &&
         find(r, "clCommandNDRangeKernelKHR", &r->record_kernel) &&
         find(r, "clFinalizeCommandBufferKHR", &r->finish) &&
         find(r, "clEnqueueCommandBufferKHR", &r->enqueue_buffer) &&
         find(r, "clReleaseCommandBufferKHR", &r->release);
}

static bool find_recordable_queue(tf_recording* r, cl_context context, cl_int* code) {
  const tf_opencl* const api = &r->device->api;
  r->name = "cl_qcom_recordable_queues";
  r->limit = 0;
  if (!tf_device_has(r->device, r->name) || !find(r, "clNewRecordingQCOM", &r->create_recording) ||
      !find(r, "clEndRecordingQCOM", &r->finish) ||
      !find(r, "clEnqueueRecordingQCOM", &r->enqueue_recording) ||
      !find(r, "clReleaseRecordingQCOM", &r->release) ||
      api->clGetDeviceInfo(r->device->id, DEVICE_RECORDABLE_QUEUE_MAX_SIZE_QCOM, sizeof(r->limit),
                           &r->limit, NULL) != CL_SUCCESS ||
      r->limit == 0)
    return false;
  r->recordable = api->clCreateCommandQueue(context, r->device->id, queue_recordable_qcom, code);
  if (*code != CL_SUCCESS) r->recordable = NULL;
  return r->recordable != NULL;
}

static cl_int record(tf_recording* r, const tf_step* steps, size_t count) {
  const tf_opencl* const api = &r->device->api;
  cl_int code = CL_SUCCESS;
  for (size_t first = 0; code == CL_SUCCESS && first < count; first += r->limit) {
    void* const part = r->recordable ? r->create_recording(r->recordable, &code)
                                     : r->create_buffer(1, &r->queue, NULL, &code);
    if (code != CL_SUCCESS || !part) return code ? code : CL_OUT_OF_RESOURCES;
    r->parts[r->count++] = part;
    for (size_t i = first; code == CL_SUCCESS && i < count && i - first < r->limit; ++i) {
      const tf_step* const s = &steps[i];
      const size_t* const local = s->local[0] ? s->local : NULL;
      // The queue is in order, so that the commands are too, without synchronization points.
      code = r->recordable ? api->clEnqueueNDRangeKernel(r->recordable, s->kernel, s->dimensions,
                                                         NULL, s->global, local, 0, NULL, NULL)
                           : r->record_kernel(part, NULL, NULL, s->kernel, s->dimensions, NULL,
                                              s->global, local, 0, NULL, NULL, NULL);
    }
    const cl_int finished = r->finish(part);
    if (code == CL_SUCCESS) code = finished;
  }
  return code;
}

tf_recording* tf_recording_begin(const tf_device* device, cl_context context,
                                 cl_command_queue queue, const tf_step* steps, size_t count,
                                 cl_int* code) {
  *code = CL_SUCCESS;
  for (int i = 0; i < 2; ++i) {
    // Each part has at least one launch.
    tf_recording* const r = calloc(1, sizeof(*r) + count * sizeof(void*));
    if (!r) {
      *code = CL_OUT_OF_HOST_MEMORY;
      return NULL;
    }
    r->device = device;
    r->queue = queue;
    if (i == 0 ? find_command_buffers(r) : find_recordable_queue(r, context, code)) {
      *code = record(r, steps, count);
      if (*code == CL_SUCCESS) return r;
    }
    tf_recording_end(r);
  }
  return NULL;
}

cl_int tf_recording_enqueue(const tf_recording* r, bool* begun) {
  cl_int code = CL_SUCCESS;
  for (size_t i = 0; code == CL_SUCCESS && i < r->count; ++i) {
    *begun = i > 0;
    code = r->recordable ? r->enqueue_recording(r->queue, r->parts[i], 0, NULL, 0, NULL, 0, NULL, 0,
                                                NULL, 0, NULL, NULL)
                         : r->enqueue_buffer(0, NULL, r->parts[i], 0, NULL, NULL);
  }
  return code;
}

void tf_recording_end(tf_recording* r) {
  if (!r) return;
  for (size_t i = 0; i < r->count; ++i) (void)r->release(r->parts[i]);
  if (r->recordable) (void)r->device->api.clReleaseCommandQueue(r->recordable);
  free(r);
}

const char* tf_recording_name(const tf_recording* recording) { return recording->name; }
