// Threads for the kernels of this machine's processors: one pool for all instances of a library.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// Types as in TVM's generated code (tvm/runtime/c_backend_api.h).
typedef struct tf_task_group {
  void* unused;
  int32_t tasks;
} tf_task_group;
typedef int (*tf_task)(int number, tf_task_group* group, void* data);

// Gives the pool so many threads, including the caller; 0: as many as there are fast cores.
// `pinned`: each new thread stays on its own core.  Returns the number of threads, which is smaller
// if some cannot be created.  Each call needs a `tf_threads_end`, the last of which ends them.
unsigned tf_threads_begin(unsigned count, bool pinned);
void tf_threads_end(void);

// Gives up the pool's threads, and what they held, in a forked child.  It comes before any other
// call here; the next run starts other threads.
void tf_threads_forget(void);

// Between these calls, work of the calling thread is shared among at most so many threads.  If
// another instance has the pool, the thread does not wait and does all work itself.
void tf_threads_take(unsigned count);
void tf_threads_give(void);

// Runs tasks 0 to `count` - 1; 0: as many as there are threads.  Returns 0, or the result of a task
// that failed.
int tf_threads_run(tf_task task, void* data, int count);

// Returns the time of the monotonic clock.
static inline uint64_t tf_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
