// Programs of the driver's compiler.
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// Both build a program, which the caller releases.  It is NULL if the driver made none; on other
// failures, set in `code`, it has the compiler's messages.
cl_program tf_compile(const tf_device* device, cl_context context, const char* source, size_t bytes,
                      const char* options, cl_int* code);
cl_program tf_load_binary(const tf_device* device, cl_context context, const uint8_t* binary,
                          size_t bytes, const char* options, cl_int* code);

// Returns the compiler's messages; the caller frees them.  NULL: there are none.
char* tf_build_log(const tf_device* device, cl_program program);

// Returns the program's binary; the caller frees it.  NULL: the driver has none.
uint8_t* tf_program_binary(const tf_device* device, cl_program program, size_t* bytes);

#ifdef __cplusplus
}
#endif
