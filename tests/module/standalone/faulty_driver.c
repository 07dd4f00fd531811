// A driver of OpenCL that computes one kernel wrongly, and is right otherwise: functions that are
// not here are the real driver's, which this library is linked to.
//
// FAULTY_KERNEL    name of the kernel
// FAULTY_ARGUMENT  number of the argument that is its result
// FAULTY_RATE      one launch in so many is wrong, on average; 1, the default: all are
// FAULTY_SEED      decides which
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../../native/core/cl_types.h"

typedef struct kernel {
  void* id;
  void* result;
} kernel;

enum { KERNELS = 256 };
static kernel kernels[KERNELS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t state;

static void* next(const char* name) { return dlsym(RTLD_NEXT, name); }

static kernel* find(void* id) {
  for (unsigned i = 0; i < KERNELS; ++i)
    if (kernels[i].id == id) return &kernels[i];
  return NULL;
}

void* clCreateKernel(void* program, const char* name, int* code) {
  void* const made =
      ((void* (*)(void*, const char*, int*))next("clCreateKernel"))(program, name, code);
  const char* const faulty = getenv("FAULTY_KERNEL");
  pthread_mutex_lock(&lock);
  kernel* const old = made ? find(made) : NULL;
  if (old) old->id = NULL;
  if (made && faulty && !strcmp(name, faulty)) find(NULL)->id = made;
  pthread_mutex_unlock(&lock);
  return made;
}

int clSetKernelArg(void* id, unsigned index, size_t bytes, const void* value) {
  const char* const argument = getenv("FAULTY_ARGUMENT");
  pthread_mutex_lock(&lock);
  kernel* const k = argument && index == strtoul(argument, NULL, 10) ? find(id) : NULL;
  if (k && bytes == sizeof(void*)) memcpy(&k->result, value, bytes);
  pthread_mutex_unlock(&lock);
  return ((int (*)(void*, unsigned, size_t, const void*))next("clSetKernelArg"))(id, index, bytes,
                                                                                 value);
}

static int is_wrong(void) {
  const char* const rate = getenv("FAULTY_RATE");
  const char* const seed = getenv("FAULTY_SEED");
  if (!state) state = 0x9E3779B97F4A7C15u + 2 * (seed ? strtoull(seed, NULL, 10) : 0);
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (state >> 33) % (rate ? strtoull(rate, NULL, 10) : 1) == 0;
}

int clEnqueueNDRangeKernel(void* queue, void* id, unsigned dimensions, const size_t* offset,
                           const size_t* global, const size_t* local, unsigned events,
                           const void* waits, void* event) {
  int code = ((int (*)(void*, void*, unsigned, const size_t*, const size_t*, const size_t*,
                       unsigned, const void*, void*))next("clEnqueueNDRangeKernel"))(
      queue, id, dimensions, offset, global, local, events, waits, event);
  pthread_mutex_lock(&lock);
  kernel* const k = find(id);
  void* const result = k && is_wrong() ? k->result : NULL;
  pthread_mutex_unlock(&lock);
  if (code || !result) return code;
  static float wrong[4 * 1024];
  for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) wrong[i] = 7.25f;
  unsigned type = 0;
  size_t size[3] = {0, 1, 1};
  static const size_t origin[3] = {0};
  ((int (*)(void*, unsigned, size_t, void*, size_t*))next("clGetMemObjectInfo"))(
      result, CL_MEM_TYPE, sizeof(type), &type, NULL);
  if (type == CL_MEM_OBJECT_BUFFER) {
    ((int (*)(void*, unsigned, size_t, void*, size_t*))next("clGetMemObjectInfo"))(
        result, CL_MEM_SIZE, sizeof(size[0]), &size[0], NULL);
    if (size[0] > sizeof(wrong)) size[0] = sizeof(wrong);
    return ((int (*)(void*, void*, unsigned, size_t, size_t, const void*, unsigned, const void*,
                     void*))next("clEnqueueWriteBuffer"))(queue, result, 1, 0, size[0], wrong, 0,
                                                          NULL, NULL);
  }
  ((int (*)(void*, unsigned, size_t, void*, size_t*))next("clGetImageInfo"))(
      result, CL_IMAGE_WIDTH, sizeof(size[0]), &size[0], NULL);
  if (size[0] > 1024) size[0] = 1024;
  return ((int (*)(void*, void*, unsigned, const size_t*, const size_t*, size_t, size_t,
                   const void*, unsigned, const void*, void*))next("clEnqueueWriteImage"))(
      queue, result, 1, origin, size, 0, 0, wrong, 0, NULL, NULL);
}
