#include "find_device.h"

#include <stdlib.h>

#include "../core/library_names.h"
#include "../core/text.h"

// Returns the wanted device among those of one library; NULL: it is not there.
static const tf_device* choose(const tf_devices* found, const tvmflow_options* options) {
  const tf_device* const all = found->all;
  const char* const wanted = getenv("TVMFLOW_OPENCL_DEVICE");
  for (unsigned i = 0; i < found->count; ++i) {
    if (options->cl_device) {
      if (all[i].id == options->cl_device) return &all[i];
    } else if (options->device_index || !wanted || !*wanted) {
      return options->device_index < found->count ? &all[options->device_index] : NULL;
    } else if (tf_device_matches(&all[i], wanted)) {
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
  tf_devices* const found = malloc(sizeof(tf_devices));
  if (!found) return tf_fail(message, TVMFLOW_ERROR_MEMORY, "No memory to look for devices.");
  const tf_device* chosen = NULL;
  const char* name;
  for (unsigned i = 0; !chosen && (name = tf_library_name(options->opencl_library, i)); ++i) {
    // Devices and platforms are numbered within their library.
    found->count = found->platforms = 0;
    tf_append(tried, sizeof(tried), "\n  %s: ", name);
    tf_devices_add(found, name, tried, sizeof(tried));
    if (found->count > most) most = found->count;
    chosen = choose(found, options);
  }
  if (chosen) *device = *chosen;
  free(found);
  if (chosen) return TVMFLOW_OK;
  if (most) return none_chosen(options, most, tried, message);
  return tf_fail(message, TVMFLOW_ERROR_NO_OPENCL,
                 "No OpenCL device was found. Remedy: install the device's driver; on Android "
                 "declare <uses-native-library android:name=\"libOpenCL.so\"/> in the manifest; "
                 "or name the library in the options or in TVMFLOW_OPENCL_LIBRARY.\n"
                 "Libraries tried:%s",
                 tried);
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
