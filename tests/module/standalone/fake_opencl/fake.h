// An OpenCL driver without a device, for tests: libOpenCL.so whose every call checks its
// arguments as the specification of OpenCL 1.2 asks, whose memory is real, and of which any
// call can be made to fail.
//
// Commands are not executed before somebody waits, as on a device: memory of the host that
// goes away or changes too early is noticed.  Kernels do nothing, but those whose names begin
// with "copy", "add" or "scale" (kernels.c).  What the device has and can is set by environment
// variables FAKE_OPENCL_... or `fake_set` (settings.c).
#ifndef FAKE_OPENCL_H
#define FAKE_OPENCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cl_types.h"

#define FAKE_API __attribute__((visibility("default")))

// ---- For tests, found with dlsym ----------------------------------------------------------

// A setting, see settings.c; NULL gives the default back.
FAKE_API void fake_set(const char* name, const char* value);
// Call number `n` (from 1) of `function`, NULL: of all, gives `code`; and those after it too
// if `always`.  A release that fails releases all the same.  `n` 0: nothing fails.
FAKE_API void fake_fail(const char* function, uint64_t n, int32_t code, bool always);
// Calls since `fake_reset`, of one function or of all (NULL); "source" and "binary": programs
// built; "incomplete": programs built of binaries from before the first launch; "replays".
FAKE_API uint64_t fake_count(const char* function);
// The function whose call failed as `fake_fail` asked; "" while none has.
FAKE_API const char* fake_failed(void);
// What was wrong with arguments since `fake_reset`, a line each; "" is good.
FAKE_API const char* fake_violations(void);
// Objects that somebody has still to release; a line for each kind in `fake_live_text`.
FAKE_API uint64_t fake_live(void);
FAKE_API const char* fake_live_text(void);
// Bytes of device memory in use.
FAKE_API uint64_t fake_memory(void);
// Forgets counts, violations and failures; objects stay.
FAKE_API void fake_reset(void);

// ---- Inside ---------------------------------------------------------------------------------

enum {
  CL_DEVICE_NOT_AVAILABLE = -2,
  CL_IMAGE_FORMAT_NOT_SUPPORTED = -10,
  CL_BUILD_PROGRAM_FAILURE = -11,
  CL_INVALID_PLATFORM = -32,
  CL_INVALID_DEVICE = -33,
  CL_INVALID_CONTEXT = -34,
  CL_INVALID_COMMAND_QUEUE = -36,
  CL_INVALID_HOST_PTR = -37,
  CL_INVALID_MEM_OBJECT = -38,
  CL_INVALID_IMAGE_FORMAT_DESCRIPTOR = -39,
  CL_INVALID_IMAGE_SIZE = -40,
  CL_INVALID_BINARY = -42,
  CL_INVALID_PROGRAM = -44,
  CL_INVALID_PROGRAM_EXECUTABLE = -45,
  CL_INVALID_KERNEL_NAME = -46,
  CL_INVALID_KERNEL = -48,
  CL_INVALID_ARG_INDEX = -49,
  CL_INVALID_ARG_VALUE = -50,
  CL_INVALID_ARG_SIZE = -51,
  CL_INVALID_KERNEL_ARGS = -52,
  CL_INVALID_WORK_DIMENSION = -53,
  CL_INVALID_WORK_ITEM_SIZE = -55,
  CL_INVALID_EVENT_WAIT_LIST = -57,
  CL_INVALID_EVENT = -58,
  CL_INVALID_OPERATION = -59,
  CL_INVALID_BUFFER_SIZE = -61,
  CL_INVALID_GLOBAL_WORK_SIZE = -63,
};
// Qualcomm's property of queues whose launches are recorded.
#define FAKE_QUEUE_RECORDABLE (1u << 30)
#define FAKE_CONTEXT_PRIORITY_QCOM 0x40C9
#define FAKE_CONTEXT_PERF_QCOM 0x40C2
extern const char* fake_asked_priority;  // of a context or queue: "low" or "high"

typedef enum fake_kind {
  FAKE_PLATFORM = 0x51A7F0,
  FAKE_DEVICE,
  FAKE_CONTEXT,
  FAKE_QUEUE,
  FAKE_MEMORY,
  FAKE_PROGRAM,
  FAKE_KERNEL,
  FAKE_EVENT,
  FAKE_RECORDING,  // of either extension
  FAKE_KINDS_END
} fake_kind;

// Begins every object.  Objects that are gone stay in memory for a while, so that using them
// can be told.
typedef struct fake_object {
  void** dispatch;
  uint32_t kind;
  bool gone;
  uint32_t references;  // of the application
  uint32_t uses;        // of other objects and of commands
  struct fake_object* context;
  void (*destroy)(struct fake_object*);  // what it owns, but not its memory
} fake_object;

typedef struct fake_queue {
  fake_object object;
  cl_bitfield properties;
  struct fake_command *first, *last;  // not yet executed
  struct fake_recording* recording;   // of a recordable queue, which it records into
  bool lost;                          // waiting for it failed: what still runs cannot be known
} fake_queue;

typedef struct fake_memory_object {
  fake_object object;
  bool is_image;
  bool layered;  // an array of images
  cl_image_format format;
  size_t texel;    // bytes of an image's texel, otherwise 1
  size_t size[3];  // texels; of a buffer {bytes, 1, 1}
  size_t row_pitch, slice_pitch;
  size_t bytes;
  unsigned char* data;
  bool owns_data;
} fake_memory_object;

// What stands for Android's AHardwareBuffer: an image of RGBA8, or bytes without a format.
#define FAKE_HARDWARE_BUFFER 0x48415244u
typedef struct fake_hardware_buffer {
  uint32_t magic;
  uint32_t is_image;
  uint32_t width, height;
  size_t bytes;
  unsigned char* pixels;
} fake_hardware_buffer;

