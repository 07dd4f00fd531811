// Images, copies between the host and a device, and the times of kernels.
#pragma once

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

// A part of an image: column, row, layer.
typedef struct tf_box {
  size_t origin[3];
  size_t size[3];
} tf_box;

// Creates an array of RGBA images; `size` has its columns, rows and layers.
cl_mem tf_create_image(const tf_device* device, cl_context context, cl_bitfield flags,
                       cl_uint channel_type, const size_t size[3], void* host, cl_int* code);

// Both copy a part of an image or, with `part` NULL, bytes of a buffer starting at `offset`, and
// wait for the end.
cl_int tf_write(const tf_device* device, cl_command_queue queue, cl_mem memory, const tf_box* part,
                size_t offset, size_t bytes, const void* host);
cl_int tf_read(const tf_device* device, cl_command_queue queue, cl_mem memory, const tf_box* part,
               size_t offset, size_t bytes, void* host);

// Returns when a kernel began and ended, in nanoseconds of the device's clock.
cl_int tf_event_times(const tf_device* device, cl_event event, cl_ulong* begin_ns,
                      cl_ulong* end_ns);

#ifdef __cplusplus
}
#endif
