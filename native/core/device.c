#define _GNU_SOURCE  // strcasestr
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "version.h"

// Limit of the search; further platforms are ignored.
enum { MAX_PLATFORMS = 16 };
// Index in the table of cl_khr_icd.
enum { CL_GET_DEVICE_INFO = 3 };

// Queries a fact of the device; `value`, zeros at first, stays if the driver does not answer.
static void query(const tf_device* d, cl_uint what, void* value, size_t bytes) {
  (void)d->api.clGetDeviceInfo(d->id, what, bytes, value, NULL);
}

void tf_device_describe(tf_device* d) {
  // The last byte of texts stays zero, whatever the driver writes.
  query(d, CL_DEVICE_NAME, d->name, sizeof(d->name) - 1);
  query(d, CL_DEVICE_VERSION, d->version, sizeof(d->version) - 1);
  query(d, CL_DRIVER_VERSION, d->driver, sizeof(d->driver) - 1);
  (void)d->api.clGetPlatformInfo(d->platform, CL_PLATFORM_NAME, sizeof(d->platform_name) - 1,
                                 d->platform_name, NULL);
  (void)d->api.clGetPlatformInfo(d->platform, CL_PLATFORM_VERSION, sizeof(d->platform_version) - 1,
                                 d->platform_version, NULL);
  query(d, CL_DEVICE_TYPE, &d->type, sizeof(d->type));
  query(d, CL_DEVICE_GLOBAL_MEM_SIZE, &d->memory_bytes, sizeof(d->memory_bytes));
  query(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, &d->largest_allocation, sizeof(d->largest_allocation));
  query(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, &d->largest_group, sizeof(d->largest_group));
  query(d, CL_DEVICE_MAX_WORK_ITEM_SIZES, d->largest_local, sizeof(d->largest_local));
  cl_bool images = CL_FALSE;
  query(d, CL_DEVICE_IMAGE_SUPPORT, &images, sizeof(images));
  if (images) {
    query(d, CL_DEVICE_IMAGE2D_MAX_WIDTH, &d->largest_image[0], sizeof(size_t));
    query(d, CL_DEVICE_IMAGE2D_MAX_HEIGHT, &d->largest_image[1], sizeof(size_t));
    query(d, CL_DEVICE_IMAGE_MAX_ARRAY_SIZE, &d->largest_image[2], sizeof(size_t));
  }
  d->is_pocl = strcmp(d->platform_name, "Portable Computing Language") == 0;
}

static cl_int do_nothing(ClObject* object) {
  (void)object;
  return CL_SUCCESS;
}

static void free_nothing(cl_context context, void* memory) {
  (void)context;
  (void)memory;
}

void tf_device_abandon(tf_device* d) {
  tf_opencl* const api = &d->api;
  api->clFinish = api->clFlush = do_nothing;
  api->clReleaseContext = api->clReleaseCommandQueue = api->clReleaseMemObject = do_nothing;
  api->clReleaseProgram = api->clReleaseKernel = api->clReleaseEvent = do_nothing;
  api->clSVMFree = free_nothing;
}

// Returns why the device cannot be used; NULL: it can.  Versions of PoCL before 3.1 do not work on
// a processor that their LLVM does not know: they compile for "generic", and the compiler rejects
// every kernel ("unknown target CPU 'generic'").  Since 3.1, PoCL chooses an older processor with
// the same vector instructions, and the user may name one (POCL_LLVM_CPU_NAME).
static const char* unusable(const tf_device* d) {
  cl_bool available = CL_FALSE;
  cl_bool compiler = CL_FALSE;
  query(d, CL_DEVICE_AVAILABLE, &available, sizeof(available));
  query(d, CL_DEVICE_COMPILER_AVAILABLE, &compiler, sizeof(compiler));
  if (!available) return "is not available";
  if (!compiler) return "has no compiler";
  if (!IsAtLeast(d->version, 1, 2)) return "is older than OpenCL 1.2";
  if (d->is_pocl && !IsNumberAtLeast(d->driver, 3, 1)) return "is older than PoCL 3.1";
  return NULL;
}

static int rank(const tf_device* d) {
  if (d->type & CL_DEVICE_TYPE_GPU) return 0;
  return d->type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2;
}

