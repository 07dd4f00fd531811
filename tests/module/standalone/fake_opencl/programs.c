// Programs: of a source whose kernels' declarations are understood, or of a binary of one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

// A binary is this and the source.
typedef struct binary_header {
  char magic[8];
  uint32_t complete;  // made after a launch
  uint32_t sum;       // of the source's bytes
  char driver[16];    // that made it
} binary_header;

static uint32_t sum_of(const char* bytes, size_t count) {
  uint32_t sum = 17;
  for (size_t i = 0; i < count; ++i) sum = sum * 31 + (unsigned char)bytes[i];
  return sum;
}

static void destroy_program(fake_object* object) {
  fake_program* program = (fake_program*)object;
  free(program->source);
  free(program->options);
  free(program->log);
}

static fake_program* new_program(cl_context context, const char* source, size_t bytes) {
  fake_program* program =
      fake_new(sizeof(*program), FAKE_PROGRAM, (fake_object*)context, destroy_program);
  program->source = calloc(1, bytes + 1);
  memcpy(program->source, source, bytes);
  return program;
}

FAKE_API cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char** texts,
                                              const size_t* lengths, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(fake_alive(context, FAKE_CONTEXT), code, CL_INVALID_CONTEXT, "no context");
  FAKE_REQUIRE_CREATE(count == 1 && texts && texts[0], code, CL_INVALID_VALUE,
                      "%u texts: one is understood here", count);
  const size_t bytes = lengths && lengths[0] ? lengths[0] : strlen(texts[0]);
  return (cl_program)new_program(context, texts[0], bytes);
}

FAKE_API cl_program clCreateProgramWithBinary(cl_context context, cl_uint count,
                                              const cl_device_id* devices, const size_t* lengths,
                                              const unsigned char** binaries, cl_int* status,
                                              cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(fake_alive(context, FAKE_CONTEXT), code, CL_INVALID_CONTEXT, "no context");
  FAKE_REQUIRE_CREATE(count == 1 && devices && lengths && lengths[0] && binaries && binaries[0],
                      code, CL_INVALID_VALUE, "no device or no binary");
  FAKE_REQUIRE_CREATE(fake_alive(devices[0], FAKE_DEVICE), code, CL_INVALID_DEVICE, "no device");
  binary_header header = {{0}, 0, 0, {0}};
  const char* source = (const char*)binaries[0] + sizeof(header);
  if (lengths[0] >= sizeof(header)) memcpy(&header, binaries[0], sizeof(header));
  const bool good = !fake_is("BINARIES", "refuse") && memcmp(header.magic, "FAKEBIN", 8) == 0 &&
                    strcmp(header.driver, fake_text("DRIVER")) == 0 &&
                    header.sum == sum_of(source, lengths[0] - sizeof(header));
  if (status) *status = good ? CL_SUCCESS : CL_INVALID_BINARY;
  if (!good) {
    if (code) *code = CL_INVALID_BINARY;
    return NULL;
  }
  fake_program* program = new_program(context, source, lengths[0] - sizeof(header));
  program->from_binary = true;
  program->complete = header.complete;
  return (cl_program)program;
}

FAKE_API cl_int clBuildProgram(cl_program handle, cl_uint count, const cl_device_id* devices,
                               const char* options, void (*notify)(cl_program, void*), void* user) {
  FAKE_ENTER();
  fake_program* program = (fake_program*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_PROGRAM), CL_INVALID_PROGRAM, "no program");
  FAKE_REQUIRE(!devices == (count == 0) && (!devices || fake_alive(devices[0], FAKE_DEVICE)),
               CL_INVALID_DEVICE, "%u devices", count);
  FAKE_REQUIRE(!notify && !user, CL_INVALID_VALUE, "built without waiting: not here");
  FAKE_REQUIRE(!program->built, CL_INVALID_OPERATION, "built before");
  free(program->options);
  program->options = strdup(options ? options : "");
  free(program->log);
  program->log = NULL;
  if (program->from_binary) {
    fake_note("binary");
    if (!program->complete) fake_note("incomplete");
  } else {
    fake_note("source");
    const char* broken = strstr(program->source, "BROKEN");
    if (broken || fake_is("BUILD", "fail")) {
      program->log = calloc(1, 128);
      snprintf(program->log, 128, "fake.cl:1:1: error: use of undeclared identifier '%s'",
               broken ? "BROKEN" : "anything");
      return CL_BUILD_PROGRAM_FAILURE;
    }
  }
  program->built = true;
  return CL_SUCCESS;
}

FAKE_API cl_int clGetProgramBuildInfo(cl_program handle, cl_device_id device, cl_uint what,
                                      size_t room, void* destination, size_t* needed) {
  FAKE_ENTER();
  const fake_program* program = (const fake_program*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_PROGRAM), CL_INVALID_PROGRAM, "no program");
  FAKE_REQUIRE(fake_alive(device, FAKE_DEVICE), CL_INVALID_DEVICE, "no device");
  FAKE_REQUIRE(what == CL_PROGRAM_BUILD_LOG, CL_INVALID_VALUE, "0x%x is unknown", what);
  const char* log = program->log ? program->log : "";
  return fake_give(__func__, log, strlen(log) + 1, room, destination, needed);
}

FAKE_API cl_int clGetProgramInfo(cl_program handle, cl_uint what, size_t room, void* destination,
                                 size_t* needed) {
  FAKE_ENTER();
  const fake_program* program = (const fake_program*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_PROGRAM), CL_INVALID_PROGRAM, "no program");
  const size_t source = strlen(program->source);
  const size_t bytes =
      !program->built || fake_is("BINARIES", "none") ? 0 : sizeof(binary_header) + source;
  if (what == CL_PROGRAM_BINARY_SIZES)
    return fake_give(__func__, &bytes, sizeof(bytes), room, destination, needed);
  FAKE_REQUIRE(what == CL_PROGRAM_BINARIES && destination && room >= sizeof(void*),
               CL_INVALID_VALUE, "0x%x is unknown, or there is no room", what);
  unsigned char* binary = *(unsigned char**)destination;
  if (!binary || !bytes) return CL_SUCCESS;
  binary_header header = {"FAKEBIN",
                          program->complete || !fake_is("BINARIES", "late"),
                          sum_of(program->source, source),
                          {0}};
  snprintf(header.driver, sizeof(header.driver), "%s", fake_text("DRIVER"));
  memcpy(binary, &header, sizeof(header));
  memcpy(binary + sizeof(header), program->source, source);
  return CL_SUCCESS;
}
