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

static void release(tf_build* b) {
  if (b->program) (void)b->model->device.api.clReleaseProgram(b->program);
  b->program = NULL;
}

static bool load(tf_build* b) {
  const tvmflow_model* const m = b->model;
  size_t bytes = 0;
  uint8_t* const binary = tf_cache_load(&m->cache, b->key, &bytes, &b->shipped);
  if (!binary) return false;
  const tf_opencl* const api = &m->device.api;
  const cl_device_id id = m->device.id;
  const unsigned char* list[1] = {binary};
  cl_int status = CL_SUCCESS;
  b->program = api->clCreateProgramWithBinary(m->context, 1, &id, &bytes, list, &status, &b->code);
  if (b->code != CL_SUCCESS)
    b->program = NULL;
  else
    b->code = status;
  if (b->code == CL_SUCCESS)
    b->code = api->clBuildProgram(b->program, 1, &id, b->options, NULL, NULL);
  free(binary);
  b->cached = b->code == CL_SUCCESS;
  if (!b->cached) release(b);
  return b->cached;
}

void tf_build_again(tf_build* b) {
  const tvmflow_model* const m = b->model;
  const tf_opencl* const api = &m->device.api;
  release(b);
  b->cached = false;
  const char* texts[1] = {b->source};
  b->program = api->clCreateProgramWithSource(m->context, 1, texts, &b->source_bytes, &b->code);
  if (b->code != CL_SUCCESS) {
    b->program = NULL;
    return;
  }
  b->code = api->clBuildProgram(b->program, 1, &m->device.id, b->options, NULL, NULL);
}

static void* work(void* argument) {
  const share_of_work* const w = argument;
  for (uint32_t i = w->first; i < w->count; i += w->step)
    if (!w->builds[i].cached) tf_build_again(&w->builds[i]);
  return NULL;
}

void tf_build_all(tf_build* builds, uint32_t count) {
  uint32_t missing = 0;
  // One after the other: that takes no time, and threads have memory of their own.
  for (uint32_t i = 0; i < count; ++i) missing += !load(&builds[i]);
  const uint32_t threads = missing < MAX_THREADS ? missing : MAX_THREADS;
  share_of_work shares[MAX_THREADS];
  pthread_t ids[MAX_THREADS];
  bool running[MAX_THREADS] = {false};
  for (uint32_t i = 0; i < threads; ++i) {
    shares[i] = (share_of_work){builds, count, i, threads};
    running[i] = i > 0 && pthread_create(&ids[i], NULL, work, &shares[i]) == 0;
  }
  // This thread has a share too, and those of threads that could not be made.
  for (uint32_t i = 0; i < threads; ++i)
    if (!running[i]) work(&shares[i]);
  for (uint32_t i = 0; i < threads; ++i)
    if (running[i]) pthread_join(ids[i], NULL);
}
