// One model in several threads: calls beside each other are refused, and runs are cancelled.
//
//   race LIBRARY FOLDER     as threads.c
#include <pthread.h>
#include <stdatomic.h>

#include "floats.h"
#include "tvmflow.h"

enum { ROUNDS = 2000 };
static tvmflow_model* model;
static atomic_bool ended;
static atomic_uint refused, cancelled, done;

static bool is_fine(tvmflow_status status) {
  refused += status == TVMFLOW_ERROR_BUSY;
  cancelled += status == TVMFLOW_ERROR_CANCELLED;
  // What was cancelled has no outputs to be read.
  if (status == TVMFLOW_OK || status == TVMFLOW_ERROR_BUSY || status == TVMFLOW_ERROR_CANCELLED ||
      status == TVMFLOW_ERROR_DEVICE)
    return true;
  printf("status %d\n", status);
  exit(1);
}

static void note(void* user, tvmflow_status status) {
  (void)user;
  done += status == TVMFLOW_OK;
}

static void* use(void* argument) {
  const tvmflow_run_options options = {.struct_size = sizeof(options), .done = note};
  const tvmflow_run_options* const told = argument ? NULL : &options;
  float found[MOST_FLOATS];
  for (int i = 0; i < ROUNDS; ++i) {
    if (is_fine(tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, input, bytes)) && i % 3)
      (void)is_fine(tvmflow_run(model));
    else if (is_fine(tvmflow_run_async(model, told)))
      (void)is_fine(tvmflow_wait(model));
    (void)is_fine(tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, found, bytes));
  }
  return NULL;
}

static void* cancel(void* argument) {
  (void)argument;
  while (!atomic_load(&ended)) tvmflow_cancel(model);
  return NULL;
}

int main(int count, char** arguments) {
  if (count < 3) return 3;
  read_floats(arguments[2]);
  const tvmflow_options options = {.struct_size = sizeof(options), .opencl_library = arguments[1]};
  if (tvmflow_create(&options, &model)) return printf("%s\n", tvmflow_message(model));
  // The driver of the tests has no events.
  void* const without_events = options.opencl_library[0] ? model : NULL;
  pthread_t users[3], canceller;
  for (int i = 0; i < 3; ++i) pthread_create(&users[i], NULL, use, without_events);
  pthread_create(&canceller, NULL, cancel, NULL);
  for (int i = 0; i < 3; ++i) pthread_join(users[i], NULL);
  atomic_store(&ended, true);
  pthread_join(canceller, NULL);
  (void)tvmflow_wait(model);
  float found[MOST_FLOATS];
  if (tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, input, bytes) || tvmflow_run(model) ||
      tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, found, bytes))
    return printf("%s\n", tvmflow_message(model));
  if (!is_right(found, 2e-3f)) return puts("wrong results"), 1;
  tvmflow_destroy(model);
  printf("%u refused, %u cancelled, %u done\n", refused, cancelled, done);
  return 0;
}
