#include "cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <unistd.h>

#include "../core/host_features.h"
#include "../core/threads.h"
#include "picture.h"

// Alignment of memory in bytes; vectors are read and written up to the next multiple.
enum { ALIGNMENT = 64 };
enum { INVALID_OPERATION = -59, INVALID_KERNEL_NAME = -46, INVALID_HOST_POINTER = -37 };

// -- features --------------------------------------------------------------------------------

// Features that kernels may need beyond the lowest level of the architecture; levels are those of
// the x86-64 psABI.
static char features[64];

static void find_features(void) {
#if defined(__x86_64__)
  const uint32_t level_2 = 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23;
  const uint32_t level_3[2] = {1u << 12 | 1u << 22 | 1u << 29, 1u << 3 | 1u << 5 | 1u << 8};
  const uint32_t level_4 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  uint32_t words[6], unused = 0, extended = 0;
  HostFeatures(words);
  __get_cpuid(0x80000001, &unused, &unused, &extended, &unused);
  if ((words[1] & level_2) != level_2 || !(extended & 1)) return;
  tf_append(features, sizeof(features), "x86-64-v2");
  if ((words[1] & level_3[0]) != level_3[0] || (words[3] & level_3[1]) != level_3[1] ||
      !(extended >> 5 & 1) || !HostSaves(HOST_VECTORS_256))
    return;
  tf_append(features, sizeof(features), " x86-64-v3");
  if ((words[3] & level_4) != level_4 || !HostSaves(HOST_VECTORS_512)) return;
  tf_append(features, sizeof(features), " x86-64-v4%s", HostHasAvx512Vnni() ? " avx512vnni" : "");
#elif defined(__aarch64__)
  const unsigned long dot_products = 1ul << 20;  // HWCAP_ASIMDDP
  if (getauxval(AT_HWCAP) & dot_products) tf_append(features, sizeof(features), "dotprod");
#endif
}

static const char* list_features(void) {
  static pthread_once_t found = PTHREAD_ONCE_INIT;
  pthread_once(&found, find_features);
  return features;
}

// -- kernels ---------------------------------------------------------------------------------

// DLPack's tensor, and an argument of TVM's functions (tvm/ffi/c_api.h).
typedef struct tensor {
  void* data;
  int32_t device_type;
  int32_t device;
  int32_t dimensions;
  uint8_t kind;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t offset;
} tensor;
enum { DEVICE_CPU = 1, KIND_UNSIGNED = 1 };

typedef struct tf_any {
  int32_t type;
  uint32_t zero;
  void* value;
} tf_any;
enum { ANY_TENSOR = 7 };

extern const tf_named_function tvmflow_functions_begin[] __attribute__((visibility("hidden")));
extern const tf_named_function tvmflow_functions_end[] __attribute__((visibility("hidden")));

// The functions that generated code calls for parallel loops and for memory: pointers that TVM's
// runtime would set in each module.
int (*__TVMBackendParallelLaunch)(tf_task, void*, int) = tf_threads_run;

// Allocates memory that a kernel uses while it runs.
static void* allocate_workspace(int type, int device, uint64_t bytes, int kind, int bits) {
  (void)type, (void)device, (void)kind, (void)bits;
  void* data = NULL;
  return posix_memalign(&data, ALIGNMENT, bytes) ? NULL : data;
}

static int free_workspace(int type, int device, void* data) {
  (void)type, (void)device;
  free(data);
  return 0;
}

void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = free_workspace;

// Copies a buffer, for an output that is also an input or another output.
static int copy(void* self, const tf_any* arguments, int32_t count, tf_any* result) {
  (void)self, (void)count, (void)result;
  const tensor* const from = arguments[0].value;
  const tensor* const to = arguments[1].value;
  memcpy(to->data, from->data, (size_t)(*from->shape < *to->shape ? *from->shape : *to->shape));
  return 0;
}

// Converts a picture to the network's input.
static int picture(void* self, const tf_any* arguments, int32_t count, tf_any* result) {
  (void)self, (void)count, (void)result;
  const tensor* const input = arguments[0].value;
  const tensor* const job = arguments[1].value;
  return tf_picture_convert(job->data, input->data);
}

