// OpenCL's error codes in words.
#pragma once

#include "cl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

// Returns the name of a code in OpenCL's specification, such as "CL_OUT_OF_RESOURCES", and sets the
// usual cause or remedy; "": none is known.
const char* tf_error_name(cl_int code, const char** hint);

#ifdef __cplusplus
}
#endif
