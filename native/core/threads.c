#define _GNU_SOURCE  // sched_getaffinity
#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_THREADS = 64, MAX_CORES = 256 };
// How long a thread looks for work before it sleeps: the kernels of a run follow each other within
// microseconds.
enum { SPIN_NANOSECONDS = 100000, SPINS_BEFORE_A_LOOK = 64 };

// A ticket has the number of a run (32 bits), the count of its tasks (16) and the next task (16). A
// thread takes a task by incrementing the ticket, and the run cannot end before the task is done.
static struct {
  _Alignas(64) atomic_ullong ticket;
  _Alignas(64) atomic_uint left;    // tasks that are not done
  _Alignas(64) atomic_uint signal;  // changes to wake sleeping threads
  atomic_uint sleepers;
  atomic_bool ending;
  atomic_int failed;
  // The present run.
  tf_task task;
  void* data;
  tf_task_group group;
  // The owner of the pool.  Android's older loaders lack thread-local storage.
  pthread_mutex_t taken;
  atomic_uintptr_t owner;
  unsigned threads;
  // The pool itself.
  pthread_mutex_t changing;
  unsigned users;
  unsigned helpers;  // threads of the pool
  unsigned wanted;   // threads, including a caller
  bool lost;         // the helpers belong to the process that this one was forked from
  // The fast cores, on which helpers are pinned; none: helpers run on any core.
  unsigned fast;
  unsigned cores[MAX_CORES];
  pthread_t ids[MAX_THREADS];
} pool = {.taken = PTHREAD_MUTEX_INITIALIZER, .changing = PTHREAD_MUTEX_INITIALIZER};

static void wait_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool has_task(uint64_t ticket) { return (ticket & 0xFFFF) < (ticket >> 16 & 0xFFFF); }

// Does one task.  Returns false if there is none.
static bool help(void) {
  unsigned long long ticket = atomic_load(&pool.ticket);
  do {
    if (!has_task(ticket)) return false;
  } while (!atomic_compare_exchange_weak(&pool.ticket, &ticket, ticket + 1));
  const int code = pool.task((int)(ticket & 0xFFFF), &pool.group, pool.data);
  if (code) atomic_store(&pool.failed, code);
  atomic_fetch_sub(&pool.left, 1);
  return true;
}

// Looks for a task for SPIN_NANOSECONDS.
static bool find(void) {
  const uint64_t begin = tf_nanoseconds();
  do {
    for (int i = 0; i < SPINS_BEFORE_A_LOOK; ++i) {
      if (has_task(atomic_load(&pool.ticket)) || atomic_load(&pool.ending)) return true;
      wait_a_little();
    }
  } while (tf_nanoseconds() - begin < SPIN_NANOSECONDS);
  return false;
}

// Pins the thread to a core, unless it is MAX_CORES.
static void pin(uintptr_t core) {
  if (core >= MAX_CORES) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  // If this fails, the thread runs on any core.
  (void)sched_setaffinity(0, sizeof(own), &own);
}

static void* work(void* core) {
  pin((uintptr_t)core);
  while (!atomic_load(&pool.ending)) {
    if (help() || find()) continue;
    // A thread that begins a run first increments the signal, then looks for sleepers.
    atomic_fetch_add(&pool.sleepers, 1);
    const unsigned seen = atomic_load(&pool.signal);
    if (!has_task(atomic_load(&pool.ticket)) && !atomic_load(&pool.ending))
      (void)syscall(SYS_futex, &pool.signal, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&pool.sleepers, 1);
  }
  return NULL;
}