static tf_function find_function(const char* name) {
  for (const tf_named_function* f = tvmflow_functions_begin; f != tvmflow_functions_end; ++f)
    if (!strcmp(f->name, name) && (!*f->feature || tf_has_word(list_features(), f->feature)))
      return f->run;
  if (!strcmp(name, "tvmflow_picture")) return picture;
  return strcmp(name, "tvmflow_copy") ? NULL : copy;
}

// -- objects ---------------------------------------------------------------------------------

typedef struct memory {
  ClObject object;
  atomic_uint references;
  bool owned;
  void* data;
  int64_t bytes;
} memory;

typedef struct kernel {
  ClObject object;
  tf_function run;
  cl_uint count;
  tensor* tensors;
  tf_any* arguments;
} kernel;

typedef struct event {
  ClObject object;
  atomic_uint references;                     // the application's and the queue's
  void (*complete)(cl_event, cl_int, void*);  // NULL: there is no callback
  void* data;
  cl_ulong begin;
  cl_ulong end;
} event;

typedef struct step {
  kernel* kernel;  // NULL: only the event
  event* event;
} step;

typedef struct queue {
  ClObject object;
  step* steps;  // enqueued, not begun
  size_t count;
  size_t room;
  unsigned threads;
  cl_int code;  // result of the steps so far
  const tf_stop* stop;
  bool running;  // the runner has the steps
  // The runner is a thread that does the steps after `flush`; it starts at the first `flush` and
  // sleeps in between.
  bool has_runner;
  pthread_t runner;
  pthread_mutex_t lock;  // guards `task`; the runner holds it while it works
  pthread_cond_t changed;
  enum { NOTHING, STEPS, END } task;
} queue;

// The only platform, context and program.
static ClObject platform, context, program;

typedef struct processor {
  ClObject object;
  unsigned threads;
} processor;

static cl_int answer(const void* value, size_t bytes, size_t room, void* to, size_t* needed) {
  if (needed) *needed = bytes;
  if (to && room < bytes) return CL_INVALID_VALUE;
  if (to) memcpy(to, value, bytes);
  return CL_SUCCESS;
}

#define ANSWER(type, value)                                                                        \
  do {                                                                                             \
    const type found = (value);                                                                    \
    return answer(&found, sizeof(found), room, to, needed);                                        \
  } while (0)

static cl_int answer_text(const char* text, size_t room, void* to, size_t* needed) {
  return answer(text, strlen(text) + 1, room, to, needed);
}

// -- platform and device ---------------------------------------------------------------------

static cl_int get_platform_info(cl_platform_id of, cl_uint what, size_t room, void* to,
                                size_t* needed) {
  (void)of;
  if (what == CL_PLATFORM_NAME) return answer_text("tvmflow", room, to, needed);
  return answer_text(what == CL_PLATFORM_VERSION ? "OpenCL 1.2 tvmflow" : "", room, to, needed);
}

// Finds the processor's name, if the system reports it.
static void name_processor(char* name, size_t bytes) {
  snprintf(name, bytes, "%s", "processor");
  FILE* const file = fopen("/proc/cpuinfo", "r");
  if (!file) return;
  char line[256];
  while (fgets(line, sizeof(line), file)) {
    char* const value = strstr(line, ": ");
    if (!value || (strncmp(line, "model name", 10) && strncmp(line, "Hardware", 8))) continue;
    value[strcspn(value, "\n")] = 0;
    snprintf(name, bytes, "%s", value + 2);
    break;
  }
  fclose(file);
}

