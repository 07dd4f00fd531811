#include <stdlib.h>
#include <string.h>

#include "../core/commands.h"
#include "../core/device.h"
#include "../core/half.h"
#include "model.h"
#include "tensors.h"
#include "weights.h"

// Allocates memory; it stays NULL if the driver fails.
static cl_int create(tvmflow_model* m, uint32_t index, cl_bitfield flags, void* host) {
  const tf_allocation* const a = &m->plan.allocations[index];
  const size_t size[3] = {a->image_size[0], a->image_size[1], a->image_size[2]};
  cl_int code = CL_SUCCESS;
  const cl_mem memory =
      a->kind == TF_BUFFER
          ? m->device.api.clCreateBuffer(m->context, flags, a->bytes, host, &code)
          : tf_create_image(&m->device, m->context, flags, a->channel_type, size, host, &code);
  if (code == CL_SUCCESS) m->own[index] = memory;
  return code;
}

static tvmflow_status allocate(tvmflow_model* m, uint32_t index, cl_bitfield flags) {
  const tf_allocation* const a = &m->plan.allocations[index];
  const cl_int code = create(m, index, flags, NULL);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_fail_opencl(&m->message, code, "Allocating %s of %llu bytes on device '%s'",
                        a->kind == TF_BUFFER ? "a buffer" : "an image",
                        (unsigned long long)a->bytes, m->device.name);
}

cl_int tf_transfer(const tvmflow_model* m, cl_mem memory, const tf_region* part, void* host,
                   size_t bytes, bool to_device) {
  tf_box box;
  for (int i = 0; part && i < 3; ++i) {
    box.origin[i] = part->origin[i];
    box.size[i] = part->size[i];
  }
  const tf_box* const where = part ? &box : NULL;
  return to_device ? tf_write(&m->device, m->queue, memory, where, 0, bytes, host)
                   : tf_read(&m->device, m->queue, memory, where, 0, bytes, host);
}

// Uses a weight where it is mapped, on a CPU's device.
static bool share(tvmflow_model* m, const tf_weight* w) {
  const tf_allocation* const a = &m->plan.allocations[w->allocation];
  if (m->avoided & TF_AVOID_SHARED_MEMORY) return false;
  if (!tf_is_cpu(&m->device) || a->bytes > m->weights.bytes - w->offset) return false;
  // OpenCL takes no pointer to const; the flag ensures that nothing is written.
  void* const data = (void*)(uintptr_t)(m->weights.data + w->offset);
  if (create(m, w->allocation, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, data) != CL_SUCCESS)
    return false;
  m->shared_memory = true;
  return true;
}

static tvmflow_status upload(tvmflow_model* m, const tf_weight* w, void* data) {
  const tf_allocation* const a = &m->plan.allocations[w->allocation];
  const tvmflow_status status = allocate(m, w->allocation, CL_MEM_READ_ONLY);
  if (status) return status;
  const tf_region all = {.size = {a->image_size[0], a->image_size[1], a->image_size[2]}};
  const cl_int code = tf_transfer(m, m->own[w->allocation], a->kind == TF_IMAGE ? &all : NULL, data,
                                  w->bytes, true);
  if (code != CL_SUCCESS)
    return tf_fail_opencl(&m->message, code, "Uploading weight '%s' to device '%s'",
                          m->plan.strings + w->name, m->device.name);
  return TVMFLOW_OK;
}

static tvmflow_status upload_raw(tvmflow_model* m, const tf_weight* w) {
  void* const data = (void*)(uintptr_t)(m->weights.data + w->offset);
  const tvmflow_status status = upload(m, w, data);
  if (!status) tf_forget(data, w->bytes);
  return status;
}

