#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/compile.h"
#include "../core/device.h"
#include "../core/host_features.h"
#include "../core/sha256_state.h"
#include "cache.h"
#include "dot_products.h"
#include "model.h"
#include "programs.h"

// Hashes a text with its zero byte, so that two texts cannot be confused with one.
static void add_text(Sha256State* hash, const char* text) {
  Sha256Add(hash, text, strlen(text) + 1);
}

tvmflow_status tf_sources_unpack(tvmflow_model* m) {
  // Plans for the CPU have compiled functions, and no source.
  if (m->sources || m->backend == TVMFLOW_CPU) return TVMFLOW_OK;
  const size_t bytes = m->plan.header->source_bytes;
  m->sources = malloc(bytes + 1);
  if (!m->sources)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for the kernels' text.");
  bool whole = tf_inflate(m->plan.sources, tf_count(&m->plan, TF_SOURCES), m->sources, bytes);
  for (uint32_t i = 0; whole && i < tf_count(&m->plan, TF_PROGRAMS); ++i) {
    tf_build* const b = &m->builds[i];
    uint8_t digest[sizeof(tf_digest)];
    b->source = m->sources + m->plan.programs[i].offset;
    b->source_bytes = m->plan.programs[i].bytes;
    Sha256Digest((const uint8_t*)b->source, b->source_bytes, digest);
    whole = !memcmp(digest, m->plan.digests[i].bytes, sizeof(digest));
  }
  if (whole) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_DAMAGED,
                 "Reading the kernels in the library: they are damaged. Remedy: copy the library "
                 "again, or compile it again.");
}

void tf_sources_forget(tvmflow_model* m) {
  free(m->sources);
  m->sources = NULL;
}

static tvmflow_status make_keys(tvmflow_model* m) {
  const char* const given = getenv("TVMFLOW_OPENCL_OPTIONS");
  const char* const more = given ? given : "";
  const char* dots = NULL;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_PROGRAMS); ++i) {
    const tf_program* const p = &m->plan.programs[i];
    tf_build* const b = &m->builds[i];
    b->model = m;
    b->source = "";
    const bool vnni = tf_is_cpu(&m->device) && HostHasAvx512Vnni();
    if (!dots && strstr(m->plan.strings + p->options, TF_DOTS)) dots = tf_dot_options(m);
    const int length = snprintf(b->options, sizeof(b->options), "%s%s%s%s%s%s",
                                m->plan.strings + p->options, vnni ? " -DTVMFLOW_AVX512_VNNI" : "",
                                dots ? dots : "", m->fault_options, *more ? " " : "", more);
    if (length < 0 || (size_t)length >= sizeof(b->options))
      return tf_fail(&m->message, TVMFLOW_ERROR_DAMAGED,
                     "The options of program %u have %d bytes, expected less than %zu. Remedy: "
                     "shorten TVMFLOW_OPENCL_OPTIONS if it is set, or compile the network again.",
                     i, length, sizeof(b->options));
    uint32_t features[6] = {0};
    if (tf_is_cpu(&m->device)) HostFeatures(features);
    Sha256State hash;
    Sha256Begin(&hash);
    add_text(&hash, "tvmflow program 1");
    add_text(&hash, m->device.name);
    add_text(&hash, m->device.driver);
    add_text(&hash, m->device.platform_name);
    add_text(&hash, m->device.platform_version);
    Sha256Add(&hash, features, sizeof(features));
    // It decides on the content of PoCL's binaries: with another value, kernels are compiled at
    // each start or run slowly.
    const char* const variants = getenv("POCL_WORK_GROUP_SPECIALIZATION");
    if (m->device.is_pocl) add_text(&hash, variants ? variants : "");
    add_text(&hash, b->options);
    Sha256Add(&hash, m->plan.digests[i].bytes, sizeof(tf_digest));
    Sha256End(&hash, b->key);
  }
  return TVMFLOW_OK;
}

