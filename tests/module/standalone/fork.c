// Children of a process in which threads run models: each line of output is what one has done.
//
//   fork DRIVER FOLDER BACKEND    as threads.c, with a number of tvmflow_backend
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "floats.h"
#include "tvmflow.h"

enum { CHILDREN = 12 };
static tvmflow_options options = {.struct_size = sizeof(options), .cpu_threads = 4};
static tvmflow_model* shared;
static atomic_bool ended;

static void fail(const char* what, const tvmflow_model* m) {
  printf("%s: %s\n", what, tvmflow_message(m));
  fflush(stdout);
  _exit(1);
}

// Runs once, in the caller's thread and in the library's.
static tvmflow_status run(tvmflow_model* m) {
  float found[MOST_FLOATS];
  tvmflow_status status = tvmflow_set_input(m, 0, TVMFLOW_FLOAT32, input, bytes);
  if (!status) status = tvmflow_run(m);
  if (!status) status = tvmflow_start(m);
  if (!status) status = tvmflow_get_output(m, 0, TVMFLOW_FLOAT32, found, bytes);
  if (!status && !is_right(found, 1e-5f)) fail("wrong results", m);
  return status;
}

static void* spin(void* model) {
  while (!atomic_load(&ended))
    if (run(model)) fail("in a thread", model);
  return NULL;
}

static tvmflow_model* create(void) {
  tvmflow_model* m = NULL;
  if (tvmflow_create(&options, &m)) fail("create", m);
  return m;
}

// A new model, one that nobody uses, and the one that another thread may be in a call of.
static void be_child(tvmflow_model* idle) {
  tvmflow_model* m = NULL;
  alarm(60);
  const tvmflow_status fresh = tvmflow_create(&options, &m);
  if (!fresh && run(m)) fail("run", m);
  if (fresh) printf("new %d %s\n", fresh, tvmflow_message(m));
  tvmflow_destroy(m);
  const tvmflow_status kept = run(idle);
  if (kept) printf("idle %d %s\n", kept, tvmflow_message(idle));
  const tvmflow_status busy = run(shared);
  if (busy) printf("busy %d %s\n", busy, tvmflow_message(shared));
  // The child of a child.
  const pid_t child = kept ? 0 : fork();
  if (!kept && !child) _exit(run(idle) ? 1 : 0);
  int status = 0;
  if (child && (waitpid(child, &status, 0) != child || status)) fail("a grandchild", idle);
  (void)tvmflow_describe(shared);
  tvmflow_destroy(idle);
  tvmflow_destroy(shared);
  fflush(stdout);
  _exit(0);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  read_floats(arguments[2]);
  options.opencl_library = arguments[1];
  options.backend = (uint32_t)atoi(arguments[3]);
  tvmflow_model* const idle = create();
  tvmflow_model* const other = create();
  shared = create();
  if (run(idle)) fail("run", idle);
  pthread_t threads[2];
  pthread_create(&threads[0], NULL, spin, shared);
  pthread_create(&threads[1], NULL, spin, other);
  int failed = 0;
  for (int i = 0; i < CHILDREN; ++i) {
    usleep((unsigned)(1000 + 700 * i));
    const pid_t child = fork();
    if (!child) be_child(idle);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status) {
      printf("a child ended with %d\n", status);
      failed = 1;
    }
  }
  atomic_store(&ended, true);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  if (run(idle) || run(shared)) fail("in the parent", idle);
  tvmflow_destroy(idle);
  tvmflow_destroy(other);
  tvmflow_destroy(shared);
  puts("end");
  return failed;
}
