#include "compile.h"

#include <stdlib.h>

// Builds a program.  A driver may have returned one even if the call failed.
static cl_program build(const tf_device* d, cl_program program, const char* options, cl_int* code) {
  if (*code != CL_SUCCESS) return NULL;
  *code = d->api.clBuildProgram(program, 1, &d->id, options, NULL, NULL);
  return program;
}

cl_program tf_compile(const tf_device* d, cl_context context, const char* source, size_t bytes,
                      const char* options, cl_int* code) {
  const cl_program program = d->api.clCreateProgramWithSource(context, 1, &source, &bytes, code);
  return build(d, program, options, code);
}

cl_program tf_load_binary(const tf_device* d, cl_context context, const uint8_t* binary,
                          size_t bytes, const char* options, cl_int* code) {
  cl_int status = CL_SUCCESS;
  cl_program program =
      d->api.clCreateProgramWithBinary(context, 1, &d->id, &bytes, &binary, &status, code);
  program = build(d, program, options, code);
  if (*code == CL_SUCCESS) *code = status;
  return program;
}

char* tf_build_log(const tf_device* d, cl_program program) {
  size_t bytes = 0;
  if (!program || d->api.clGetProgramBuildInfo(program, d->id, CL_PROGRAM_BUILD_LOG, 0, NULL,
                                               &bytes) != CL_SUCCESS)
    return NULL;
  char* const log = calloc(bytes + 1, 1);
  if (log && d->api.clGetProgramBuildInfo(program, d->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL) ==
                 CL_SUCCESS)
    return log;
  free(log);
  return NULL;
}

uint8_t* tf_program_binary(const tf_device* d, cl_program program, size_t* bytes) {
  *bytes = 0;
  if (d->api.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(*bytes), bytes, NULL) !=
          CL_SUCCESS ||
      *bytes == 0)
    return NULL;
  uint8_t* binary = malloc(*bytes);
  if (binary && d->api.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary,
                                        NULL) == CL_SUCCESS)
    return binary;
  free(binary);
  return NULL;
}
