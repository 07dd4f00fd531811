// The devices of OpenCL's drivers, and their facts.
#pragma once

#include "opencl.h"

#ifdef __cplusplus
extern "C" {
#endif

// Limit of the search; further devices are ignored.
enum { TF_MAX_DEVICES = 32 };

typedef struct tf_device {
  tf_opencl api;
  cl_platform_id platform;
  cl_device_id id;
  unsigned platform_index;  // among all that were found
  unsigned device_index;    // in its platform
  cl_bitfield type;
  char name[128];
  char version[128];
  char platform_name[128];
  // Adreno's have the dates and branches of their sources.
  char platform_version[512];
  char driver[512];
  char library[256];  // its name or path
  cl_ulong memory_bytes;
  cl_ulong largest_allocation;
  size_t largest_image[3];  // width, height, layers; zeros: no images
  size_t largest_group;
  size_t largest_local[3];
  bool is_pocl;    // which finishes compiling a kernel only when it is launched
  bool is_inside;  // the driver is a standalone library's own (standalone/cpu.h)
} tf_device;

// The usable devices of the libraries that were opened: GPUs first, then accelerators, then CPUs,
// otherwise in the drivers' order.
typedef struct tf_devices {
  unsigned count;
  unsigned platforms;
  tf_device all[TF_MAX_DEVICES];
} tf_devices;

// Opens a library and adds its usable devices: available, with a compiler, OpenCL 1.2 or newer.
// Adds to the text what was found, or why there is none.
void tf_devices_add(tf_devices* devices, const char* library, char* text, size_t bytes);

// Returns whether the device is the one that TVMFLOW_OPENCL_DEVICE names: "platform:device", each
// an index (of the platform among all that were found, of the device in its platform) or a part of
// the name, the device also a type ("gpu", "accelerator", "cpu"); an empty part matches anything.
// A text without a colon is a platform's index, a type, or a part of either name.
bool tf_device_matches(const tf_device* device, const char* wanted);

// Disables the driver's functions that release objects: a forked process lacks its threads.
void tf_device_abandon(tf_device* device);

// Fills in the facts of a device whose functions and handles are set.
void tf_device_describe(tf_device* device);

// Returns "gpu", "accelerator" or "cpu".
const char* tf_device_type(const tf_device* device);

// Returns an address in the driver's library, which may differ from the one that was opened.
const void* tf_device_code(const tf_device* device);

// Asks the driver whether the device has an extension.
bool tf_device_has(const tf_device* device, const char* extension);

static inline bool tf_is_cpu(const tf_device* device) {
  return (device->type & CL_DEVICE_TYPE_CPU) != 0;
}

#ifdef __cplusplus
}
#endif
