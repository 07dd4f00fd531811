// Platform, devices, contexts and what they say about themselves.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { kMaxDevices = 8 };
typedef struct fake_device {
  fake_object object;
  cl_bitfield type;
} fake_device;

static fake_object platform = {FAKE_FIRST, FAKE_PLATFORM, false, 1, 0, NULL, NULL};
static fake_device devices[kMaxDevices];

// The devices of the setting, first to last.
static cl_uint read_devices(void) {
  cl_uint count = 0;
  for (const char* text = fake_text("DEVICES"); *text && count < kMaxDevices;) {
    const size_t length = strcspn(text, ",");
    fake_device* device = &devices[count++];
    device->object = platform;
    device->object.kind = FAKE_DEVICE;
    device->type = text[0] == 'c'   ? CL_DEVICE_TYPE_CPU
                   : text[0] == 'a' ? CL_DEVICE_TYPE_ACCELERATOR
                                    : CL_DEVICE_TYPE_GPU;
    text += length + (text[length] == ',');
  }
  return count;
}

FAKE_API cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* ids, cl_uint* count) {
  FAKE_ENTER();
  FAKE_REQUIRE((ids || count) && (!ids || room > 0), CL_INVALID_VALUE, "nothing is asked for");
  if (fake_number("PLATFORMS") == 0) return CL_PLATFORM_NOT_FOUND_KHR;
  if (ids) ids[0] = (cl_platform_id)&platform;
  if (count) *count = 1;
  return CL_SUCCESS;
}

static cl_int give_text(const char* function, const char* text, size_t room, void* destination,
                        size_t* needed) {
  return fake_give(function, text, strlen(text) + 1, room, destination, needed);
}

FAKE_API cl_int clGetPlatformInfo(cl_platform_id id, cl_uint what, size_t room, void* destination,
                                  size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(id, FAKE_PLATFORM), CL_INVALID_PLATFORM, "no platform");
  const char* text = what == CL_PLATFORM_VERSION  ? fake_text("VERSION")
                     : what == CL_PLATFORM_NAME   ? fake_text("PLATFORM_NAME")
                     : what == CL_PLATFORM_VENDOR ? "Nobody"
                     : what == 0x0900             ? "FULL_PROFILE"
                     : what == 0x0904             ? fake_text("EXTENSIONS")
                                                  : NULL;
  FAKE_REQUIRE(text, CL_INVALID_VALUE, "0x%x is unknown", what);
  return give_text(__func__, text, room, destination, needed);
}

FAKE_API cl_int clGetDeviceIDs(cl_platform_id id, cl_bitfield type, cl_uint room, cl_device_id* ids,
                               cl_uint* count) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(id, FAKE_PLATFORM), CL_INVALID_PLATFORM, "no platform");
  FAKE_REQUIRE((ids || count) && (!ids || room > 0), CL_INVALID_VALUE, "nothing is asked for");
  const cl_uint all = read_devices();
  cl_uint found = 0;
  for (cl_uint i = 0; i < all; ++i) {
    if (!(devices[i].type & type)) continue;
    if (ids && found < room) ids[found] = (cl_device_id)&devices[i];
    ++found;
  }
  if (found == 0) return CL_DEVICE_NOT_FOUND;
  if (count) *count = found;
  return CL_SUCCESS;
}

