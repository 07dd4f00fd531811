// The launches, recorded once by the driver and replayed at each run: less work on the host for
// each kernel.  cl_khr_command_buffer and Qualcomm's recordable queues.
#ifndef TVMFLOW_STANDALONE_RECORDING_H
#define TVMFLOW_STANDALONE_RECORDING_H

#include <stdbool.h>

#include "../opencl/cl_types.h"

struct tvmflow_model;
typedef struct tf_recording tf_recording;

// Records all steps; NULL where the driver cannot or the options forbid it, and they are then
// enqueued one by one.
tf_recording* tf_recording_begin(const struct tvmflow_model* model);
// Enqueues what was recorded.  `begun`: also after a failure, something was.
cl_int tf_recording_enqueue(const struct tvmflow_model* model, const tf_recording* recording,
                            bool* begun);
void tf_recording_end(tf_recording* recording);

// The extension that is used, for `tvmflow_describe`.
const char* tf_recording_name(const tf_recording* recording);

#endif
