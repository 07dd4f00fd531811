// Counting of calls, failures that a test asked for, and arguments that were wrong.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fake.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
  const char* name;
  uint64_t calls;
} counters[128];
static uint64_t all_calls;
static struct {
  char function[64];  // "": all
  uint64_t n;
  cl_int code;
  bool always;
} failing;
static char failed[64];
static char violations[4096];

void fake_lock(void) { pthread_mutex_lock(&mutex); }
void fake_unlock(int* unused) {
  (void)unused;
  pthread_mutex_unlock(&mutex);
}

static uint64_t* counter_of(const char* name) {
  int i = 0;
  // Names are literals, but equal ones of different files may lie in different places.
  while (counters[i].name && counters[i].name != name && strcmp(counters[i].name, name) != 0) ++i;
  counters[i].name = name;
  return &counters[i].calls;
}

void fake_note(const char* counter) { ++*counter_of(counter); }

cl_int fake_enter(const char* function) {
  const uint64_t calls = ++*counter_of(function);
  ++all_calls;
  if (failing.n == 0) return 0;
  if (failing.function[0] && strcmp(failing.function, function) != 0) return 0;
  const uint64_t number = failing.function[0] ? calls : all_calls;
  if (number != failing.n && !(failing.always && number > failing.n)) return 0;
  if (!failed[0]) snprintf(failed, sizeof(failed), "%s", function);
  return failing.code;
}

cl_int fake_wrong(const char* function, cl_int code, const char* format, ...) {
  const size_t used = strlen(violations);
  int length = snprintf(violations + used, sizeof(violations) - used, "%s: ", function);
  if (used + (size_t)length < sizeof(violations)) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(violations + used + length, sizeof(violations) - used - (size_t)length, format,
              arguments);
    va_end(arguments);
    strncat(violations, "\n", sizeof(violations) - strlen(violations) - 1);
  }
  return code;
}

// The way in which all clGet...Info give a value.
cl_int fake_give(const char* function, const void* value, size_t bytes, size_t room,
                 void* destination, size_t* needed) {
  if (needed) *needed = bytes;
  if (!destination) return CL_SUCCESS;
  if (room < bytes)
    return fake_wrong(function, CL_INVALID_VALUE, "%zu bytes do not fit into %zu", bytes, room);
  memcpy(destination, value, bytes);
  return CL_SUCCESS;
}

void fake_fail(const char* function, uint64_t n, int32_t code, bool always) {
  FAKE_GUARD();
  snprintf(failing.function, sizeof(failing.function), "%s", function ? function : "");
  failing.n = n;
  failing.code = code;
  failing.always = always;
  failed[0] = '\0';
}

uint64_t fake_count(const char* function) {
  FAKE_GUARD();
  return function ? *counter_of(function) : all_calls;
}

const char* fake_failed(void) { return failed; }
const char* fake_violations(void) { return violations; }

void fake_reset(void) {
  FAKE_GUARD();
  memset(counters, 0, sizeof(counters));
  memset(&failing, 0, sizeof(failing));
  all_calls = 0;
  failed[0] = violations[0] = '\0';
}
