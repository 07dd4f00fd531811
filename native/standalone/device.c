#define _GNU_SOURCE  // strcasestr
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../opencl/version.h"

// Limits of the search; further platforms and devices are ignored.
enum { MAX_PLATFORMS = 16, MAX_DEVICES = 32 };
// Index in the table of cl_khr_icd.
enum { CL_GET_DEVICE_INFO = 3 };

// Queries a fact of the device; `value`, zeros at first, stays if the driver does not answer.
static void query(const tf_device* d, cl_uint what, void* value, size_t bytes) {
  (void)d->api.clGetDeviceInfo(d->id, what, bytes, value, NULL);
}

void tf_device_describe(tf_device* d) {
  // The last byte of texts stays zero, whatever the driver writes.
  query(d, CL_DEVICE_NAME, d->name, sizeof(d->name) - 1);
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
  d->compiles_at_launch = strcmp(d->platform_name, "Portable Computing Language") == 0;
}

static cl_int do_nothing(ClObject* object) {
  (void)object;
  return CL_SUCCESS;
}

void tf_device_abandon(tf_device* d) {
  tf_opencl* const api = &d->api;
  api->clFinish = api->clFlush = do_nothing;
  api->clReleaseContext = api->clReleaseCommandQueue = api->clReleaseMemObject = do_nothing;
  api->clReleaseProgram = api->clReleaseKernel = api->clReleaseEvent = do_nothing;
}

// Returns why the device cannot be used; NULL: it can.
static const char* unusable(const tf_device* d) {
  cl_bool available = CL_FALSE;
  cl_bool compiler = CL_FALSE;
  query(d, CL_DEVICE_AVAILABLE, &available, sizeof(available));
  query(d, CL_DEVICE_COMPILER_AVAILABLE, &compiler, sizeof(compiler));
  if (!available) return "is not available";
  if (!compiler) return "has no compiler";
  char version[128] = "";
  query(d, CL_DEVICE_VERSION, version, sizeof(version) - 1);
  return IsAtLeast(version, 1, 2) ? NULL : "is older than OpenCL 1.2";
}

static int rank(const tf_device* d) {
  if (d->type & CL_DEVICE_TYPE_GPU) return 0;
  return d->type & CL_DEVICE_TYPE_ACCELERATOR ? 1 : 2;
}

const char* tf_device_type(const tf_device* d) {
  static const char* const types[] = {"gpu", "accelerator", "cpu"};
  return types[rank(d)];
}

static unsigned find_devices(const tf_library* library, const char* name, tf_device* all,
                             char* tried, size_t tried_bytes) {
  cl_platform_id platforms[MAX_PLATFORMS];
  cl_uint platform_count = 0;
  unsigned count = 0;
  if (library->get_platforms(MAX_PLATFORMS, platforms, &platform_count) != CL_SUCCESS)
    platform_count = 0;
  if (platform_count > MAX_PLATFORMS) platform_count = MAX_PLATFORMS;
  if (!platform_count) tf_append(tried, tried_bytes, "it has no platform");
  for (cl_uint p = 0; p < platform_count; ++p) {
    tf_device any = {.platform = platforms[p], .platform_index = p};
    snprintf(any.library, sizeof(any.library), "%s", name);
    const char* const missing = tf_opencl_resolve(&any.api, library, platforms[p]);
    if (missing) {
      tf_append(tried, tried_bytes, "%sit lacks %s of OpenCL 1.2", p ? "; " : "", missing);
      continue;
    }
    cl_device_id ids[MAX_DEVICES];
    cl_uint id_count = 0;
    if (any.api.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, ids, &id_count) !=
        CL_SUCCESS)
      id_count = 0;
    if (!id_count) tf_append(tried, tried_bytes, "%sa platform has no device", p ? "; " : "");
    for (cl_uint i = 0; i < id_count && i < MAX_DEVICES && count < MAX_DEVICES; ++i) {
      tf_device d = any;
      d.id = ids[i];
      d.device_index = i;
      tf_device_describe(&d);
      const char* const reason = unusable(&d);
      tf_append(tried, tried_bytes, "%sdevice '%s' of '%s' %s", p || i ? "; " : "", d.name,
                d.platform_name, reason ? reason : "is usable");
      if (reason) continue;
      unsigned place = count++;
      for (; place > 0 && rank(&all[place - 1]) > rank(&d); --place) all[place] = all[place - 1];
      all[place] = d;
    }
  }
  return count;
}

