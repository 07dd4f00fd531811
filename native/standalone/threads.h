// Threads for the kernels of this machine's processors: one pool for all instances of a library.
#ifndef TVMFLOW_STANDALONE_THREADS_H
#define TVMFLOW_STANDALONE_THREADS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

// As TVM's generated code has them (tvm/runtime/c_backend_api.h).
typedef struct tf_task_group {
  void* unused;
  int32_t tasks;
} tf_task_group;
typedef int (*tf_task)(int number, tf_task_group* group, void* data);

// Makes the pool have so many threads, with the one that calls; 0: as many as there are fast cores.
// `pinned`: each new one stays on a core of its own.  Where threads cannot be made there are
// fewer.  Each call is taken back by `tf_threads_end`, the last of which ends the threads.
// Returns how many are there.
unsigned tf_threads_begin(unsigned count, bool pinned);
void tf_threads_end(void);

// In a forked child, before anything else here: takes the pool's threads, and what they held, for
// lost.  The next run starts others.
void tf_threads_forget(void);

// Between these, what the calling thread runs is shared out to so many threads at most.  A pool
// that another instance has is not waited for: the thread then runs all by itself.
void tf_threads_take(unsigned count);
void tf_threads_give(void);

// Runs tasks 0 to `count` - 1; 0: as many as there are threads.  Returns 0, or what one of them
// returned.
int tf_threads_run(tf_task task, void* data, int count);

// Of the clock that only goes forward.
static inline uint64_t tf_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