typedef enum fake_argument_kind {
  FAKE_ARGUMENT_BUFFER,
  FAKE_ARGUMENT_IMAGE,
  FAKE_ARGUMENT_VALUE,
  FAKE_ARGUMENT_LOCAL
} fake_argument_kind;

typedef struct fake_argument {
  fake_argument_kind kind;
  size_t bytes;  // of a value, 0: not known
  bool set;
  fake_memory_object* memory;
  unsigned char value[16];
} fake_argument;

typedef struct fake_program {
  fake_object object;
  char* source;
  char* options;
  char* log;
  bool from_binary, complete, built;
} fake_program;

enum { FAKE_MAX_ARGUMENTS = 64 };
typedef struct fake_kernel {
  fake_object object;
  fake_program* program;
  char name[256];
  uint32_t argument_count;
  fake_argument arguments[FAKE_MAX_ARGUMENTS];
} fake_kernel;

typedef struct fake_event {
  fake_object object;
  fake_queue* queue;
  bool complete;
  bool profiled;
  cl_ulong times[4];  // queued, submitted, start, end
} fake_event;

// A transfer or a launch that waits for execution.
typedef struct fake_command {
  struct fake_command* next;
  fake_event* event;  // NULL: nobody asked
  enum { FAKE_COPY, FAKE_LAUNCH } what;
  // Rows of bytes between a memory object and the host, or two memory objects.
  fake_memory_object *source, *destination;  // NULL: the host
  unsigned char* host;
  size_t source_begin, destination_begin;  // bytes
  size_t source_pitch[2], destination_pitch[2];
  size_t extent[3];  // bytes, rows, layers
  fake_kernel* kernel;
  bool replayed;
  fake_argument arguments[FAKE_MAX_ARGUMENTS];  // as they were when it was enqueued
} fake_command;

typedef struct fake_recording {
  fake_object object;
  fake_queue* queue;
  bool complete;
  fake_command* first;
  fake_command* last;
  size_t launches;
  fake_queue* replayed;  // where it was enqueued last
} fake_recording;

// settings.c
const char* fake_text(const char* name);
uint64_t fake_number(const char* name);
bool fake_is(const char* name, const char* value);
bool fake_has_extension(const char* name);
extern bool fake_stub;

// objects.c
void* fake_new(size_t bytes, fake_kind kind, fake_object* context, void (*destroy)(fake_object*));
bool fake_alive(const void* handle, fake_kind kind);
// Takes and gives back a reference of the application, or a use from inside.
void fake_retain(fake_object* object);
void fake_release(fake_object* object);
void fake_use(fake_object* object);
void fake_unuse(fake_object* object);
extern uint64_t fake_memory_bytes;
extern void* fake_dispatch[];
// What objects begin with: of a driver that is none for loaders, anything.
#ifndef FAKE_FIRST
#define FAKE_FIRST fake_dispatch
#endif

// calls.c
void fake_lock(void);
void fake_unlock(int* unused);
cl_int fake_enter(const char* function);  // counts; the code that it is to fail with, or 0
void fake_note(const char* counter);
__attribute__((format(printf, 3, 4))) cl_int fake_wrong(const char* function, cl_int code,
                                                        const char* format, ...);
cl_int fake_give(const char* function, const void* value, size_t bytes, size_t room,
                 void* destination, size_t* needed);

// Begin every entry point.
#define FAKE_GUARD()                                                                               \
  fake_lock();                                                                                     \
  __attribute__((cleanup(fake_unlock), unused)) int fake_locked = 1
#define FAKE_ENTER()                                                                               \
  FAKE_GUARD();                                                                                    \
  do {                                                                                             \
    const cl_int failure = fake_enter(__func__);                                                   \
    if (failure) return failure;                                                                   \
  } while (0)
#define FAKE_ENTER_CREATE(code)                                                                    \
  FAKE_GUARD();                                                                                    \
  do {                                                                                             \
    const cl_int failure = fake_enter(__func__);                                                   \
    if (code) *code = failure;                                                                     \
    if (failure) return NULL;                                                                      \
  } while (0)
// An argument that the specification forbids: noted, and answered with its code.
#define FAKE_REQUIRE(condition, code, ...)                                                         \
  if (!(condition)) return fake_wrong(__func__, code, __VA_ARGS__)
#define FAKE_REQUIRE_CREATE(condition, result, code, ...)                                          \
  if (!(condition)) {                                                                              \
    const cl_int wrong = fake_wrong(__func__, code, __VA_ARGS__);                                  \
    if (result) *result = wrong;                                                                   \
    return NULL;                                                                                   \
  }

// queue.c
fake_command* fake_new_command(fake_queue* queue, cl_event* event);
void fake_free_command(fake_command* command);
cl_int fake_check_wait_list(const char* function, cl_uint count, const cl_event* events);
cl_int fake_submit(fake_queue* queue, fake_command* command, bool blocking);
void fake_execute_all(fake_queue* queue);
void fake_abandon(fake_queue* queue);
// For launches.c, which gives them as extensions.
cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* ids, cl_uint* count);
FAKE_API cl_int clReleaseCommandBufferKHR(void* buffer);
FAKE_API cl_int clReleaseRecordingQCOM(void* recording);
// kernels.c
cl_int fake_run_kernel(const fake_command* command);
// Lets time pass on the device's clock.
void fake_pass(cl_ulong ns);
cl_int fake_check_launch(const char* function, const fake_queue* queue, const fake_kernel* kernel,
                         cl_uint dimensions, const size_t* offset, const size_t* global,
                         const size_t* local);
void fake_take_arguments(fake_command* command, fake_kernel* kernel);

#endif
