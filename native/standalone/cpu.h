// This machine's processors as an OpenCL device: a driver inside the library, whose kernels are
// functions that were compiled with it.  All other code has one kind of device.
#ifndef TVMFLOW_STANDALONE_CPU_H
#define TVMFLOW_STANDALONE_CPU_H

#include <stdatomic.h>

#include "device.h"

// A kernel, as TVM's code generator writes it: arguments are tensors, see cpu.c.
struct tf_any;
typedef int (*tf_function)(void* self, const struct tf_any* arguments, int32_t count,
                           struct tf_any* result);

// What the link step puts beside the runtime: the kernels of the plan for processors.  Of those of
// one name the first is taken whose feature the processor has.
typedef struct tf_named_function {
  const char* name;
  const char* feature;  // empty: none beyond what the plan needs
  tf_function run;
} tf_named_function;

// The device, with so many threads (`tf_threads_begin`); false: no memory.
bool tf_cpu_begin(tf_device* device, unsigned threads, bool pinned);
void tf_cpu_end(tf_device* device);  // nothing happens for other devices
// In a forked child: the queue without its thread.  What was enqueued is kept if it `is_whole`,
// because no thread had begun it.
void tf_cpu_adopt(cl_command_queue queue, bool is_whole);

// A run that is under way, and whether another thread wants it to end.
typedef struct tf_stop {
  atomic_bool running;
  atomic_bool cancelled;
} tf_stop;
static inline bool tf_is_stopped(const tf_stop* stop) {
  return atomic_load(&stop->running) && atomic_load(&stop->cancelled);
}

// The queue's kernels are left out once this is so; nothing happens for other devices.
void tf_cpu_watch(const tf_device* device, cl_command_queue queue, const tf_stop* stop);

// Memory of the application as memory of the device, without a copy; NULL where it is not aligned
// to 64 bytes, or no memory is left.
cl_mem tf_cpu_wrap(void* data, size_t bytes);
// Where memory of the device begins.
const void* tf_cpu_data(cl_mem memory);

#endif
