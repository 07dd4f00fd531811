#include "../opencl/half.h"
#include "model.h"

static const char* const dtype_names[] = {"float32", "float16", "float64", "bfloat16", "int8",
                                          "int16",   "int32",   "int64",   "uint8",    "uint16",
                                          "uint32",  "uint64",  "bool"};

typedef struct side {
  const char* name;
  const tf_interface* tensors;
  uint32_t count;
} side;

static side inputs_of(const tvmflow_model* m) {
  return (side){"input", m->plan.inputs, tf_count(&m->plan, TF_INPUTS)};
}

static side outputs_of(const tvmflow_model* m) {
  return (side){"output", m->plan.outputs, tf_count(&m->plan, TF_OUTPUTS)};
}

uint32_t tvmflow_input_count(const tvmflow_model* m) {
  return m && !m->failed ? inputs_of(m).count : 0;
}

uint32_t tvmflow_output_count(const tvmflow_model* m) {
  return m && !m->failed ? outputs_of(m).count : 0;
}

static tvmflow_status check_index(tvmflow_model* m, side s, uint32_t index) {
  if (index < s.count) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "There is no %s %u: the network has %u, counted from 0.", s.name, index, s.count);
}

static tvmflow_status tell(tvmflow_model* m, side s, uint32_t index, tvmflow_tensor* info) {
  const tvmflow_status status = check_index(m, s, index);
  if (status) return status;
  if (!info)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT, "Describing %s %u: info is NULL.", s.name,
                   index);
  const tf_interface* const t = &s.tensors[index];
  *info = (tvmflow_tensor){
      .name = m->plan.strings + t->name,
      .layout = m->plan.strings + t->layout,
      .dtype = (tvmflow_dtype)t->dtype,
      .dimensions = t->dimensions,
      .bytes = t->bytes,
  };
  for (uint32_t i = 0; i < t->dimensions; ++i) info->shape[i] = t->shape[i];
  const tf_allocation* const a = &m->plan.allocations[t->allocation];
  for (uint32_t i = 0; a->kind == TF_IMAGE && i < 3; ++i) info->image_size[i] = a->image_size[i];
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_input(tvmflow_model* m, uint32_t index, tvmflow_tensor* info) {
  if (!m) return TVMFLOW_ERROR_ARGUMENT;
  return m->failed ? m->failed : tell(m, inputs_of(m), index, info);
}

tvmflow_status tvmflow_output(tvmflow_model* m, uint32_t index, tvmflow_tensor* info) {
  if (!m) return TVMFLOW_ERROR_ARGUMENT;
  return m->failed ? m->failed : tell(m, outputs_of(m), index, info);
}

// Copies between the host, in the device's type, and the buffer or the regions of the image.
static cl_int transfer(tvmflow_model* m, const tf_interface* t, uint8_t* host, bool to_device) {
  const tf_opencl* const api = &m->device.api;
  const cl_mem memory = m->bound[t->allocation];
  if (m->plan.allocations[t->allocation].kind == TF_BUFFER) {
    const size_t bytes = tf_device_bytes(t);
    if (to_device)
      return api->clEnqueueWriteBuffer(m->queue, memory, CL_TRUE, 0, bytes, host, 0, NULL, NULL);
    return api->clEnqueueReadBuffer(m->queue, memory, CL_TRUE, 0, bytes, host, 0, NULL, NULL);
  }
  const uint32_t element = t->half ? 2 : tf_dtype_bytes(t->dtype);
  for (uint32_t i = 0; i < t->regions; ++i) {
    const tf_region* const r = &m->plan.regions[t->first_region + i];
    const size_t origin[3] = {r->origin[0], r->origin[1], r->origin[2]};
    const size_t size[3] = {r->size[0], r->size[1], r->size[2]};
    uint8_t* const data = host + r->element * element;
    const cl_int code = to_device ? api->clEnqueueWriteImage(m->queue, memory, CL_TRUE, origin,
                                                             size, 0, 0, data, 0, NULL, NULL)
                                  : api->clEnqueueReadImage(m->queue, memory, CL_TRUE, origin, size,
                                                            0, 0, data, 0, NULL, NULL);
    if (code != CL_SUCCESS) return code;
  }
  return CL_SUCCESS;
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
  if (bytes != t->bytes)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Data of %s '%s': expected %llu bytes, got %zu. Remedy: pass an array of the "
                   "shape that tvmflow_%s gives.",
                   s.name, name, (unsigned long long)t->bytes, bytes, s.name);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_set_input(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype,
                                 const void* data, size_t bytes) {
  tvmflow_status status = tf_check_idle(m, "Setting an input");
  if (!status) status = check_data(m, inputs_of(m), index, dtype, data, bytes);
  if (status) return status;
  const tf_interface* const t = &m->plan.inputs[index];
  // Only read: the direction says so.
  uint8_t* host = (uint8_t*)(uintptr_t)data;
  if (t->half) {
    const float* const values = data;
    for (uint64_t i = 0; i < tf_elements(t); ++i) m->halves[i] = ToHalf(values[i]);
    host = (uint8_t*)m->halves;
  }
  const cl_int code = transfer(m, t, host, true);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_fail_opencl(&m->message, code, "Copying input '%s' to device '%s'",
                        m->plan.strings + t->name, m->device.name);
}

tvmflow_status tvmflow_get_output(tvmflow_model* m, uint32_t index, tvmflow_dtype dtype, void* data,
                                  size_t bytes) {
  if (!m) return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_status status = m->failed;
  if (!status) status = check_data(m, outputs_of(m), index, dtype, data, bytes);
  if (!status) status = tvmflow_wait(m);
  if (status) return status;
  const tf_interface* const t = &m->plan.outputs[index];
  const cl_int code = transfer(m, t, t->half ? (uint8_t*)m->halves : data, false);
  if (code != CL_SUCCESS)
    return tf_fail_opencl(&m->message, code, "Copying output '%s' from device '%s'",
                          m->plan.strings + t->name, m->device.name);
  float* const values = data;
  for (uint64_t i = 0; t->half && i < tf_elements(t); ++i) values[i] = FromHalf(m->halves[i]);
  return TVMFLOW_OK;
}
