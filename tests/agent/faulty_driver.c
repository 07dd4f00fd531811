// Faults of the fake OpenCL driver: the environment variable TVMFLOW_TEST_FAULT, such as
// "hang clFinish" or "crash clCreateBuffer", says what its function does.  Linked to the driver
// with --wrap=fake_enter, which each function calls first.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cl_types.h"

cl_int __real_fake_enter(const char* function);
cl_int __wrap_fake_enter(const char* function);

cl_int __wrap_fake_enter(const char* function) {
  const char* const fault = getenv("TVMFLOW_TEST_FAULT");
  const char* const name = fault ? strchr(fault, ' ') : NULL;
  if (name && !strcmp(name + 1, function)) {
    if (!strncmp(fault, "exit", 4)) _exit(3);
    if (!strncmp(fault, "crash", 5)) raise(SIGBUS);
    for (;;) pause();
  }
  return __real_fake_enter(function);
}
