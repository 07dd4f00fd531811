// Sentences that say what failed: kept in a fixed place, because memory may be what is missing.
#ifndef TVMFLOW_STANDALONE_MESSAGE_H
#define TVMFLOW_STANDALONE_MESSAGE_H

#include "../bindings/tvmflow.h"
#include "../opencl/cl_types.h"

// Room for a few sentences and a driver's build log.
#define TF_MESSAGE_BYTES 8192

typedef struct tf_message {
  char text[TF_MESSAGE_BYTES];
} tf_message;

// Writes the message, cut where it is too long, and returns `status`.
tvmflow_status tf_fail(tf_message* message, tvmflow_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// The same for an OpenCL call: `format` says what was attempted; the code's name, its usual
// cause and the status follow from the code.
tvmflow_status tf_fail_opencl(tf_message* message, cl_int code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Adds to a text of `bytes` bytes, as far as there is room.
void tf_append(char* text, size_t bytes, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
