// Inputs and outputs: copies of the application's data, or the application's own memory.
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "../core/half.h"
#include "cpu.h"
#include "entry.h"
#include "model.h"
#include "picture.h"
#include "programs.h"
#include "tensors.h"

static const char* const dtype_names[] = {"float32", "float16", "float64", "bfloat16", "int8",
                                          "int16",   "int32",   "int64",   "uint8",    "uint16",
                                          "uint32",  "uint64",  "bool"};

typedef struct side {
  const char* name;
  const tf_interface* tensors;
  uint32_t count;
} side;

static side inputs_of(const tvmflow_model* m) {
  return (side){"input", tf_inputs(m), tf_count_each(&m->plan, TF_INPUTS)};
}

static side outputs_of(const tvmflow_model* m) {
  return (side){"output", tf_outputs(m), tf_count_each(&m->plan, TF_OUTPUTS)};
}

uint32_t tvmflow_input_count(const tvmflow_model* m) {
  return tf_check(m) ? 0 : inputs_of(m).count;
}

uint32_t tvmflow_output_count(const tvmflow_model* m) {
  return tf_check(m) ? 0 : outputs_of(m).count;
}

static tvmflow_status check_index(tvmflow_model* m, side s, uint32_t index) {
  if (index < s.count) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "There is no %s %u: the network has %u, counted from 0.", s.name, index, s.count);
}

// Returns the picture of an input that kernels read in blocks of four channels.  The application's
// data has ONNX's layout on every backend, and is packed when it is copied.
static const tf_picture* packed_here(const tvmflow_model* m, side s, uint32_t index) {
  if (s.tensors != tf_inputs(m)) return NULL;
  const tf_picture* const p = tf_picture_of(&m->plan, index);
  return p && p->arrangement == TF_NCHW4C ? p : NULL;
}

// Returns the size of the application's data.
static size_t bytes_of(const tf_interface* t, const tf_picture* packed) {
  return packed ? t->bytes / 4 * packed->channels : t->bytes;
}

static tvmflow_status describe(tvmflow_model* m, side (*side_of)(const tvmflow_model*),
                               uint32_t index, tvmflow_tensor* info) {
  tvmflow_status status = tf_check(m);
  if (status) return status;
  const side s = side_of(m);
  status = check_index(m, s, index);
  if (status) return status;
  if (!info)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT, "Describing %s %u: info is NULL.", s.name,
                   index);
  const tf_interface* const t = &s.tensors[index];
  const tf_picture* const packed = packed_here(m, s, index);
  *info = (tvmflow_tensor){
      .name = m->plan.strings + t->name,
      .layout = m->plan.strings + t->layout,
      .dtype = (tvmflow_dtype)t->dtype,
      .dimensions = t->dimensions,
      .bytes = bytes_of(t, packed),
  };
  for (uint32_t i = 0; i < t->dimensions; ++i) info->shape[i] = t->shape[i];
  if (packed) {
    info->layout = "";
    info->dimensions = 4;
    info->shape[1] = packed->channels;
    info->shape[4] = 0;
  }
  const tf_allocation* const a = &m->plan.allocations[t->allocation];
  for (uint32_t i = 0; a->kind == TF_IMAGE && i < 3; ++i) info->image_size[i] = a->image_size[i];
  return TVMFLOW_OK;
}

tvmflow_status tf_do_input(tvmflow_model* m, uint32_t index, tvmflow_tensor* info) {
  return describe(m, inputs_of, index, info);
}

tvmflow_status tf_do_output(tvmflow_model* m, uint32_t index, tvmflow_tensor* info) {
  return describe(m, outputs_of, index, info);
}

