#include "process.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../core/threads.h"

// The process's id is compared at each call of a model.  A handler of pthread_atfork would need a
// part that some of Android's C libraries lack, and that the NDK links to each library instead.
enum { CHANGING = -1 };
static atomic_long known;      // id of the process that last called; 0: none has
static atomic_uint number;     // of processes, each forked from the one before
static atomic_uint driver_of;  // 1 + number of the process that opened a driver; 0: none has

unsigned tf_process(void) {
  const long own = getpid();
  long seen = atomic_load(&known);
  while (seen != own) {
    if (seen == CHANGING) {
      sched_yield();
      seen = atomic_load(&known);
    } else if (atomic_compare_exchange_weak(&known, &seen, CHANGING)) {
      if (seen) {
        tf_threads_forget();
        atomic_fetch_add(&number, 1);
      }
      atomic_store(&known, own);
      break;
    }
  }
  return atomic_load(&number);
}

bool tf_process_opens_driver(void) {
  const unsigned own = tf_process() + 1;
  unsigned none = 0;
  return atomic_compare_exchange_strong(&driver_of, &none, own) || none == own;
}
