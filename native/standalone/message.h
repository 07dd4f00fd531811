// Messages about failures, in fixed memory because an allocation may be what failed.
#ifndef TVMFLOW_STANDALONE_MESSAGE_H
#define TVMFLOW_STANDALONE_MESSAGE_H

#include "../bindings/tvmflow.h"
#include "../core/cl_types.h"
#include "../core/text.h"

// Enough for a few sentences and a driver's build log.
#define TF_MESSAGE_BYTES 8192

typedef struct tf_message {
  char text[TF_MESSAGE_BYTES];
} tf_message;

// Writes the message, cut if it is too long, and returns `status`.
tvmflow_status tf_fail(tf_message* message, tvmflow_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Does the same for an OpenCL call: `format` says what was attempted, and the code gives its name,
// its usual cause and the status.
tvmflow_status tf_fail_opencl(tf_message* message, cl_int code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