static tvmflow_status describe_failure(tvmflow_model* m, const tf_build* b, uint32_t index) {
  const tvmflow_status status = tf_fail_opencl(
      &m->message, b->code, "Building program %u on device '%s'", index, m->device.name);
  // Some compilers report missing resources for errors in a kernel: add their messages then.
  if (status == TVMFLOW_ERROR_MEMORY && b->code != CL_OUT_OF_RESOURCES) return status;
  tf_append(m->message.text, sizeof(m->message.text),
            " Remedy: update the device's driver, or compile the network for another device or "
            "storage.\nOptions: %s\nBuild log:\n",
            *b->options ? b->options : "(none)");
  char* const log = tf_build_log(&m->device, b->program);
  if (log) tf_append(m->message.text, sizeof(m->message.text), "%s", log);
  free(log);
  return TVMFLOW_ERROR_BUILD;
}

static tvmflow_status set_argument(tvmflow_model* m, uint32_t step, uint32_t index) {
  const tf_launch* const l = &m->plan.launches[step];
  const tf_argument* const a = &m->plan.arguments[l->first_argument + index];
  const bool is_memory = a->kind == TF_MEMORY;
  const void* const value = is_memory ? (const void*)&m->bound[a->allocation] : a->value;
  const cl_int code = m->device.api.clSetKernelArg(m->steps[step].kernel, index,
                                                   is_memory ? sizeof(cl_mem) : a->bytes, value);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  return tf_fail_opencl(&m->message, code, "Setting argument %u of kernel '%s'", index,
                        m->plan.strings + l->kernel);
}

// Returns whether the driver's binaries are stored.
static bool keeps_programs(const tvmflow_model* m) {
  return m->cache.folder && !(m->avoided & TF_AVOID_BINARIES);
}

tvmflow_status tf_kernel_create(tvmflow_model* m, uint32_t program, const char* name,
                                cl_kernel* kernel) {
  const tf_opencl* const api = &m->device.api;
  tf_build* const b = &m->builds[program];
  cl_int code = CL_SUCCESS;
  if (!b->program) {
    // PoCL falls over its own files if a program is built while another's binary is stored.
    tf_programs_stored(m);
    const tvmflow_status damaged = tf_sources_unpack(m);
    if (damaged) return damaged;
    tf_build_spare(b);
    if (b->code != CL_SUCCESS) return describe_failure(m, b, program);
    m->stored &= b->cached || !keeps_programs(m);
  }
  *kernel = api->clCreateKernel(b->program, name, &code);
  if (code != CL_SUCCESS && b->cached) {
    // A binary that the driver accepted may lack this kernel.
    const tvmflow_status damaged = tf_sources_unpack(m);
    if (damaged) return damaged;
    tf_build_again(b);
    if (b->code != CL_SUCCESS) return describe_failure(m, b, program);
    *kernel = api->clCreateKernel(b->program, name, &code);
  }
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  *kernel = NULL;
  return tf_fail_opencl(&m->message, code, "Creating kernel '%s'", name);
}

tvmflow_status tf_step_create(tvmflow_model* m, uint32_t index) {
  const tf_opencl* const api = &m->device.api;
  const tf_launch* const l = &m->plan.launches[index];
  const char* const name = m->plan.strings + l->kernel;
  tf_step* const s = &m->steps[index];
  tvmflow_status status = TVMFLOW_OK;
  if (!s->kernel) status = tf_kernel_create(m, l->program, name, &s->kernel);
  if (status) return status;
  s->dimensions = l->dimensions;
  size_t group = 1;
  for (uint32_t i = 0; i < l->dimensions; ++i) {
    s->global[i] = l->global[i];
    s->local[i] = l->local[i];
    group *= l->local[i];
  }
  size_t largest = 0;
  cl_int code = api->clGetKernelWorkGroupInfo(s->kernel, m->device.id, CL_KERNEL_WORK_GROUP_SIZE,
                                              sizeof(largest), &largest, NULL);
  if (code == CL_SUCCESS && group > largest)
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Kernel '%s' needs work-groups of %zu, but device '%s' runs it with at most "
                   "%zu work-items. Remedy: compile the network for this device.",
                   name, group, m->device.name, largest);
  for (uint32_t i = 0; !status && i < l->arguments; ++i) status = set_argument(m, index, i);
  return status;
}

