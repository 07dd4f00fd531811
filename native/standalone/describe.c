#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "entry.h"
#include "model.h"
#include "open.h"
#include "picture.h"
#include "programs.h"
#include "run.h"

void tf_describe_text(char* json, size_t bytes, const char* key, const char* text) {
  tf_append(json, bytes, "\"%s\":\"", key);
  for (; *text; ++text) {
    if (*text == '\n') tf_append(json, bytes, "\\n");
    if ((unsigned char)*text < 0x20) continue;
    tf_append(json, bytes, "%s%c", *text == '"' || *text == '\\' ? "\\" : "", *text);
  }
  tf_append(json, bytes, "\",");
}

// Names may double in length when their quotes are escaped.
static size_t room(const tvmflow_model* m) {
  return tf_count(&m->plan, TF_METADATA) + 6144 + 2 * (m->rejected ? strlen(m->rejected) : 0) +
         (m->faults ? strlen(m->faults) : 0);
}

tvmflow_status tf_describe_create(tvmflow_model* m) {
  m->description = calloc(room(m), 1);
  if (m->description) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for a description.");
}

const char* tvmflow_describe(const tvmflow_model* m) {
  if (!m) return "{}";
  tf_adopt((tvmflow_model*)(uintptr_t)m);
  if (m->torn || !m->description) return "{}";
  // Wait, so that the description also says whether binaries could be stored.
  tf_programs_stored((tvmflow_model*)(uintptr_t)m);
  const tf_device* const d = &m->device;
  cl_ulong buffers = 0;
  cl_ulong images = 0;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_ALLOCATIONS); ++i) {
    const tf_allocation* const a = &m->plan.allocations[i];
    if (!m->own[i]) continue;
    *(a->kind == TF_IMAGE ? &images : &buffers) += a->bytes;
  }
  const size_t bytes = room(m);
  char* const json = m->description;
  json[0] = 0;
  tf_append(json, bytes, "{\"network\":%s,\"device\":{", m->plan.metadata);
  tf_describe_text(json, bytes, "name", d->name);
  tf_describe_text(json, bytes, "platform", d->platform_name);
  tf_describe_text(json, bytes, "version", d->platform_version);
  tf_describe_text(json, bytes, "driver", d->driver);
  tf_describe_text(json, bytes, "library", d->library);
  tf_append(json, bytes, "\"type\":\"%s\"},", tf_device_type(d));
  tf_describe_text(json, bytes, "backend", m->backend == TVMFLOW_CPU ? "cpu" : "opencl");
  tf_append(json, bytes, "\"opencl_status\":%d,", (int)m->rejected_status);
  tf_describe_text(json, bytes, "opencl_rejected", m->rejected ? m->rejected : "");
  tf_append(json, bytes, "\"faults\":[%s],", m->faults ? m->faults : "");
  tf_describe_text(json, bytes, "recording", m->recording ? tf_recording_name(m->recording) : "");
  tf_describe_text(json, bytes, "cache", m->cache.note);
  tf_append(json, bytes, "\"memory\":{\"buffer_bytes\":%llu,\"image_bytes\":%llu,",
            (unsigned long long)buffers, (unsigned long long)images);
  tf_append(json, bytes, "\"weight_bytes\":%zu,\"weights_shared\":%s},", m->weights.bytes,
            m->shared_memory ? "true" : "false");
  tf_append(json, bytes, "\"kernels\":%u,\"programs\":%u,\"programs_from_cache\":%s,", m->ordered,
            tf_count(&m->plan, TF_PROGRAMS), m->built ? "false" : "true");
  tf_append(json, bytes, "\"programs_built\":%u,\"programs_shipped\":%u}", m->built, m->shipped);
  return json;
}

tvmflow_status tf_do_opencl(tvmflow_model* m, tvmflow_opencl_info* info) {
  const tvmflow_status status = tf_check(m);
  if (status) return status;
  if (!info || info->struct_size < sizeof(*info))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Asking for OpenCL's objects: expected a structure whose struct_size is "
                   "sizeof(tvmflow_opencl_info).");
  const bool opencl = m->backend == TVMFLOW_OPENCL;
  info->context = opencl ? m->context : NULL;
  info->device = opencl ? m->device.id : NULL;
  info->queue = opencl ? m->queue : NULL;
  // A library that was already in the process has no name to open it by.
  info->library = opencl && m->device.library[0] != '(' ? m->device.library : NULL;
  return TVMFLOW_OK;
}

tvmflow_status tf_do_memory(tvmflow_model* m, tvmflow_memory_info* info) {
  const tvmflow_status status = tf_check(m);
  if (status) return status;
  if (!info || info->struct_size < sizeof(*info))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Asking for memory: expected a structure whose struct_size is "
                   "sizeof(tvmflow_memory_info).");
  uint64_t all = 0, weights = 0;
  // What only alternatives need is allocated when one is used.
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_ALLOCATIONS); ++i)
    if (m->own[i]) all += m->plan.allocations[i].bytes;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_WEIGHTS); ++i)
    if (m->own[m->plan.weights[i].allocation])
      weights += m->plan.allocations[m->plan.weights[i].allocation].bytes;
  const size_t launches = tf_count(&m->plan, TF_LAUNCHES);
  info->weights = weights;
  info->tensors = all - weights;
  info->pictures = tf_picture_bytes(m);
  info->host = sizeof(*m) + launches * sizeof(tf_step) + m->halves_bytes + room(m) +
               tf_count(&m->plan, TF_PROGRAMS) * sizeof(tf_build);
  info->weights_shared = m->shared_memory;
  return TVMFLOW_OK;
}