static void wake(void) {
  atomic_fetch_add(&pool.signal, 1);
  if (atomic_load(&pool.sleepers))
    (void)syscall(SYS_futex, &pool.signal, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
}

// Returns the relative speed of a core; 1 if the system does not report it.
static unsigned long speed(unsigned core) {
  static const char* const files[] = {"cpu_capacity", "cpufreq/cpuinfo_max_freq"};
  for (unsigned i = 0; i < 2; ++i) {
    char path[96];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/%s", core, files[i]);
    FILE* const file = fopen(path, "r");
    if (!file) continue;
    char text[32] = "";
    const size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    unsigned long found = 0;
    for (size_t j = 0; j < bytes && text[j] >= '0' && text[j] <= '9'; ++j)
      found = found * 10 + (unsigned long)(text[j] - '0');
    if (found) return found;
  }
  return 1;
}

// Finds the cores that this process may use and that have at least half the speed of the fastest
// one: a kernel is as slow as its slowest thread.  Returns at least one, fastest first.
static unsigned fast_cores(unsigned cores[MAX_CORES]) {
  cpu_set_t allowed;
  cores[0] = 0;
  if (sched_getaffinity(0, sizeof(allowed), &allowed)) return 1;
  unsigned long speeds[MAX_CORES], best = 0;
  unsigned count = 0;
  for (unsigned core = 0; core < MAX_CORES; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    const unsigned long own = speed(core);
    unsigned place = count++;
    for (; place > 0 && speeds[place - 1] < own; --place) {
      speeds[place] = speeds[place - 1];
      cores[place] = cores[place - 1];
    }
    speeds[place] = own;
    cores[place] = core;
    if (own > best) best = own;
  }
  unsigned fast = 0;
  while (fast < count && 2 * speeds[fast] >= best) ++fast;
  return fast ? fast : 1;
}

// Starts the missing threads, as far as that succeeds; the caller owns the pool.
static void start(void) {
  pool.lost = false;
  while (pool.helpers + 1 < pool.wanted) {
    // The first core is for the calling thread.
    const uintptr_t core = pool.fast ? pool.cores[(pool.helpers + 1) % pool.fast] : MAX_CORES;
    if (pthread_create(&pool.ids[pool.helpers], NULL, work, (void*)core)) break;
    ++pool.helpers;
  }
}

unsigned tf_threads_begin(unsigned count, bool pinned) {
  unsigned cores[MAX_CORES];
  const unsigned fast = fast_cores(cores);
  if (!count) count = fast;
  if (count > MAX_THREADS) count = MAX_THREADS;
  pthread_mutex_lock(&pool.changing);
  ++pool.users;
  // The number must not change during a run.
  pthread_mutex_lock(&pool.taken);
  if (count > pool.wanted) pool.wanted = count;
  pool.fast = pinned ? fast : 0;
  memcpy(pool.cores, cores, sizeof(pool.cores));
  start();
  const unsigned there = pool.helpers + 1;
  pthread_mutex_unlock(&pool.taken);
  pthread_mutex_unlock(&pool.changing);
  return there < count ? there : count;
}

void tf_threads_end(void) {
  pthread_mutex_lock(&pool.changing);
  if (!--pool.users) {
    atomic_store(&pool.ending, true);
    wake();
    for (unsigned i = 0; i < pool.helpers; ++i) pthread_join(pool.ids[i], NULL);
    pool.helpers = 0;
    pool.wanted = 0;
    atomic_store(&pool.ending, false);
  }
  pthread_mutex_unlock(&pool.changing);
}

void tf_threads_forget(void) {
  pthread_mutex_init(&pool.taken, NULL);
  pthread_mutex_init(&pool.changing, NULL);
  atomic_store(&pool.owner, 0);
  // The run of another thread has no tasks left.
  atomic_store(&pool.ticket, atomic_load(&pool.ticket) >> 32 << 32);
  atomic_store(&pool.left, 0);
  atomic_store(&pool.sleepers, 0);
  atomic_store(&pool.ending, false);
  pool.lost = pool.lost || pool.helpers;
  pool.helpers = 0;
}

void tf_threads_take(unsigned count) {
  if (count <= 1 || pthread_mutex_trylock(&pool.taken)) return;
  if (pool.lost) start();
  pool.threads = pool.helpers + 1 < count ? pool.helpers + 1 : count;
  atomic_store(&pool.owner, (uintptr_t)pthread_self());
}

void tf_threads_give(void) {
  if (atomic_load(&pool.owner) != (uintptr_t)pthread_self()) return;
  atomic_store(&pool.owner, 0);
  pthread_mutex_unlock(&pool.taken);
}

static int run_alone(tf_task task, void* data, int count) {
  tf_task_group alone = {NULL, count > 0 ? count : 1};
  int code = 0;
  for (int i = 0; !code && i < alone.tasks; ++i) code = task(i, &alone, data);
  return code;
}

int tf_threads_run(tf_task task, void* data, int count) {
  if (atomic_load(&pool.owner) != (uintptr_t)pthread_self() || count >= 0xFFFF)
    return run_alone(task, data, count);
  const unsigned tasks = count > 0 ? (unsigned)count : pool.threads;
  pool.task = task;
  pool.data = data;
  pool.group.tasks = (int32_t)tasks;
  atomic_store(&pool.failed, 0);
  atomic_store(&pool.left, tasks);
  const unsigned long long number = (atomic_load(&pool.ticket) >> 32) + 1;
  atomic_store(&pool.ticket, number << 32 | (unsigned long long)tasks << 16);
  wake();
  while (help()) continue;
  for (unsigned i = 1; atomic_load(&pool.left); ++i) {
    // A helper may have lost its core to another process.
    if (i % 4096 == 0) sched_yield();
    wait_a_little();
  }
  return atomic_load(&pool.failed);
}
