// Objects with their reference counts.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

// Objects that are gone, the oldest of which is freed when another one goes.
enum { kKept = 4096 };
static fake_object* gone[kKept];
static size_t next_gone;

static uint64_t live[FAKE_KINDS_END - FAKE_PLATFORM];
uint64_t fake_memory_bytes;

static const char* const kNames[] = {"platforms", "devices",        "contexts",
                                     "queues",    "memory objects", "programs",
                                     "kernels",   "events",         "recordings"};

void* fake_new(size_t bytes, fake_kind kind, fake_object* context, void (*destroy)(fake_object*)) {
  fake_object* object = calloc(1, bytes);
  if (!object) return NULL;
  object->dispatch = FAKE_FIRST;
  object->kind = kind;
  object->references = 1;
  object->context = context;
  object->destroy = destroy;
  if (context) fake_use(context);
  ++live[kind - FAKE_PLATFORM];
  return object;
}

bool fake_alive(const void* handle, fake_kind kind) {
  const fake_object* object = handle;
  // One that only commands or other objects still use is not the application's any more.
  return object && object->kind == (uint32_t)kind && !object->gone && object->references > 0;
}

static void destroy_unused(fake_object* object) {
  if (object->references > 0 || object->uses > 0) return;
  if (object->destroy) object->destroy(object);
  object->gone = true;
  if (object->context) fake_unuse(object->context);
  free(gone[next_gone]);
  gone[next_gone] = object;
  next_gone = (next_gone + 1) % kKept;
}

void fake_retain(fake_object* object) { ++object->references; }

void fake_release(fake_object* object) {
  if (--object->references > 0) return;
  --live[object->kind - FAKE_PLATFORM];
  // Nobody waited, and memory of the host may be gone: what is pending is not executed.  A use
  // keeps the queue until then, because commands' events use it.
  fake_use(object);
  if (object->kind == FAKE_QUEUE) fake_abandon((fake_queue*)object);
  fake_unuse(object);
}

void fake_use(fake_object* object) { ++object->uses; }

void fake_unuse(fake_object* object) {
  --object->uses;
  destroy_unused(object);
}

uint64_t fake_live(void) {
  FAKE_GUARD();
  uint64_t sum = 0;
  for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); ++i) sum += live[i];
  return sum;
}

const char* fake_live_text(void) {
  static char text[512];
  FAKE_GUARD();
  size_t used = 0;
  text[0] = '\0';
  for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); ++i)
    if (live[i])
      used += (size_t)snprintf(text + used, sizeof(text) - used, "%llu %s\n",
                               (unsigned long long)live[i], kNames[i]);
  return text;
}

uint64_t fake_memory(void) {
  FAKE_GUARD();
  return fake_memory_bytes;
}

__attribute__((destructor)) static void free_gone(void) {
  for (size_t i = 0; i < kKept; ++i) free(gone[i]);
}

static cl_int retain(const char* function, void* handle, fake_kind kind, cl_int code) {
  if (!fake_alive(handle, kind)) return fake_wrong(function, code, "the object is not alive");
  fake_retain(handle);
  return CL_SUCCESS;
}

#define DEFINE_RETAIN(function, type, kind, code)                                                  \
  FAKE_API cl_int function(type handle) {                                                          \
    FAKE_ENTER();                                                                                  \
    return retain(__func__, handle, kind, code);                                                   \
  }
// A release that a test lets fail does release: otherwise nothing could be said about leaks.
#define DEFINE_RELEASE(function, type, kind, code)                                                 \
  FAKE_API cl_int function(type handle) {                                                          \
    FAKE_GUARD();                                                                                  \
    const cl_int failure = fake_enter(__func__);                                                   \
    if (!fake_alive(handle, kind))                                                                 \
      return fake_wrong(__func__, code, "the object is not alive, or released before");            \
    fake_release((fake_object*)handle);                                                            \
    return failure;                                                                                \
  }
#define DEFINE_BOTH(name, type, kind, code)                                                        \
  DEFINE_RETAIN(clRetain##name, type, kind, code)                                                  \
  DEFINE_RELEASE(clRelease##name, type, kind, code)

DEFINE_BOTH(Context, cl_context, FAKE_CONTEXT, CL_INVALID_CONTEXT)
DEFINE_BOTH(CommandQueue, cl_command_queue, FAKE_QUEUE, CL_INVALID_COMMAND_QUEUE)
DEFINE_BOTH(MemObject, cl_mem, FAKE_MEMORY, CL_INVALID_MEM_OBJECT)
DEFINE_BOTH(Program, cl_program, FAKE_PROGRAM, CL_INVALID_PROGRAM)
DEFINE_BOTH(Kernel, cl_kernel, FAKE_KERNEL, CL_INVALID_KERNEL)
DEFINE_BOTH(Event, cl_event, FAKE_EVENT, CL_INVALID_EVENT)
DEFINE_RELEASE(clReleaseCommandBufferKHR, void*, FAKE_RECORDING, -1138)
DEFINE_RELEASE(clReleaseRecordingQCOM, void*, FAKE_RECORDING, CL_INVALID_VALUE)