const char* tf_device_type(const tf_device* d) {
  static const char* const types[] = {"gpu", "accelerator", "cpu"};
  return types[rank(d)];
}

// Adds the usable devices of a platform, sorted by rank.
static void add_platform(tf_devices* devices, const tf_device* platform, char* text, size_t bytes) {
  cl_device_id ids[TF_MAX_DEVICES];
  cl_uint count = 0;
  if (platform->api.clGetDeviceIDs(platform->platform, CL_DEVICE_TYPE_ALL, TF_MAX_DEVICES, ids,
                                   &count) != CL_SUCCESS)
    count = 0;
  if (!count) {
    char name[128] = "";
    (void)platform->api.clGetPlatformInfo(platform->platform, CL_PLATFORM_NAME, sizeof(name) - 1,
                                          name, NULL);
    tf_append(text, bytes, "platform '%s' has no device", name);
  }
  for (cl_uint i = 0; i < count && devices->count < TF_MAX_DEVICES; ++i) {
    tf_device d = *platform;
    d.id = ids[i];
    d.device_index = i;
    tf_device_describe(&d);
    const char* const reason = unusable(&d);
    tf_append(text, bytes, "%sdevice '%s' of '%s' %s", i ? "; " : "", d.name, d.platform_name,
              reason ? reason : "is usable");
    if (reason) continue;
    tf_device* const all = devices->all;
    unsigned place = devices->count++;
    for (; place > 0 && rank(&all[place - 1]) > rank(&d); --place) all[place] = all[place - 1];
    all[place] = d;
  }
}

void tf_devices_add(tf_devices* devices, const char* name, char* text, size_t bytes) {
  tf_library library;
  cl_platform_id platforms[MAX_PLATFORMS];
  cl_uint count = 0;
  if (!tf_library_open(&library, name, text, bytes)) return;
  if (library.get_platforms(MAX_PLATFORMS, platforms, &count) != CL_SUCCESS) count = 0;
  if (count > MAX_PLATFORMS) count = MAX_PLATFORMS;
  if (!count) tf_append(text, bytes, "it has no platform");
  for (cl_uint p = 0; p < count; ++p) {
    tf_device any = {.platform = platforms[p], .platform_index = devices->platforms++};
    snprintf(any.library, sizeof(any.library), "%s", name);
    if (p) tf_append(text, bytes, "; ");
    const char* const missing = tf_opencl_resolve(&any.api, &library, platforms[p]);
    if (missing)
      tf_append(text, bytes, "it lacks %s of OpenCL 1.2", missing);
    else
      add_platform(devices, &any, text, bytes);
  }
}

// Returns whether a part of TVMFLOW_OPENCL_DEVICE is empty, the index, or a part of the name.
static bool matches(const char* part, unsigned index, const char* name) {
  char* end;
  const unsigned long number = strtoul(part, &end, 10);
  return *part && !*end ? number == index : strcasestr(name, part) != NULL;
}

bool tf_device_matches(const tf_device* d, const char* wanted) {
  const char* const colon = strchr(wanted, ':');
  const char* const last = colon ? colon + 1 : wanted;
  const bool is_type = strcmp(last, tf_device_type(d)) == 0;
  if (!colon)
    return is_type || matches(wanted, d->platform_index, d->platform_name) ||
           (!(*wanted >= '0' && *wanted <= '9') && strcasestr(d->name, wanted));
  char platform[sizeof(d->platform_name)];
  snprintf(platform, sizeof(platform), "%.*s", (int)(colon - wanted), wanted);
  return matches(platform, d->platform_index, d->platform_name) &&
         (is_type || matches(last, d->device_index, d->name));
}

const void* tf_device_code(const tf_device* d) {
  // A loader exports its own functions, but the driver's are in the table of each object.
  void** const table = d->api.has_tables ? d->platform->dispatch : NULL;
  return table && table[CL_GET_DEVICE_INFO] ? table[CL_GET_DEVICE_INFO] : d->api.clGetDeviceInfo;
}

bool tf_device_has(const tf_device* d, const char* extension) {
  char* const list = tf_query_text(d->api.clGetDeviceInfo, d->id, CL_DEVICE_EXTENSIONS);
  const bool has = list && tf_has_word(list, extension);
  free(list);
  return has;
}