static tvmflow_status find(tvmflow_model* m, side s, const char* name, uint32_t* index) {
  tvmflow_status status = tf_check(m);
  if (status) return status;
  for (uint32_t i = 0; name && index && i < s.count; ++i)
    if (!strcmp(m->plan.strings + s.tensors[i].name, name)) {
      *index = i;
      return TVMFLOW_OK;
    }
  status = tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT, "Looking for %s '%s': expected one of",
                   s.name, name ? name : "(NULL)");
  for (uint32_t i = 0; i < s.count; ++i)
    tf_append(m->message.text, sizeof(m->message.text), "%s '%s'", i ? "," : "",
              m->plan.strings + s.tensors[i].name);
  return status;
}

tvmflow_status tf_do_find_input(tvmflow_model* m, const char* name, uint32_t* index) {
  return find(m, tf_check(m) ? (side){0} : inputs_of(m), name, index);
}

tvmflow_status tf_do_find_output(tvmflow_model* m, const char* name, uint32_t* index) {
  return find(m, tf_check(m) ? (side){0} : outputs_of(m), name, index);
}

// Copies between the host, in the device's type, and a buffer or the regions of an image.
static cl_int transfer(const tvmflow_model* m, const tf_interface* t, uint8_t* host,
                       bool to_device) {
  const cl_mem memory = m->bound[t->allocation];
  if (m->plan.allocations[t->allocation].kind == TF_BUFFER)
    return tf_transfer(m, memory, NULL, host, tf_device_bytes(t), to_device);
  const uint32_t element = t->half ? 2 : tf_dtype_bytes(t->dtype);
  cl_int code = CL_SUCCESS;
  for (uint32_t i = 0; code == CL_SUCCESS && i < t->regions; ++i) {
    const tf_region* const r = &m->plan.regions[t->first_region + i];
    code = tf_transfer(m, memory, r, host + r->element * element, 0, to_device);
  }
  return code;
}

static tvmflow_status check_data(tvmflow_model* m, side s, uint32_t index, tvmflow_dtype dtype,
                                 const void* data, size_t bytes) {
  const tvmflow_status status = check_index(m, s, index);
  if (status) return status;
  const tf_interface* const t = &s.tensors[index];
  const char* const name = m->plan.strings + t->name;
  if (!data)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Data of %s '%s': expected a pointer, got "
                   "NULL.",
                   s.name, name);
  if ((uint32_t)dtype != t->dtype) {
    const bool known = (uint32_t)dtype < sizeof(dtype_names) / sizeof(dtype_names[0]);
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Data of %s '%s': expected %s, got %s. Remedy: convert the data.", s.name, name,
                   dtype_names[t->dtype], known ? dtype_names[dtype] : "an unknown dtype");
  }
  const size_t expected = bytes_of(t, packed_here(m, s, index));
  if (bytes != expected)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Data of %s '%s': expected %zu bytes, got %zu. Remedy: pass an array of the "
                   "shape that tvmflow_%s gives.",
                   s.name, name, expected, bytes, s.name);
  return TVMFLOW_OK;
}

tvmflow_status tf_set_packed(tvmflow_model* m, uint32_t index, const void* data) {
  const tf_interface* const t = &tf_inputs(m)[index];
  // The data is only read in this direction.
  uint8_t* host = (uint8_t*)(uintptr_t)data;
  if (t->half) {
    // Byte by byte, because an application's data may lie at any address.
    for (uint64_t i = 0; i < tf_elements(t); ++i) {
      float value;
      memcpy(&value, host + i * sizeof(value), sizeof(value));
      m->halves[i] = ToHalf(value);
    }
    host = (uint8_t*)m->halves;
  }
  const cl_int code = transfer(m, t, host, true);
  if (code == CL_SUCCESS) {
    m->missing[index] = false;
    m->given[index] = true;
    tf_picture_replaced(m, index);
    return TVMFLOW_OK;
  }
  return tf_device_failed(m, tf_fail_opencl(&m->message, code, "Copying input '%s' to device '%s'",
                                            m->plan.strings + t->name, m->device.name));
}