FAKE_API cl_int clGetDeviceInfo(cl_device_id id, cl_uint what, size_t room, void* destination,
                                size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(id, FAKE_DEVICE), CL_INVALID_DEVICE, "no device");
  const char* text = NULL;
  if (what == CL_DEVICE_NAME) text = fake_text("NAME");
  if (what == CL_DEVICE_VENDOR) text = "Nobody";
  if (what == CL_DRIVER_VERSION) text = fake_text("DRIVER");
  if (what == CL_DEVICE_VERSION) text = fake_text("VERSION");
  if (what == CL_DEVICE_OPENCL_C_VERSION) text = "OpenCL C 1.2";
  if (what == CL_DEVICE_EXTENSIONS) text = fake_text("EXTENSIONS");
  if (text) return give_text(__func__, text, room, destination, needed);

  const struct {
    cl_uint what;
    size_t bytes;
    uint64_t value;
  } numbers[] = {
      {CL_DEVICE_TYPE, sizeof(cl_bitfield), ((const fake_device*)id)->type},
      {CL_DEVICE_AVAILABLE, sizeof(cl_bool), 1},
      {CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool), 1},
      {CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint), 4},
      {CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof(cl_uint), 500},
      {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t), fake_number("GROUP_SIZE")},
      {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong), fake_number("BUFFER_BYTES")},
      {CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong), fake_number("MEMORY_BYTES")},
      {CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong), 32768},
      {CL_DEVICE_IMAGE_SUPPORT, sizeof(cl_bool), fake_number("IMAGES")},
      {CL_DEVICE_IMAGE2D_MAX_WIDTH, sizeof(size_t), fake_number("IMAGE_WIDTH")},
      {CL_DEVICE_IMAGE2D_MAX_HEIGHT, sizeof(size_t), fake_number("IMAGE_HEIGHT")},
      {CL_DEVICE_IMAGE_MAX_ARRAY_SIZE, sizeof(size_t), fake_number("IMAGE_LAYERS")},
      {0x41DE, sizeof(cl_uint), fake_number("RECORDABLE")},
      {0x12AA, sizeof(cl_bitfield), 0},  // what queues of command buffers must have
      {0x1019, sizeof(cl_uint), 1024},   // alignment of memory, bits
  };
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i)
    if (numbers[i].what == what)  // little-endian: the lowest bytes are the number
      return fake_give(__func__, &numbers[i].value, numbers[i].bytes, room, destination, needed);
  if (what == CL_DEVICE_MAX_WORK_ITEM_SIZES) {
    const size_t sizes[3] = {fake_number("GROUP_SIZE"), fake_number("GROUP_SIZE"), 64};
    return fake_give(__func__, sizes, sizeof(sizes), room, destination, needed);
  }
  if (what == 0x1031) {  // platform
    const fake_object* value = &platform;
    return fake_give(__func__, &value, sizeof(value), room, destination, needed);
  }
  // What vendors' extensions have is asked for without harm.
  FAKE_REQUIRE(what >= 0x4000, CL_INVALID_VALUE, "0x%x is unknown", what);
  return CL_INVALID_VALUE;
}

static int fake_asked_clocks;
// Returns the hint of performance of the last context that had one, and forgets it.
FAKE_API int fake_clocks(void) {
  const int asked = fake_asked_clocks;
  fake_asked_clocks = 0;
  return asked;
}

FAKE_API cl_context clCreateContext(const intptr_t* properties, cl_uint count,
                                    const cl_device_id* ids,
                                    void (*notify)(const char*, const void*, size_t, void*),
                                    void* user, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(count > 0 && ids, code, CL_INVALID_VALUE, "no devices");
  FAKE_REQUIRE_CREATE(notify || !user, code, CL_INVALID_VALUE, "data without a function");
  for (cl_uint i = 0; i < count; ++i)
    FAKE_REQUIRE_CREATE(fake_alive(ids[i], FAKE_DEVICE), code, CL_INVALID_DEVICE, "no device");
  for (const intptr_t* p = properties; p && *p; p += 2)
    if (p[0] == FAKE_CONTEXT_PRIORITY_QCOM && fake_has_extension("cl_qcom_priority_hint"))
      fake_asked_priority = p[1] == 0x40CC ? "low" : p[1] == 0x40CA ? "high" : "wrong";
    else if (p[0] == FAKE_CONTEXT_PERF_QCOM && fake_has_extension("cl_qcom_perf_hint"))
      fake_asked_clocks = (int)p[1];
    else
      FAKE_REQUIRE_CREATE(p[0] == CL_CONTEXT_PLATFORM && p[1] == (intptr_t)&platform, code,
                          CL_INVALID_PLATFORM, "property 0x%zx", (size_t)p[0]);
  return fake_new(sizeof(fake_object), FAKE_CONTEXT, NULL, NULL);
}

FAKE_API cl_int clGetContextInfo(cl_context context, cl_uint what, size_t room, void* destination,
                                 size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(context, FAKE_CONTEXT), CL_INVALID_CONTEXT, "no context");
  const cl_uint count = read_devices();
  if (what == 0x1083) return fake_give(__func__, &count, sizeof(count), room, destination, needed);
  FAKE_REQUIRE(what == 0x1081, CL_INVALID_VALUE, "0x%x is unknown", what);
  const void* handles[kMaxDevices];
  for (cl_uint i = 0; i < count; ++i) handles[i] = &devices[i];
  return fake_give(__func__, handles, count * sizeof(void*), room, destination, needed);
}