// Returns whether a part of TVMFLOW_OPENCL_DEVICE is empty, the index, or a part of the name.
static bool matches(const char* part, unsigned index, const char* name) {
  char* end;
  const unsigned long number = strtoul(part, &end, 10);
  return *part && !*end ? number == index : strcasestr(name, part) != NULL;
}

// Matches "platform:device", a part of the platform's or the device's name, or the platform's
// index.
static bool is_wanted(const char* wanted, const tf_device* d) {
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

// Returns the wanted device among those of one library; NULL: it is not there.
static const tf_device* choose(const tf_device* all, unsigned count,
                               const tvmflow_options* options) {
  const char* const wanted = getenv("TVMFLOW_OPENCL_DEVICE");
  for (unsigned i = 0; i < count; ++i) {
    if (options->cl_device) {
      if (all[i].id == options->cl_device) return &all[i];
    } else if (options->device_index || !wanted || !*wanted) {
      return options->device_index < count ? &all[options->device_index] : NULL;
    } else if (is_wanted(wanted, &all[i])) {
      return &all[i];
    }
  }
  return NULL;
}

static tvmflow_status none_chosen(const tvmflow_options* options, unsigned most, const char* tried,
                                  tf_message* message) {
  static const char* const rest = "Remedy: choose one that is usable.\nLibraries tried:";
  if (options->cl_device)
    return tf_fail(message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' cl_device is none of the devices that were found. %s%s", rest,
                   tried);
  if (options->device_index)
    return tf_fail(message, TVMFLOW_ERROR_ARGUMENT,
                   "The options' device_index is %u, expected less than %u, the number of devices "
                   "that were found. %s%s",
                   options->device_index, most, rest, tried);
  return tf_fail(message, TVMFLOW_ERROR_ARGUMENT,
                 "TVMFLOW_OPENCL_DEVICE is '%.200s', which names none of the devices that were "
                 "found. %s%s",
                 getenv("TVMFLOW_OPENCL_DEVICE"), rest, tried);
}

tvmflow_status tf_device_find(tf_device* device, const tvmflow_options* options,
                              tf_message* message) {
  char tried[TF_MESSAGE_BYTES - 512] = "";
  unsigned most = 0;
  tf_device* const all = calloc(MAX_DEVICES, sizeof(tf_device));
  if (!all) return tf_fail(message, TVMFLOW_ERROR_MEMORY, "No memory to look for devices.");
  const tf_device* chosen = NULL;
  const char* name;
  for (unsigned i = 0; !chosen && (name = tf_library_name(options->opencl_library, i)); ++i) {
    tf_library library;
    tf_append(tried, sizeof(tried), "\n  %s: ", name);
    if (!tf_library_open(&library, name, tried, sizeof(tried))) continue;
    const unsigned count = find_devices(&library, name, all, tried, sizeof(tried));
    if (count > most) most = count;
    chosen = choose(all, count, options);
  }
  if (chosen) *device = *chosen;
  free(all);
  if (chosen) return TVMFLOW_OK;
  if (most) return none_chosen(options, most, tried, message);
  return tf_fail(message, TVMFLOW_ERROR_NO_OPENCL,
                 "No OpenCL device was found. Remedy: install the device's driver; on Android "
                 "declare <uses-native-library android:name=\"libOpenCL.so\"/> in the manifest; "
                 "or name the library in the options or in TVMFLOW_OPENCL_LIBRARY.\n"
                 "Libraries tried:%s",
                 tried);
}

const void* tf_device_code(const tf_device* d) {
  // A loader exports its own functions, but the driver's are in the table of each object.
  void** const table = d->api.has_tables ? d->platform->dispatch : NULL;
  return table && table[CL_GET_DEVICE_INFO] ? table[CL_GET_DEVICE_INFO] : d->api.clGetDeviceInfo;
}

bool tf_device_has(const tf_device* device, const char* extension) {
  size_t bytes = 0;
  if (device->api.clGetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes) != CL_SUCCESS)
    return false;
  char* const list = calloc(bytes + 1, 1);
  if (!list) return false;
  query(device, CL_DEVICE_EXTENSIONS, list, bytes);
  const bool has = tf_has_word(list, extension);
  free(list);
  return has;
}

