// Swaps the file at a path for one of two others, fifty times, while a thread calls what is open:
// PATH LIBRARY LIBRARY-WITH-TENFOLD-RESULTS.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tvmflow_library.h"

enum { SWAPS = 50 };

typedef struct served {
  tvmflow_library library;
  tvmflow_model* model;
  float answer;
} served;

static void fail(const char* what) {
  printf("%s\n", what);
  exit(1);
}

static void replace(const char* source, const char* path) {
  char command[4096];
  snprintf(command, sizeof(command), "cp '%s' '%s.new' && mv '%s.new' '%s'", source, path, path,
           path);
  if (system(command)) fail("replacing failed");
}

static void check(served* each) {
  static const float a[6] = {1, 2, 3, 4, 5, 6};
  float sum[6] = {0};
  tvmflow_library* const library = &each->library;
  if (library->set_input(each->model, 0, TVMFLOW_FLOAT32, a, sizeof(a)) ||
      library->set_input(each->model, 1, TVMFLOW_FLOAT32, a, sizeof(a)) ||
      library->run(each->model) ||
      library->get_output(each->model, 0, TVMFLOW_FLOAT32, sum, sizeof(sum)))
    fail(library->message(each->model));
  if (sum[1] != each->answer) fail("another version answered");
}

static served open_library(const char* path, float answer) {
  served opened = {.answer = answer};
  const char* const reason = tvmflow_library_open(&opened.library, path);
  if (reason) fail(reason);
  if (opened.library.create(NULL, &opened.model)) fail(opened.library.message(opened.model));
  check(&opened);
  return opened;
}

static void close_library(served* each) {
  each->library.destroy(each->model);
  tvmflow_library_close(&each->library);
}

static atomic_int ended;

// The first version, which stays open.
static void* call(void* first) {
  while (!ended) check(first);
  return NULL;
}

int main(int count, char** names) {
  if (count != 4) return 2;
  const char* const path = names[1];
  pthread_t caller;
  replace(names[2], path);
  served first = open_library(path, 4);
  served last = {0};
  if (pthread_create(&caller, NULL, call, &first)) fail("no thread");
  for (int swap = 0; swap < SWAPS; ++swap) {
    replace(names[2 + swap % 2], path);
    served next = open_library(path, swap % 2 ? 40 : 4);
    if (swap) {
      check(&last);
      close_library(&last);
    }
    check(&next);
    last = next;
  }
  ended = 1;
  pthread_join(caller, NULL);
  close_library(&last);
  // By another name of the file that is open, and by the same.
  served again = open_library(path, 40);
  served other = open_library(names[3], 40);
  check(&first);
  close_library(&again);
  close_library(&other);
  close_library(&first);
  puts("passed");
  return 0;
}
