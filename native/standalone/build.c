#include <pthread.h>
#include <stdlib.h>

#include "../core/compile.h"
#include "cache.h"
#include "model.h"
#include "programs.h"

// Drivers' compilers need so much memory that more threads at a time do not pay off.
enum { MAX_THREADS = 4 };

typedef struct share_of_work {
  void (*work)(tf_build* build);
  tf_build* builds;
  uint32_t count;
  uint32_t first;
  uint32_t step;
} share_of_work;

static bool load(tf_build* b) {
  const tvmflow_model* const m = b->model;
  size_t bytes = 0;
  if (m->avoided & TF_AVOID_BINARIES) return false;
  uint8_t* const binary = tf_cache_load(&m->cache, b->key, &bytes, &b->shipped);
  if (!binary) return false;
  b->program = tf_load_binary(&m->device, m->context, binary, bytes, b->options, &b->code);
  b->cached = b->code == CL_SUCCESS;
  free(binary);
  return b->cached;
}

void tf_build_again(tf_build* b) {
  const tvmflow_model* const m = b->model;
  if (b->program) (void)m->device.api.clReleaseProgram(b->program);
  b->cached = false;
  b->program = tf_compile(&m->device, m->context, b->source, b->source_bytes, b->options, &b->code);
}

void tf_build_spare(tf_build* b) {
  if (!load(b)) tf_build_again(b);
}

// Makes the kernels of all launches, because drivers link a program when its first kernel is made.
// Returns false, with no kernel, if the program lacks one.
static bool make_kernels(tf_build* b) {
  const tvmflow_model* const m = b->model;
  const tf_opencl* const api = &m->device.api;
  const uint32_t program = (uint32_t)(b - m->builds);
  cl_int code = CL_SUCCESS;
  for (uint32_t i = 0; code == CL_SUCCESS && i < tf_count(&m->plan, TF_LAUNCHES); ++i) {
    const tf_launch* const l = &m->plan.launches[i];
    if (l->program != program) continue;
    m->steps[i].kernel = api->clCreateKernel(b->program, m->plan.strings + l->kernel, &code);
    if (code != CL_SUCCESS) m->steps[i].kernel = NULL;
  }
  if (code == CL_SUCCESS) return true;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_LAUNCHES); ++i) {
    if (m->plan.launches[i].program != program || !m->steps[i].kernel) continue;
    (void)api->clReleaseKernel(m->steps[i].kernel);
    m->steps[i].kernel = NULL;
  }
  return false;
}

// A binary that the driver accepts may still lack kernels.
static void take(tf_build* b) { b->cached = !b->spare && load(b) && make_kernels(b); }

static void build_missing(tf_build* b) {
  if (b->cached || b->spare) return;
  tf_build_again(b);
  // A missing kernel is reported when its step is made.
  if (b->code == CL_SUCCESS) (void)make_kernels(b);
}

static void* work(void* argument) {
  const share_of_work* const w = argument;
  for (uint32_t i = w->first; i < w->count; i += w->step) w->work(&w->builds[i]);
  return NULL;
}

static void work_together(tvmflow_model* m, void (*what)(tf_build*)) {
  const uint32_t count = tf_count(&m->plan, TF_PROGRAMS);
  const uint32_t threads = count < MAX_THREADS ? count : MAX_THREADS;
  share_of_work shares[MAX_THREADS];
  pthread_t ids[MAX_THREADS];
  for (uint32_t i = 0; i < threads; ++i)
    shares[i] = (share_of_work){what, m->builds, count, i, threads};
  uint32_t made = 0;
  while (made + 1 < threads && !pthread_create(&ids[made], NULL, work, &shares[made])) ++made;
  // This thread does its own share and those of threads that could not be created.
  for (uint32_t i = made; i < threads; ++i) work(&shares[i]);
  for (uint32_t i = 0; i < made; ++i) pthread_join(ids[i], NULL);
}

bool tf_build_load(tvmflow_model* m) {
  uint32_t missing = 0;
  work_together(m, take);
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_PROGRAMS); ++i)
    missing += !m->builds[i].cached && !m->builds[i].spare;
  return !missing;
}

void tf_build_missing(tvmflow_model* m) { work_together(m, build_missing); }