static tvmflow_status check_allocation(const tf_device* d, const tf_allocation* a,
                                       tf_message* message) {
  static const char* const remedy =
      "Remedy: compile the network for this device, or with --storage buffer";
  if (a->bytes > d->largest_allocation)
    return tf_fail(message, TVMFLOW_ERROR_UNSUPPORTED,
                   "The network needs %llu bytes at once, but device '%s' allocates at most %llu. "
                   "%s.",
                   (unsigned long long)a->bytes, d->name, (unsigned long long)d->largest_allocation,
                   remedy);
  if (a->kind != TF_IMAGE) return TVMFLOW_OK;
  if (!d->largest_image[0])
    return tf_fail(message, TVMFLOW_ERROR_UNSUPPORTED,
                   "The network needs images, but device '%s' has none. %s.", d->name, remedy);
  for (unsigned i = 0; i < 3; ++i) {
    if (a->image_size[i] > d->largest_image[i])
      return tf_fail(message, TVMFLOW_ERROR_UNSUPPORTED,
                     "The network needs an image of %ux%ux%u (width, height, layers), but those "
                     "of device '%s' have at most %zux%zux%zu. %s.",
                     a->image_size[0], a->image_size[1], a->image_size[2], d->name,
                     d->largest_image[0], d->largest_image[1], d->largest_image[2], remedy);
  }
  return TVMFLOW_OK;
}

tvmflow_status tf_device_check(const tf_device* d, const tf_plan* plan, tf_message* message) {
  for (uint32_t i = 0; i < tf_count(plan, TF_EXTENSIONS); ++i) {
    const char* const extension = plan->strings + plan->extensions[i];
    if (!tf_device_has(d, extension))
      return tf_fail(message, TVMFLOW_ERROR_UNSUPPORTED,
                     "The network needs %s, which device '%s' lacks. Remedy: compile the network "
                     "for this device.",
                     extension, d->name);
  }
  cl_ulong bytes = 0;
  for (uint32_t i = 0; i < tf_count(plan, TF_ALLOCATIONS); ++i) {
    const tvmflow_status status = check_allocation(d, &plan->allocations[i], message);
    if (status) return status;
    bytes += plan->allocations[i].bytes;
  }
  if (bytes > d->memory_bytes)
    return tf_fail(message, TVMFLOW_ERROR_MEMORY,
                   "The network needs %llu bytes, but device '%s' has only %llu. Remedy: use a "
                   "smaller network or batch, or fp16.",
                   (unsigned long long)bytes, d->name, (unsigned long long)d->memory_bytes);
  for (uint32_t i = 0; i < tf_count(plan, TF_LAUNCHES); ++i) {
    const tf_launch* l = &plan->launches[i];
    double group = 1;  // exact up to 2^53, and the limits are far below
    bool fits = true;
    for (uint32_t j = 0; j < l->dimensions; ++j) {
      group *= l->local[j];
      fits = fits && l->local[j] <= d->largest_local[j];
    }
    if (!fits || group > (double)d->largest_group)
      return tf_fail(message, TVMFLOW_ERROR_UNSUPPORTED,
                     "Kernel '%s' needs work-groups of %ux%ux%u, but device '%s' allows %zu "
                     "work-items, %zux%zux%zu at most. Remedy: compile the network for this "
                     "device.",
                     plan->strings + l->kernel, l->local[0], l->dimensions > 1 ? l->local[1] : 1u,
                     l->dimensions > 2 ? l->local[2] : 1u, d->name, d->largest_group,
                     d->largest_local[0], d->largest_local[1], d->largest_local[2]);
  }
  return TVMFLOW_OK;
}