static tvmflow_status make_all(tvmflow_model* m) {
  const uint32_t count = tf_count(&m->plan, TF_PROGRAMS);
  tvmflow_status status = make_keys(m);
  if (!status && !tf_build_load(m)) {
    status = tf_sources_unpack(m);
    if (!status) tf_build_missing(m);
  }
  if (status) return status;
  for (uint32_t i = 0; i < count; ++i)
    if (m->builds[i].code != CL_SUCCESS) return describe_failure(m, &m->builds[i], i);
  for (uint32_t i = 0; i < tf_shape_launches(&m->plan); ++i) {
    status = tf_step_create(m, i);
    if (status) return status;
  }
  for (uint32_t i = 0; i < count; ++i) {
    m->built += m->builds[i].program && !m->builds[i].cached;
    m->shipped += m->builds[i].cached && m->builds[i].shipped;
  }
  return TVMFLOW_OK;
}

tvmflow_status tf_programs_create(tvmflow_model* m) {
  const uint32_t count = tf_count(&m->plan, TF_PROGRAMS);
  m->builds = calloc(count + 1u, sizeof(tf_build));
  m->steps = calloc(tf_count(&m->plan, TF_LAUNCHES) + 1u, sizeof(tf_step));
  if (!m->builds || !m->steps)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for %u programs.", count);
  for (uint32_t i = 0; i < count; ++i) m->builds[i].spare = true;
  for (uint32_t i = 0; i < tf_shape_launches(&m->plan); ++i)
    m->builds[m->plan.launches[i].program].spare = false;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_PICTURES); ++i)
    m->builds[m->plan.pictures[i].program].spare = false;
  const tvmflow_status status = make_all(m);
  if (status) return status;
  m->stored = m->built == 0 || !keeps_programs(m);
  return TVMFLOW_OK;
}

static void* store_all(void* model) {
  tvmflow_model* const m = model;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_PROGRAMS); ++i) {
    size_t bytes;
    tf_build* const b = &m->builds[i];
    if (!b->program || b->cached || b->kept) continue;
    uint8_t* const binary = tf_program_binary(&m->device, b->program, &bytes);
    if (binary) tf_cache_store(&m->stored_to, b->key, binary, bytes);
    b->kept = true;
    free(binary);
  }
  return NULL;
}

void tf_programs_store(tvmflow_model* m) {
  // The note, if any, is the reason why nothing can be stored.
  if (m->stored || *m->cache.note) return;
  m->stored = true;
  m->stored_to = m->cache;
  // Only the end of the instance waits for the disk.
  m->storing = !pthread_create(&m->storer, NULL, store_all, m);
  if (m->storing) return;
  store_all(m);
  m->cache = m->stored_to;
}

void tf_programs_stored(tvmflow_model* m) {
  if (!m->storing) return;
  m->storing = false;
  pthread_join(m->storer, NULL);
  m->cache = m->stored_to;
  if (*m->cache.note) tf_log(m, TVMFLOW_LOG_WARNING, "Programs are not kept: %s.", m->cache.note);
}

tvmflow_status tf_programs_bind(tvmflow_model* m, uint32_t allocation) {
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_LAUNCHES); ++i) {
    const tf_launch* const l = &m->plan.launches[i];
    for (uint32_t j = 0; j < l->arguments; ++j) {
      const tf_argument* const a = &m->plan.arguments[l->first_argument + j];
      if (a->kind != TF_MEMORY || a->allocation != allocation || !m->steps[i].kernel) continue;
      const tvmflow_status status = set_argument(m, i, j);
      if (status) return status;
    }
  }
  m->recording_is_old = true;
  return TVMFLOW_OK;
}

void tf_programs_destroy(tvmflow_model* m) {
  const tf_opencl* const api = &m->device.api;
  tf_programs_stored(m);
  for (uint32_t i = 0; m->steps && i < tf_count(&m->plan, TF_LAUNCHES); ++i)
    if (m->steps[i].kernel) (void)api->clReleaseKernel(m->steps[i].kernel);
  for (uint32_t i = 0; m->builds && i < tf_count(&m->plan, TF_PROGRAMS); ++i)
    if (m->builds[i].program) (void)api->clReleaseProgram(m->builds[i].program);
  free(m->steps);
  free(m->builds);
  tf_sources_forget(m);
}
