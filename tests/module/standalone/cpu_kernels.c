// Kernels as TVM's code generator writes them for a CPU, by hand: `__tvm_ffi_NAME`.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef struct tensor {
  float* data;
  int32_t device[2];
  int32_t dimensions;
  uint8_t kind, bits;
  uint16_t lanes;
  int64_t* shape;
} tensor;
typedef struct any {
  int32_t type;
  uint32_t zero;
  tensor* value;
} any;
typedef struct group {
  void* unused;
  int32_t tasks;
} group;

extern int (*__TVMBackendParallelLaunch)(int (*)(int, group*, void*), void*, int);
extern void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int);
extern int (*__TVMBackendFreeWorkspace)(int, int, void*);

// y = 2 * x + w, its elements shared out.
static int add_part(int number, group* all, void* data) {
  const any* const arguments = data;
  const int64_t count = arguments[2].value->shape[0] / 4;
  const int64_t each = (count + all->tasks - 1) / all->tasks;
  for (int64_t i = number * each; i < (number + 1) * each && i < count; ++i)
    arguments[2].value->data[i] = 2 * arguments[0].value->data[i] + arguments[1].value->data[i];
  return 0;
}

int __tvm_ffi_add(void* self, const any* arguments, int32_t count, any* result) {
  (void)self, (void)result;
  if (count != 3 || arguments[0].type != 7) return -1;
  return __TVMBackendParallelLaunch(add_part, (void*)arguments, 0);
}

// The same by way of memory that it allocates.
int __tvm_ffi_add_apart(void* self, const any* arguments, int32_t count, any* result) {
  const int64_t bytes = arguments[2].value->shape[0];
  tensor between = *arguments[2].value;
  between.data = __TVMBackendAllocWorkspace(1, 0, (uint64_t)bytes, 2, 32);
  if (!between.data) return -1;
  const any own[3] = {arguments[0], arguments[1], {7, 0, &between}};
  const int code = __tvm_ffi_add(self, own, count, result);
  memcpy(arguments[2].value->data, between.data, (size_t)bytes);
  __TVMBackendFreeWorkspace(1, 0, between.data);
  return code;
}

static int fail_part(int number, group* all, void* data) {
  (void)data;
  return number == all->tasks - 1 ? -1 : 0;
}

int __tvm_ffi_fail(void* self, const any* arguments, int32_t count, any* result) {
  (void)self, (void)arguments, (void)count, (void)result;
  return __TVMBackendParallelLaunch(fail_part, NULL, 0);
}

// So many sums of sums that a thread is done before others begin; y[0] is what 1,000 tasks count.
static int count_part(int number, group* all, void* data) {
  (void)all;
  int64_t* const seen = data;
  __atomic_fetch_add(seen, number + 1, __ATOMIC_RELAXED);
  return 0;
}

int __tvm_ffi_count(void* self, const any* arguments, int32_t count, any* result) {
  (void)self, (void)result;
  int64_t seen = 0;
  for (int i = 0; i < 100; ++i) {
    const int code = __TVMBackendParallelLaunch(count_part, &seen, 1 + i % 37);
    if (code) return code;
  }
  arguments[count - 1].value->data[0] = (float)seen;
  return 0;
}

// Takes as long as a test can end it in.
int __tvm_ffi_slow(void* self, const any* arguments, int32_t count, any* result) {
  (void)self, (void)result;
  const struct timespec pause = {0, 20000000};
  nanosleep(&pause, NULL);
  arguments[count - 1].value->data[0] += 1;
  return 0;
}
