#include "commands.h"

cl_mem tf_create_image(const tf_device* d, cl_context context, cl_bitfield flags,
                       cl_uint channel_type, const size_t size[3], void* host, cl_int* code) {
  const cl_image_format format = {CL_RGBA, channel_type};
  const cl_image_desc layout = {
      .image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY,
      .image_width = size[0],
      .image_height = size[1],
      .image_array_size = size[2],
  };
  return d->api.clCreateImage(context, flags, &format, &layout, host, code);
}

cl_int tf_write(const tf_device* d, cl_command_queue queue, cl_mem memory, const tf_box* part,
                size_t offset, size_t bytes, const void* host) {
  return part ? d->api.clEnqueueWriteImage(queue, memory, CL_TRUE, part->origin, part->size, 0, 0,
                                           host, 0, NULL, NULL)
              : d->api.clEnqueueWriteBuffer(queue, memory, CL_TRUE, offset, bytes, host, 0, NULL,
                                            NULL);
}

cl_int tf_read(const tf_device* d, cl_command_queue queue, cl_mem memory, const tf_box* part,
               size_t offset, size_t bytes, void* host) {
  return part ? d->api.clEnqueueReadImage(queue, memory, CL_TRUE, part->origin, part->size, 0, 0,
                                          host, 0, NULL, NULL)
              : d->api.clEnqueueReadBuffer(queue, memory, CL_TRUE, offset, bytes, host, 0, NULL,
                                           NULL);
}

cl_int tf_event_times(const tf_device* d, cl_event event, cl_ulong* begin_ns, cl_ulong* end_ns) {
  const cl_int code = d->api.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START,
                                                     sizeof(*begin_ns), begin_ns, NULL);
  if (code != CL_SUCCESS) return code;
  return d->api.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof(*end_ns), end_ns,
                                        NULL);
}