static cl_int get_device_info(cl_device_id of, cl_uint what, size_t room, void* to,
                              size_t* needed) {
  const cl_ulong bytes = (cl_ulong)sysconf(_SC_PHYS_PAGES) * (cl_ulong)sysconf(_SC_PAGESIZE);
  char name[128];
  switch (what) {
    case CL_DEVICE_NAME:
      name_processor(name, sizeof(name));
      return answer_text(name, room, to, needed);
    case CL_DRIVER_VERSION:
      snprintf(name, sizeof(name), "%u threads", ((const processor*)of)->threads);
      return answer_text(name, room, to, needed);
    case CL_DEVICE_VERSION:
      return answer_text("OpenCL 1.2", room, to, needed);
    case CL_DEVICE_EXTENSIONS:
      return answer_text(list_features(), room, to, needed);
    case CL_DEVICE_TYPE:
      ANSWER(cl_bitfield, CL_DEVICE_TYPE_CPU);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
      ANSWER(cl_ulong, bytes);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
      ANSWER(size_t, 1);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: {
      const size_t sizes[3] = {1, 1, 1};
      return answer(sizes, sizeof(sizes), room, to, needed);
    }
    case CL_DEVICE_AVAILABLE:
    case CL_DEVICE_COMPILER_AVAILABLE:
      ANSWER(cl_bool, CL_TRUE);
    default:
      return CL_INVALID_VALUE;
  }
}

// -- context and memory ----------------------------------------------------------------------

static cl_context create_context(const intptr_t* properties, cl_uint count, const cl_device_id* of,
                                 void (*notify)(const char*, const void*, size_t, void*),
                                 void* data, cl_int* code) {
  (void)properties, (void)count, (void)of, (void)notify, (void)data;
  *code = CL_SUCCESS;
  return &context;
}

static cl_int keep(ClObject* object) {
  (void)object;
  return CL_SUCCESS;
}

static cl_mem create_buffer(cl_context in, cl_bitfield flags, size_t bytes, void* host,
                            cl_int* code) {
  (void)in;
  const bool owned = !(flags & CL_MEM_USE_HOST_PTR);
  *code = !owned && (uintptr_t)host % ALIGNMENT ? INVALID_HOST_POINTER : CL_OUT_OF_HOST_MEMORY;
  if (*code == INVALID_HOST_POINTER) return NULL;
  memory* const m = calloc(1, sizeof(memory));
  const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (m && owned && posix_memalign(&host, ALIGNMENT, whole)) {
    free(m);
    return NULL;
  }
  if (!m) return NULL;
  m->owned = owned;
  m->data = host;
  m->bytes = (int64_t)bytes;
  atomic_store(&m->references, 1);
  *code = CL_SUCCESS;
  return &m->object;
}

cl_mem tf_cpu_wrap(void* data, size_t bytes) {
  cl_int code;
  return create_buffer(&context, CL_MEM_USE_HOST_PTR, bytes, data, &code);
}

const void* tf_cpu_data(cl_mem object) { return ((const memory*)object)->data; }

static cl_mem create_image(cl_context in, cl_bitfield flags, const cl_image_format* format,
                           const cl_image_desc* layout, void* host, cl_int* code) {
  (void)in, (void)flags, (void)format, (void)layout, (void)host;
  *code = INVALID_OPERATION;
  return NULL;
}

static cl_int retain_memory(cl_mem object) {
  atomic_fetch_add(&((memory*)object)->references, 1);
  return CL_SUCCESS;
}

static cl_int release_memory(cl_mem object) {
  memory* const m = (memory*)object;
  if (atomic_fetch_sub(&m->references, 1) > 1) return CL_SUCCESS;
  if (m->owned) free(m->data);
  free(m);
  return CL_SUCCESS;
}

static cl_int get_memory_info(cl_mem object, cl_uint what, size_t room, void* to, size_t* needed) {
  if (what == CL_MEM_TYPE) ANSWER(cl_uint, CL_MEM_OBJECT_BUFFER);
  if (what == CL_MEM_SIZE) ANSWER(size_t, (size_t)((memory*)object)->bytes);
  if (what == CL_MEM_CONTEXT) ANSWER(cl_context, &context);
  return CL_INVALID_VALUE;
}

static cl_int get_image_info(cl_mem object, cl_uint what, size_t room, void* to, size_t* needed) {
  (void)object, (void)what, (void)room, (void)to, (void)needed;
  return INVALID_OPERATION;
}

// -- programs and kernels --------------------------------------------------------------------

static cl_program create_program(cl_context in, cl_uint count, const char** texts,
                                 const size_t* bytes, cl_int* code) {
  (void)in, (void)count, (void)texts, (void)bytes;
  *code = CL_SUCCESS;
  return &program;
}

