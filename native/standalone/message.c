#include "message.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../core/errors.h"

static tvmflow_status status_of(cl_int code) {
  // Memory object, resources, host memory.
  if (code == -4 || code == -5 || code == -6) return TVMFLOW_ERROR_MEMORY;
  // Image format, image size, buffer size, image descriptor.
  if (code == -10 || code == -40 || code == -61 || code == -65) return TVMFLOW_ERROR_UNSUPPORTED;
  return TVMFLOW_ERROR_DEVICE;
}

tvmflow_status tf_fail(tf_message* message, tvmflow_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message->text, sizeof(message->text), format, arguments);
  va_end(arguments);
  return status;
}

tvmflow_status tf_fail_opencl(tf_message* message, cl_int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message->text, sizeof(message->text), format, arguments);
  va_end(arguments);
  const char* hint;
  const char* const name = tf_error_name(code, &hint);
  tf_append(message->text, sizeof(message->text), " failed with %s (%d)%s%s.", name, (int)code,
            *hint ? ": " : "", hint);
  return status_of(code);
}
