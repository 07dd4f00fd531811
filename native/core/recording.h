// Recordings of launches, which replay them at less cost for the host: cl_khr_command_buffer and
// Qualcomm's cl_qcom_recordable_queues.
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A kernel with its arguments set, and its work sizes.
typedef struct tf_step {
  cl_kernel kernel;
  cl_uint dimensions;
  size_t global[3];
  size_t local[3];  // zeros: the driver's choice
} tf_step;

typedef struct tf_recording tf_recording;

// Records launches for a queue that runs in order, with the arguments that their kernels have now.
// The device and the kernels must outlive the recording.  NULL: the device has neither extension
// with its functions (the code is CL_SUCCESS), or recording failed with the code.
tf_recording* tf_recording_begin(const tf_device* device, cl_context context,
                                 cl_command_queue queue, const tf_step* steps, size_t count,
                                 cl_int* code);
// Enqueues the recording, whose last replay must have ended.  `begun`: a part of it was enqueued,
// also after a failure.
cl_int tf_recording_enqueue(const tf_recording* recording, bool* begun);
// Releases a recording whose last replay has ended; it may be NULL.
void tf_recording_end(tf_recording* recording);
// Returns the name of the extension that is used.
const char* tf_recording_name(const tf_recording* recording);

#ifdef __cplusplus
}
#endif
