#include <pthread.h>
#include <stdlib.h>

#include "model.h"

// Drivers' compilers need much memory: more at a time are not worth it.
enum { MAX_THREADS = 4 };

typedef struct share_of_work {
  tf_build* builds;
  uint32_t count;
  uint32_t first;
  uint32_t step;
} share_of_work;

// Also after an error a driver may have written something.
static bool build(tf_build* b, cl_program program) {
  const tf_opencl* const api = &b->model->device.api;
  b->program = b->code == CL_SUCCESS ? program : NULL;
  if (b->program)
    b->code = api->clBuildProgram(program, 1, &b->model->device.id, b->options, NULL, NULL);
  return b->code == CL_SUCCESS;
}

static bool load(tf_build* b) {
  const tvmflow_model* const m = b->model;
  size_t bytes = 0;
  uint8_t* const binary = tf_cache_load(&m->cache, b->key, &bytes, &b->shipped);
  if (!binary) return false;
  const unsigned char* list[1] = {binary};
  cl_int status = CL_SUCCESS;
  const cl_program program = m->device.api.clCreateProgramWithBinary(
      m->context, 1, &m->device.id, &bytes, list, &status, &b->code);
  b->cached = build(b, program) && status == CL_SUCCESS;
  free(binary);
  return b->cached;
}

void tf_build_again(tf_build* b) {
  const tf_opencl* const api = &b->model->device.api;
  if (b->program) (void)api->clReleaseProgram(b->program);
  b->cached = false;
  const char* texts[1] = {b->source};
  build(b, api->clCreateProgramWithSource(b->model->context, 1, texts, &b->source_bytes, &b->code));
}

static void* work(void* argument) {
  const share_of_work* const w = argument;
  for (uint32_t i = w->first; i < w->count; i += w->step)
    if (!w->builds[i].cached) tf_build_again(&w->builds[i]);
  return NULL;
}

tvmflow_status tf_build_all(tvmflow_model* m) {
  tf_build* const builds = m->builds;
  const uint32_t count = tf_count(&m->plan, TF_PROGRAMS);
  uint32_t missing = 0;
  // One after the other: that takes no time, and threads have memory of their own.
  for (uint32_t i = 0; i < count; ++i) missing += !load(&builds[i]);
  const tvmflow_status status = missing ? tf_sources_unpack(m) : TVMFLOW_OK;
  if (status) return status;
  const uint32_t threads = missing < MAX_THREADS ? missing : MAX_THREADS;
  share_of_work shares[MAX_THREADS];
  pthread_t ids[MAX_THREADS];
  for (uint32_t i = 0; i < threads; ++i) shares[i] = (share_of_work){builds, count, i, threads};
  uint32_t made = 0;
  while (made + 1 < threads && !pthread_create(&ids[made], NULL, work, &shares[made])) ++made;
  // This thread has a share too, and those of threads that could not be made.
  for (uint32_t i = made; i < threads; ++i) work(&shares[i]);
  for (uint32_t i = 0; i < made; ++i) pthread_join(ids[i], NULL);
  return TVMFLOW_OK;
}
