// Instances in several threads at a time, for the thread sanitizer.
//
//   threads LIBRARY FOLDER
//
// With ON_CPU the plan is for the CPU, and there is no LIBRARY.
// FOLDER has input.bin and expected.bin, and is given a cache, which all of them use.
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "floats.h"
#include "tvmflow.h"

#ifdef ON_CPU
#define DEVICE "\"backend\":\"cpu\""
#else
#define DEVICE "Fake GPU"
#endif

enum { THREADS = 6, ROUNDS = 5 };
static const char* library;
static char cache[4096];

static void* live(void* argument) {
  const char** failure = argument;
  for (int round = 0; round < ROUNDS && !*failure; ++round) {
    float found[MOST_FLOATS];
    tvmflow_model* model = NULL;
    const tvmflow_options options = {
        .struct_size = sizeof(options),
        .flags = round % 2 ? TVMFLOW_PROFILE : 0,
        .opencl_library = library,
        .cache_folder = cache,
        .cpu_threads = (uint32_t)round,
    };
    const tvmflow_kernel* kernels;
    uint32_t count;
    if (tvmflow_create(&options, &model) ||
        tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, input, bytes) || tvmflow_run(model) ||
        tvmflow_start(model) || tvmflow_wait(model) ||  //
        tvmflow_start(model) || tvmflow_wait(model) ||
        (round % 2 && tvmflow_profile(model, &kernels, &count)) ||
        tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, found, bytes) ||
        !strstr(tvmflow_describe(model), DEVICE) || tvmflow_self_test(model, NULL)) {
      printf("%s\n", model ? tvmflow_message(model) : "no instance");
      *failure = "a call failed";
    }
    if (!*failure && !is_right(found, 1e-5f)) *failure = "wrong results";
    tvmflow_destroy(model);
  }
  return NULL;
}

int main(int count, char** arguments) {
  if (count < 3) return 3;
  library = arguments[1];
  snprintf(cache, sizeof(cache), "%s/cache", arguments[2]);
  read_floats(arguments[2]);
  // The sanitizer does not know the loader's lock: the driver's constructors, which run in the
  // thread that is first, would race with the other threads.
  if (*library && !dlopen(library, RTLD_LAZY | RTLD_LOCAL)) return 3;
  pthread_t threads[THREADS];
  const char* failures[THREADS] = {NULL};
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, live, &failures[i]);
  int failed = 0;
  for (int i = 0; i < THREADS; ++i) {
    pthread_join(threads[i], NULL);
    if (failures[i]) printf("thread %d: %s\n", i, failures[i]);
    failed |= failures[i] != NULL;
  }
  return failed;
}
