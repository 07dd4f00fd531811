// The application's own memory as an input or output.
#include "model.h"

static bool image_fits(const tf_opencl* api, cl_mem memory, const tf_allocation* a) {
  static const cl_uint queries[3] = {CL_IMAGE_WIDTH, CL_IMAGE_HEIGHT, CL_IMAGE_ARRAY_SIZE};
  cl_image_format format = {0, 0};
  if (api->clGetImageInfo(memory, CL_IMAGE_FORMAT, sizeof(format), &format, NULL) != CL_SUCCESS ||
      format.image_channel_order != CL_RGBA || format.image_channel_data_type != a->channel_type)
    return false;
  for (unsigned i = 0; i < 3; ++i) {
    size_t size = 0;
    if (api->clGetImageInfo(memory, queries[i], sizeof(size), &size, NULL) != CL_SUCCESS ||
        size != a->image_size[i])
      return false;
  }
  return true;
}

static tvmflow_status check(tvmflow_model* m, const tf_interface* t, cl_mem memory) {
  const tf_opencl* const api = &m->device.api;
  const tf_allocation* const a = &m->plan.allocations[t->allocation];
  const char* const name = m->plan.strings + t->name;
  cl_uint type = 0;
  size_t bytes = 0;
  cl_context context = NULL;
  cl_int code = api->clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof(type), &type, NULL);
  if (code == CL_SUCCESS)
    code = api->clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
  if (code == CL_SUCCESS)
    code = api->clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof(context), &context, NULL);
  if (code != CL_SUCCESS) {
    tf_fail_opencl(&m->message, code, "Looking at the memory for '%s'", name);
    return TVMFLOW_ERROR_ARGUMENT;
  }
  if (context != m->context)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The memory for '%s' belongs to another cl_context. Remedy: give that context "
                   "to tvmflow_create.",
                   name);
  if (a->kind == TF_BUFFER && (type != CL_MEM_OBJECT_BUFFER || bytes < tf_device_bytes(t)))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The memory for '%s': expected a buffer of at least %llu bytes, got %s of %zu.",
                   name, (unsigned long long)tf_device_bytes(t),
                   type == CL_MEM_OBJECT_BUFFER ? "one" : "another object", bytes);
  if (a->kind == TF_IMAGE && (type != CL_MEM_OBJECT_IMAGE2D_ARRAY || !image_fits(api, memory, a)))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The memory for '%s': expected an image array of %ux%ux%u (width, height, "
                   "layers) with CL_RGBA and channel type 0x%x, got another object.",
                   name, a->image_size[0], a->image_size[1], a->image_size[2], a->channel_type);
  return TVMFLOW_OK;
}

static tvmflow_status use(tvmflow_model* m, const tf_interface* tensors, uint32_t count,
                          uint32_t index, void* cl_memory, const char* attempt) {
  tvmflow_status status = tf_check_idle(m, attempt);
  if (status) return status;
  if (index >= count)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "%s: there is no number %u, the network has %u.", attempt, index, count);
  const tf_interface* const t = &tensors[index];
  if (cl_memory) status = check(m, t, cl_memory);
  if (status) return status;
  const cl_mem before = m->bound[t->allocation];
  m->bound[t->allocation] = cl_memory ? cl_memory : m->own[t->allocation];
  status = tf_programs_bind(m, t->allocation);
  if (!status) return TVMFLOW_OK;
  // What the message says is why it was not done: all kernels keep what they had.
  const tf_message message = m->message;
  m->bound[t->allocation] = before;
  (void)tf_programs_bind(m, t->allocation);
  m->message = message;
  return status;
}

tvmflow_status tvmflow_use_input(tvmflow_model* m, uint32_t index, void* cl_memory) {
  return use(m, m ? m->plan.inputs : NULL, tvmflow_input_count(m), index, cl_memory,
             "Using memory as an input");
}

tvmflow_status tvmflow_use_output(tvmflow_model* m, uint32_t index, void* cl_memory) {
  return use(m, m ? m->plan.outputs : NULL, tvmflow_output_count(m), index, cl_memory,
             "Using memory as an output");
}