// Expands `count` adjacent numbers of the file, starting at number k of the axis.
static void expand(const tvmflow_model* m, const tf_derived* r, uint64_t k, const uint8_t* from,
                   uint64_t count, uint8_t* to) {
  const size_t element = r->element_bytes;
  if (r->form == TF_RAW) {
    memcpy(to, from, count * element);
    return;
  }
  // Steps are aligned to 128 bytes.
  const float* const steps = (const float*)(const void*)(m->weights.data + r->steps);
  for (uint64_t i = 0; i < count; ++i, ++k, to += element) {
    float value;
    if (r->form == TF_HALF) {
      uint16_t half;
      memcpy(&half, from + i * sizeof(half), sizeof(half));
      value = FromHalf(half);
    } else {
      value = (float)(int8_t)from[i] * steps[r->axes == 3   ? k
                                             : r->axes == 2 ? k % r->from_lanes
                                                            : k / r->from_lanes];
    }
    if (element == sizeof(value)) {
      memcpy(to, &value, sizeof(value));
    } else {
      const uint16_t half = ToHalf(value);
      memcpy(to, &half, sizeof(half));
    }
  }
}

// Returns the bytes of a weight that is stored in other blocks or in fewer bits; the caller frees
// them.
static uint8_t* make(const tvmflow_model* m, const tf_weight* w, const tf_derived* r) {
  uint8_t* const data = calloc(1, w->bytes);
  if (!data) return NULL;
  const uint64_t from_lanes = r->from_lanes, to_lanes = r->to_lanes;
  uint64_t together = to_lanes;  // numbers that are adjacent in both: the greatest common divisor
  for (uint64_t rest = from_lanes; rest;) {
    const uint64_t next = together % rest;
    together = rest;
    rest = next;
  }
  const size_t stored = tf_stored_bytes(r), run = (size_t)together * r->element_bytes;
  const uint64_t there = r->from_bytes / (r->inner * stored);
  const uint8_t* const source = m->weights.data + w->offset;
  uint8_t* to = data;
  // Lanes after the last number are zeros in both.
  for (uint64_t first = 0; to != data + w->bytes; first += to_lanes)
    for (uint64_t i = 0; i < r->inner; ++i)
      for (uint64_t k = first; k < first + to_lanes; k += together, to += run)
        if (k < there)
          expand(m, r, k,
                 source + ((k / from_lanes * r->inner + i) * from_lanes + k % from_lanes) * stored,
                 together, to);
  return data;
}

// Returns Winograd's transform of a stored weight's windows; the caller frees it.
static uint8_t* transform(const tvmflow_model* m, const tf_weight* w, const tf_derived* r,
                          const tf_transformed* t) {
  float* const data = calloc(1, w->bytes);
  if (!data) return NULL;
  const uint64_t from = r->from_lanes, to = r->to_lanes, inner = r->inner, side = t->side;
  const uint64_t there = r->from_bytes / (9 * inner * sizeof(float));
  const uint64_t plane = w->bytes / (side * side * sizeof(float));
  const float* const source = (const void*)(m->weights.data + w->offset);
  float* to_lane = data;
  for (uint64_t first = 0; to_lane != data + plane; first += to)
    for (uint64_t i = 0; i < inner; ++i)
      for (uint64_t k = first; k < first + to; ++k, ++to_lane) {
        if (k >= there) continue;
        const float* const window = source + (k / from * inner + i) * 9 * from + k % from;
        for (uint64_t p = 0; p < side; ++p) {
          double columns[3];
          for (uint64_t x = 0; x < 3; ++x)
            columns[x] = t->rows[p][0] * (double)window[x * from] +
                         t->rows[p][1] * (double)window[(3 + x) * from] +
                         t->rows[p][2] * (double)window[(6 + x) * from];
          for (uint64_t q = 0; q < side; ++q)
            to_lane[(p * side + q) * plane] =
                (float)(t->rows[q][0] * columns[0] + t->rows[q][1] * columns[1] +
                        t->rows[q][2] * columns[2]);
        }
      }
  return (uint8_t*)data;
}

static tvmflow_status upload_derived(tvmflow_model* m, const tf_weight* w, const tf_derived* r) {
  const tf_transformed* const t = tf_transformation(&m->plan, r);
  uint8_t* const data = t ? transform(m, w, r, t) : make(m, w, r);
  const tvmflow_status status =
      data ? upload(m, w, data)
           : tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for weight '%s'.",
                     m->plan.strings + w->name);
  free(data);
  return status;
}

