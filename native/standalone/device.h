// The OpenCL device that a network runs on, and what it can do.
#ifndef TVMFLOW_STANDALONE_DEVICE_H
#define TVMFLOW_STANDALONE_DEVICE_H

#include "message.h"
#include "opencl.h"
#include "plan.h"

typedef struct tf_device {
  tf_opencl api;
  cl_platform_id platform;
  cl_device_id id;
  cl_bitfield type;
  char name[128];
  char platform_name[128];
  char platform_version[128];
  char driver[128];
  char library[256];  // its name or path
  cl_ulong memory_bytes;
  cl_ulong largest_allocation;
  size_t largest_image[3];  // width, height, layers; zeros: no images
  size_t largest_group;
  size_t largest_local[3];
  // The driver finishes compiling a kernel only when it is launched (PoCL).
  bool compiles_at_launch;
} tf_device;

// The device that the options ask for.
tvmflow_status tf_device_find(tf_device* device, const tvmflow_options* options,
                              tf_message* message);

// Whether it has all that the plan needs: images, extensions, sizes.
tvmflow_status tf_device_check(const tf_device* device, const tf_plan* plan, tf_message* message);

// True where the device lists the extension; the driver's answer is asked for each time.
bool tf_device_has(const tf_device* device, const char* extension);

static inline bool tf_is_cpu(const tf_device* device) {
  return (device->type & CL_DEVICE_TYPE_CPU) != 0;
}

#endif