// Programs have no binaries.
static cl_program create_program_with_binary(cl_context in, cl_uint count, const cl_device_id* of,
                                             const size_t* bytes, const unsigned char** binaries,
                                             cl_int* statuses, cl_int* code) {
  (void)in, (void)count, (void)of, (void)bytes, (void)binaries, (void)statuses;
  *code = INVALID_OPERATION;
  return NULL;
}

static cl_int build_program(cl_program of, cl_uint count, const cl_device_id* devices,
                            const char* options, void (*notify)(cl_program, void*), void* data) {
  (void)of, (void)count, (void)devices, (void)options, (void)notify, (void)data;
  return CL_SUCCESS;
}

static cl_int get_program_info(cl_program of, cl_uint what, size_t room, void* to, size_t* needed) {
  (void)of;
  if (what == CL_PROGRAM_BINARY_SIZES) ANSWER(size_t, 0);
  return CL_INVALID_VALUE;
}

static cl_int get_build_info(cl_program of, cl_device_id on, cl_uint what, size_t room, void* to,
                             size_t* needed) {
  (void)of, (void)on, (void)what;
  return answer_text("", room, to, needed);
}

static cl_kernel create_kernel(cl_program of, const char* name, cl_int* code) {
  (void)of;
  const tf_function run = find_function(name);
  *code = run ? CL_OUT_OF_HOST_MEMORY : INVALID_KERNEL_NAME;
  kernel* const k = run ? calloc(1, sizeof(kernel)) : NULL;
  if (!k) return NULL;
  k->run = run;
  *code = CL_SUCCESS;
  return &k->object;
}

static cl_int release_kernel(cl_kernel object) {
  kernel* const k = (kernel*)object;
  free(k->tensors);
  free(k->arguments);
  free(k);
  return CL_SUCCESS;
}

static cl_int set_argument(cl_kernel object, cl_uint index, size_t bytes, const void* value) {
  kernel* const k = (kernel*)object;
  memory* m;
  if (bytes != sizeof(m)) return CL_INVALID_VALUE;
  memcpy(&m, value, sizeof(m));
  if (index >= k->count) {
    tensor* const tensors = realloc(k->tensors, (index + 1) * sizeof(tensor));
    if (tensors) k->tensors = tensors;
    tf_any* const arguments = realloc(k->arguments, (index + 1) * sizeof(tf_any));
    if (arguments) k->arguments = arguments;
    if (!tensors || !arguments) return CL_OUT_OF_HOST_MEMORY;
    for (; k->count <= index; ++k->count) k->tensors[k->count] = (tensor){0};
    for (cl_uint i = 0; i < k->count; ++i)
      k->arguments[i] = (tf_any){.type = ANY_TENSOR, .value = &k->tensors[i]};
  }
  k->tensors[index] = (tensor){.data = m->data,
                               .device_type = DEVICE_CPU,
                               .dimensions = 1,
                               .kind = KIND_UNSIGNED,
                               .bits = 8,
                               .lanes = 1,
                               .shape = &m->bytes};
  return CL_SUCCESS;
}

static cl_int get_group_info(cl_kernel of, cl_device_id on, cl_uint what, size_t room, void* to,
                             size_t* needed) {
  (void)of, (void)on, (void)what;
  ANSWER(size_t, 1);
}

// -- queues ----------------------------------------------------------------------------------

static cl_command_queue create_queue(cl_context in, cl_device_id on, cl_bitfield properties,
                                     cl_int* code) {
  (void)in, (void)properties;
  queue* const q = calloc(1, sizeof(queue));
  *code = q ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
  if (!q) return NULL;
  static const tf_stop never;
  q->stop = &never;
  q->threads = ((const processor*)on)->threads;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->changed, NULL);
  return &q->object;
}

static cl_int release_event(cl_event object) {
  event* const e = (event*)object;
  if (atomic_fetch_sub(&e->references, 1) == 1) free(e);
  return CL_SUCCESS;
}