// Returns for each allocation whether more than alternatives need it; the caller frees it.
static bool* needed(const tvmflow_model* m) {
  const tf_plan* const p = &m->plan;
  bool* const found = calloc(tf_count(p, TF_ALLOCATIONS) + 1u, sizeof(bool));
  for (uint32_t i = 0; found && i < tf_count(p, TF_INPUTS); ++i)
    found[p->inputs[i].allocation] = true;
  for (uint32_t i = 0; found && i < tf_count(p, TF_OUTPUTS); ++i)
    found[p->outputs[i].allocation] = true;
  for (uint32_t i = 0; found && i < tf_shape_launches(p); ++i) {
    const tf_argument* const a = p->arguments + p->launches[i].first_argument;
    for (uint32_t j = 0; j < p->launches[i].arguments; ++j)
      if (a[j].kind == TF_MEMORY) found[a[j].allocation] = true;
  }
  return found;
}

static tvmflow_status create_weight(tvmflow_model* m, uint32_t index) {
  const tf_weight* const w = &m->plan.weights[index];
  const tf_derived* const r = tf_derivation(&m->plan, index);
  if (r) return upload_derived(m, w, r);
  return share(m, w) ? TVMFLOW_OK : upload_raw(m, w);
}

tvmflow_status tf_memory_create(tvmflow_model* m) {
  const uint32_t count = tf_count(&m->plan, TF_ALLOCATIONS);
  m->own = calloc(count + 1u, sizeof(cl_mem));
  m->bound = calloc(count + 1u, sizeof(cl_mem));
  if (!m->own || !m->bound)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %u allocations.", count);
  bool* const is_needed = needed(m);
  if (!is_needed)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %u allocations.", count);
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = 0; !status && i < tf_count(&m->plan, TF_WEIGHTS); ++i)
    if (is_needed[m->plan.weights[i].allocation]) status = create_weight(m, i);
  for (uint32_t i = 0; !status && i < count; ++i) {
    if (!m->own[i] && is_needed[i]) status = allocate(m, i, CL_MEM_READ_WRITE);
    m->bound[i] = m->own[i];
  }
  free(is_needed);
  return status;
}

tvmflow_status tf_memory_spare(tvmflow_model* m, uint32_t allocation) {
  if (m->own[allocation]) return TVMFLOW_OK;
  uint32_t weight = 0;
  while (weight < tf_count(&m->plan, TF_WEIGHTS) &&
         m->plan.weights[weight].allocation != allocation)
    ++weight;
  const tvmflow_status status = weight < tf_count(&m->plan, TF_WEIGHTS)
                                    ? create_weight(m, weight)
                                    : allocate(m, allocation, CL_MEM_READ_WRITE);
  m->bound[allocation] = m->own[allocation];
  return status;
}

tvmflow_status tf_memory_hold(tvmflow_model* m, uint32_t allocation, cl_mem memory) {
  if (memory == m->own[allocation]) return TVMFLOW_OK;
  const cl_int code = m->device.api.clRetainMemObject(memory);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_fail_opencl(&m->message, code, "Retaining the application's memory on device '%s'",
                        m->device.name);
}

void tf_memory_release(tvmflow_model* m, uint32_t allocation, cl_mem memory) {
  if (memory && memory != m->own[allocation]) (void)m->device.api.clReleaseMemObject(memory);
}

void tf_memory_destroy(tvmflow_model* m) {
  const uint32_t count = m->own && m->bound ? tf_count(&m->plan, TF_ALLOCATIONS) : 0;
  for (uint32_t i = 0; i < count; ++i) {
    tf_memory_release(m, i, m->bound[i]);
    if (m->own[i]) (void)m->device.api.clReleaseMemObject(m->own[i]);
  }
  free(m->own);
  free(m->bound);
}
