// OpenCL, opened at run time from a loader (libOpenCL) or a driver's own library, and the device
// that a network runs on.
#ifndef TVMFLOW_STANDALONE_DEVICE_H
#define TVMFLOW_STANDALONE_DEVICE_H

#include "../opencl/api_table.h"
#include "plan.h"

// Entry points that only memory and contexts of applications need.
#define TF_MORE_ENTRY_POINTS(ROW)                                                                  \
  ROW(clRetainContext, 6, cl_int, (cl_context))                                                    \
  ROW(clRetainMemObject, 17, cl_int, (cl_mem))                                                     \
  ROW(clGetMemObjectInfo, 20, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))                   \
  ROW(clGetImageInfo, 21, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))

// Entry points for extensions and events; NULL if the library lacks them.
#define TF_OPTIONAL_ENTRY_POINTS(ROW)                                                              \
  ROW(clSetEventCallback, 81, cl_int,                                                              \
      (cl_event, cl_int, void (*)(cl_event, cl_int, void*), void*))                                \
  ROW(clEnqueueMarkerWithWaitList, 105, cl_int,                                                    \
      (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                     \
  ROW(clEnqueueBarrierWithWaitList, 106, cl_int,                                                   \
      (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                     \
  ROW(clGetExtensionFunctionAddress, 65, void*, (const char*))                                     \
  ROW(clGetExtensionFunctionAddressForPlatform, 107, void*, (cl_platform_id, const char*))

// Entry points of one platform, each under its name in OpenCL.
typedef struct tf_opencl {
#define TF_MEMBER(name, index, result, parameters) result(*name) parameters;
  TVMFLOW_OPENCL_ENTRY_POINTS(TF_MEMBER)
  TF_MORE_ENTRY_POINTS(TF_MEMBER)
  TF_OPTIONAL_ENTRY_POINTS(TF_MEMBER)
#undef TF_MEMBER
  void* library;
  bool has_tables;  // objects begin with a table of the driver's functions (cl_khr_icd)
} tf_opencl;

// A library that has been opened.  It stays open: drivers keep threads and do not survive
// being unloaded.
typedef struct tf_library {
  void* handle;
  cl_int (*get_platforms)(cl_uint, cl_platform_id*, cl_uint*);
  bool exported;  // its functions are symbols, and not only in its objects' dispatch tables
} tf_library;

// Returns the name of the `index`-th library to try, NULL after the last.  `only`: the path from
// the options.
const char* tf_library_name(const char* only, unsigned index);

// Opens a library.  Returns false if it does not exist or is not OpenCL, and adds why to the text.
bool tf_library_open(tf_library* library, const char* name, char* text, size_t bytes);

// opencl.c: returns whether a word is in a list separated by spaces.
bool tf_has_word(const char* list, const char* word);

// Returns an extension's function; NULL: there is none.
void* tf_opencl_extension(const tf_opencl* api, cl_platform_id platform, const char* name);

// Finds the entry points.  Returns the name of one of OpenCL 1.2 that is missing; NULL: none is.
const char* tf_opencl_resolve(tf_opencl* api, const tf_library* library, cl_platform_id platform);

typedef struct tf_device {
  tf_opencl api;
  cl_platform_id platform;
  cl_device_id id;
  unsigned platform_index;  // in its library
  unsigned device_index;    // in its platform
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
  bool is_inside;  // the driver is the library's own (cpu.h)
} tf_device;

// The message of calls in a forked process that cannot use OpenCL.
#define TF_FORKED                                                                                  \
  "An OpenCL device was used in a process forked from one that had used it. Remedy: fork before "  \
  "OpenCL is used, or have the child start a program (exec; in Python, multiprocessing's "         \
  "'spawn')."

// Disables the driver's functions that release objects: a forked process lacks its threads.
void tf_device_abandon(tf_device* device);

// Fills in the facts of a device whose functions and handles are set.
void tf_device_describe(tf_device* device);

// Finds the device that the options ask for.
tvmflow_status tf_device_find(tf_device* device, const tvmflow_options* options,
                              tf_message* message);

// Checks that the device has the images, extensions and sizes that the plan needs.
tvmflow_status tf_device_check(const tf_device* device, const tf_plan* plan, tf_message* message);

// Returns "gpu", "accelerator" or "cpu".
const char* tf_device_type(const tf_device* device);

// Returns an address in the driver's library, which may differ from the one that was opened.
const void* tf_device_code(const tf_device* device);

// Asks the driver whether the device has an extension.
bool tf_device_has(const tf_device* device, const char* extension);

static inline bool tf_is_cpu(const tf_device* device) {
  return (device->type & CL_DEVICE_TYPE_CPU) != 0;
}

#endif