static void run_steps(queue* q) {
  tf_threads_take(q->threads);
  for (size_t i = 0; i < q->count; ++i) {
    kernel* const k = q->steps[i].kernel;
    event* const e = q->steps[i].event;
    tf_any result = {0};
    if (e) e->begin = tf_nanoseconds();
    if (k && q->code == CL_SUCCESS && !tf_is_stopped(q->stop) &&
        k->run(NULL, k->arguments, (int32_t)k->count, &result))
      q->code = CL_OUT_OF_RESOURCES;
    if (!e) continue;
    e->end = tf_nanoseconds();
    if (e->complete) e->complete(&e->object, q->code, e->data);
    (void)release_event(&e->object);
  }
  q->count = 0;
  tf_threads_give();
}

static void* run_apart(void* argument) {
  queue* const q = argument;
  pthread_mutex_lock(&q->lock);
  while (q->task != END) {
    if (q->task == NOTHING) {
      pthread_cond_wait(&q->changed, &q->lock);
      continue;
    }
    run_steps(q);
    q->task = NOTHING;
    pthread_cond_signal(&q->changed);
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

// Passes a task to the runner, which sleeps until then.
static void tell_runner(queue* q, int task) {
  pthread_mutex_lock(&q->lock);
  q->task = task;
  pthread_cond_signal(&q->changed);
  pthread_mutex_unlock(&q->lock);
}

static cl_int finish(cl_command_queue object) {
  queue* const q = (queue*)object;
  if (q->running) {
    pthread_mutex_lock(&q->lock);
    while (q->task != NOTHING) pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
  }
  q->running = false;
  run_steps(q);
  const cl_int code = q->code;
  q->code = CL_SUCCESS;
  return code;
}

static cl_int flush(cl_command_queue object) {
  queue* const q = (queue*)object;
  if (q->running || !q->count) return CL_SUCCESS;
  if (!q->has_runner) q->has_runner = !pthread_create(&q->runner, NULL, run_apart, q);
  // Without a thread, `finish` does the steps.
  q->running = q->has_runner;
  if (q->running) tell_runner(q, STEPS);
  return CL_SUCCESS;
}

static cl_int release_queue(cl_command_queue object) {
  queue* const q = (queue*)object;
  (void)finish(object);
  if (q->has_runner) {
    tell_runner(q, END);
    pthread_join(q->runner, NULL);
  }
  pthread_cond_destroy(&q->changed);
  pthread_mutex_destroy(&q->lock);
  free(q->steps);
  free(q);
  return CL_SUCCESS;
}

static cl_int enqueue(queue* q, kernel* k, cl_event* made) {
  if (q->count == q->room) {
    const size_t room = q->room ? 2 * q->room : 64;
    step* const steps = realloc(q->steps, room * sizeof(step));
    if (!steps) return CL_OUT_OF_HOST_MEMORY;
    q->steps = steps;
    q->room = room;
  }
  event* const e = made ? calloc(1, sizeof(event)) : NULL;
  if (made && !e) return CL_OUT_OF_HOST_MEMORY;
  if (e) atomic_store(&e->references, 2);
  if (made) *made = &e->object;
  q->steps[q->count++] = (step){k, e};
  return CL_SUCCESS;
}

static cl_int enqueue_kernel(cl_command_queue object, cl_kernel of, cl_uint dimensions,
                             const size_t* offset, const size_t* global, const size_t* local,
                             cl_uint waits, const cl_event* events, cl_event* made) {
  (void)dimensions, (void)offset, (void)global, (void)local, (void)waits, (void)events;
  return enqueue((queue*)object, (kernel*)of, made);
}

static cl_int enqueue_marker(cl_command_queue object, cl_uint waits, const cl_event* events,
                             cl_event* made) {
  (void)waits, (void)events;
  return enqueue((queue*)object, NULL, made);
}

// Sets the callback of an event, before the queue is flushed.
static cl_int set_event_callback(cl_event object, cl_int when,
                                 void (*complete)(cl_event, cl_int, void*), void* data) {
  (void)when;
  event* const e = (event*)object;
  e->data = data;
  e->complete = complete;
  return CL_SUCCESS;
}

static cl_int get_profiling_info(cl_event object, cl_uint what, size_t room, void* to,
                                 size_t* needed) {
  const event* const e = (const event*)object;
  ANSWER(cl_ulong, what == CL_PROFILING_COMMAND_START ? e->begin : e->end);
}

// Waits for all steps, and checks that a part of a buffer is inside it.
static cl_int check_part(cl_command_queue object, cl_mem of, size_t offset, size_t bytes) {
  const cl_int code = finish(object);
  const size_t all = (size_t)((memory*)of)->bytes;
  if (code != CL_SUCCESS) return code;
  return offset <= all && bytes <= all - offset ? CL_SUCCESS : CL_INVALID_VALUE;
}

static cl_int read_buffer(cl_command_queue object, cl_mem from, cl_bool blocking, size_t offset,
                          size_t bytes, void* to, cl_uint waits, const cl_event* events,
                          cl_event* made) {
  (void)blocking, (void)waits, (void)events, (void)made;
  const cl_int code = check_part(object, from, offset, bytes);
  if (code == CL_SUCCESS) memcpy(to, (const char*)((memory*)from)->data + offset, bytes);
  return code;
}

static cl_int write_buffer(cl_command_queue object, cl_mem to, cl_bool blocking, size_t offset,
                           size_t bytes, const void* from, cl_uint waits, const cl_event* events,
                           cl_event* made) {
  (void)blocking, (void)waits, (void)events, (void)made;
  const cl_int code = check_part(object, to, offset, bytes);
  if (code == CL_SUCCESS) memcpy((char*)((memory*)to)->data + offset, from, bytes);
  return code;
}

// -- the driver ------------------------------------------------------------------------------

static const tf_opencl functions = {
    .clGetPlatformInfo = get_platform_info,
    .clGetDeviceInfo = get_device_info,
    .clCreateContext = create_context,
    .clRetainContext = keep,
    .clReleaseContext = keep,
    .clCreateCommandQueue = create_queue,
    .clReleaseCommandQueue = release_queue,
    .clCreateBuffer = create_buffer,
    .clCreateImage = create_image,
    .clRetainMemObject = retain_memory,
    .clReleaseMemObject = release_memory,
    .clGetMemObjectInfo = get_memory_info,
    .clGetImageInfo = get_image_info,
    .clCreateProgramWithSource = create_program,
    .clCreateProgramWithBinary = create_program_with_binary,
    .clBuildProgram = build_program,
    .clReleaseProgram = keep,
    .clGetProgramInfo = get_program_info,
    .clGetProgramBuildInfo = get_build_info,
    .clCreateKernel = create_kernel,
    .clReleaseKernel = release_kernel,
    .clSetKernelArg = set_argument,
    .clGetKernelWorkGroupInfo = get_group_info,
    .clEnqueueNDRangeKernel = enqueue_kernel,
    .clEnqueueMarkerWithWaitList = enqueue_marker,
    .clSetEventCallback = set_event_callback,
    .clReleaseEvent = release_event,
    .clGetEventProfilingInfo = get_profiling_info,
    .clFlush = flush,
    .clFinish = finish,
    .clEnqueueReadBuffer = read_buffer,
    .clEnqueueWriteBuffer = write_buffer,
};

bool tf_cpu_begin(tf_device* d, unsigned threads, bool pinned) {
  processor* const own = calloc(1, sizeof(processor));
  if (!own) return false;
  own->threads = tf_threads_begin(threads, pinned);
  *d = (tf_device){.api = functions,
                   .platform = &platform,
                   .id = &own->object,
                   .library = "(inside)",
                   .is_inside = true};
  return true;
}

void tf_cpu_watch(const tf_device* d, cl_command_queue object, const tf_stop* stop) {
  if (d->is_inside) ((queue*)object)->stop = stop;
}

void tf_cpu_adopt(cl_command_queue object, bool is_whole) {
  queue* const q = (queue*)object;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->changed, NULL);
  if (!is_whole) q->count = 0;
  if (!is_whole) q->code = CL_SUCCESS;
  q->running = q->has_runner = false;
  q->task = NOTHING;
}

void tf_cpu_end(tf_device* d) {
  if (!d->is_inside) return;
  free(d->id);
  tf_threads_end();
  d->is_inside = false;
}