tvmflow_status tf_do_set_input(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype,
                               const void* data, size_t bytes) {
  tvmflow_status status = tf_check_idle(m, "Setting an input");
  if (!status) status = check_data(m, inputs_of(m), index, dtype, data, bytes);
  if (status) return status;
  const tf_interface* const t = &tf_inputs(m)[index];
  const tf_picture* const packed = packed_here(m, inputs_of(m), index);
  if (!packed) return tf_set_packed(m, index, data);
  const size_t element = tf_dtype_bytes(t->dtype), pixels = bytes / element / packed->channels;
  uint8_t* const blocks = calloc(1, t->bytes);
  if (!blocks)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY,
                   "Setting input '%s': no memory for %zu bytes.", m->plan.strings + t->name,
                   t->bytes);
  for (size_t i = 0; i < bytes / element; ++i)
    memcpy(blocks + (i % pixels * 4 + i / pixels) * element, (const uint8_t*)data + i * element,
           element);
  status = tf_set_packed(m, index, blocks);
  free(blocks);
  return status;
}

tvmflow_status tf_do_warm_up(tvmflow_model* m) {
  tvmflow_status status = tf_check_idle(m, "Warming up");
  if (status || m->ran) return status;
  for (uint32_t i = 0; i < inputs_of(m).count; ++i) {
    // Uninitialised memory may hold invalid indices.
    const tf_interface* const t = &tf_inputs(m)[i];
    if (m->given[i]) continue;
    uint8_t* const zeros = calloc(1, t->bytes);
    if (!zeros)
      return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "Warming up: no memory for %llu bytes.",
                     (unsigned long long)t->bytes);
    const cl_int code = transfer(m, t, zeros, true);
    free(zeros);
    if (code != CL_SUCCESS)
      return tf_device_failed(
          m, tf_fail_opencl(&m->message, code, "Warming up device '%s'", m->device.name));
  }
  return tf_do_run(m);
}

// Checks that an output can be read, after waiting for the run.
static tvmflow_status wait_for_output(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype,
                                      const void* data, size_t bytes) {
  tvmflow_status status = tf_check(m);
  if (!status) status = check_data(m, outputs_of(m), index, dtype, data, bytes);
  if (!status) status = tf_do_wait(m);
  if (status || !m->half_done) return status;
  return tf_fail(&m->message, TVMFLOW_ERROR_DEVICE,
                 "Reading output '%s': the last run failed, and there is no whole result. "
                 "Remedy: set the inputs and run again.",
                 m->plan.strings + tf_outputs(m)[index].name);
}

tvmflow_status tf_do_output_data(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype,
                                 const void** data, size_t bytes) {
  const tvmflow_status status = wait_for_output(m, index, dtype, data, bytes);
  if (status) return status;
  const tf_interface* const t = &tf_outputs(m)[index];
  const bool converted = t->half || tf_has_picture_boxes(m, index);
  if (converted || m->backend != TVMFLOW_CPU)
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Reading output '%s' without a copy: %s. Remedy: call tvmflow_get_output.",
                   m->plan.strings + t->name,
                   converted ? "its elements are converted" : "the network runs on OpenCL");
  *data = tf_cpu_data(m->bound[t->allocation]);
  return TVMFLOW_OK;
}

tvmflow_status tf_do_get_output(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype, void* data,
                                size_t bytes) {
  const tvmflow_status status = wait_for_output(m, index, dtype, data, bytes);
  if (status) return status;
  const tf_interface* const t = &tf_outputs(m)[index];
  const cl_int code = transfer(m, t, t->half ? (uint8_t*)m->halves : data, false);
  if (code != CL_SUCCESS)
    return tf_device_failed(
        m, tf_fail_opencl(&m->message, code, "Copying output '%s' from device '%s'",
                          m->plan.strings + t->name, m->device.name));
  for (uint64_t i = 0; t->half && i < tf_elements(t); ++i) {
    const float value = FromHalf(m->halves[i]);
    memcpy((uint8_t*)data + i * sizeof(value), &value, sizeof(value));
  }
  tf_picture_boxes(m, index, data);
  return TVMFLOW_OK;
}

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

static tvmflow_status check_memory(tvmflow_model* m, const tf_interface* t, cl_mem memory) {
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

// Binds other memory to a tensor, which is retained.
static tvmflow_status bind(tvmflow_model* m, const tf_interface* t, cl_mem wanted) {
  const cl_mem before = m->bound[t->allocation];
  tvmflow_status status = tf_memory_hold(m, t->allocation, wanted);
  if (status) return status;
  m->bound[t->allocation] = wanted;
  status = tf_programs_bind(m, t->allocation);
  if (!status) {
    tf_memory_release(m, t->allocation, before);
    return TVMFLOW_OK;
  }
  // Bind the previous memory to all kernels again; the message keeps saying why.
  const tf_message message = m->message;
  m->bound[t->allocation] = before;
  (void)tf_programs_bind(m, t->allocation);
  tf_memory_release(m, t->allocation, wanted);
  m->message = message;
  return status;
}

// Uses memory of the application on the CPU, where it is a pointer.
static tvmflow_status use_pointer(tvmflow_model* m, side s, const tf_interface* t, void* data) {
  const cl_mem memory = tf_cpu_wrap(data, tf_device_bytes(t));
  if (!memory)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The memory for %s '%s': expected a pointer to a multiple of 64 bytes, got %p.",
                   s.name, m->plan.strings + t->name, data);
  const tvmflow_status status = bind(m, t, memory);
  // Binding has retained it.
  (void)m->device.api.clReleaseMemObject(memory);
  return status;
}

static tvmflow_status use(tvmflow_model* m, side (*side_of)(const tvmflow_model*), uint32_t index,
                          void* cl_memory) {
  tvmflow_status status = tf_check_idle(m, "Using the application's memory");
  if (status) return status;
  const side s = side_of(m);
  status = check_index(m, s, index);
  if (status) return status;
  const tf_interface* const t = &s.tensors[index];
  if (cl_memory && packed_here(m, s, index))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Using the application's memory for input '%s': it takes pictures, and kernels "
                   "read it in blocks of four channels. Remedy: give the memory as a picture "
                   "(cl_memory of tvmflow_image), or compile the network with --keep-layout in "
                   "place of --image-input.",
                   m->plan.strings + t->name);
  if (cl_memory && m->backend == TVMFLOW_CPU)
    status = use_pointer(m, s, t, cl_memory);
  else if (!cl_memory || !(status = check_memory(m, t, cl_memory)))
    status = bind(m, t, cl_memory ? cl_memory : m->own[t->allocation]);
  if (status || s.tensors != tf_inputs(m)) return status;
  if (cl_memory) {
    m->missing[index] = false;
    m->given[index] = true;
  }
  tf_picture_replaced(m, index);
  return TVMFLOW_OK;
}

tvmflow_status tf_do_use_input(tvmflow_model* m, uint32_t index, void* cl_memory) {
  return use(m, inputs_of, index, cl_memory);
}

tvmflow_status tf_do_use_output(tvmflow_model* m, uint32_t index, void* cl_memory) {
  return use(m, outputs_of, index, cl_memory);
}

static tvmflow_status reset_side(tvmflow_model* m, side (*side_of)(const tvmflow_model*)) {
  const side s = side_of(m);
  for (uint32_t i = 0; i < s.count; ++i) {
    const uint32_t allocation = s.tensors[i].allocation;
    const bool is_own = m->bound[allocation] == m->own[allocation];
    const tvmflow_status status = is_own ? TVMFLOW_OK : use(m, side_of, i, NULL);
    if (status) return status;
  }
  return TVMFLOW_OK;
}

tvmflow_status tf_reset_bindings(tvmflow_model* m) {
  const tvmflow_status status = reset_side(m, inputs_of);
  return status ? status : reset_side(m, outputs_of);
}
