// Calls the functions of a standalone library, and prints each result on its own line.
//
//   use_library LIBRARY OPENCL|- FOLDER
//
// FOLDER has input.bin for the network's only input; output.bin is written there, and built
// programs are kept there.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvmflow_library.h"

static tvmflow_library net;
static tvmflow_options options;
static char input[1 << 16], output[1 << 16];

static int failed(const tvmflow_model* model, const char* what, tvmflow_status status) {
  if (status) printf("failed: %s: %d %s\n", what, (int)status, net.message(model));
  return status != TVMFLOW_OK;
}

static int run_once(tvmflow_model* model, int later) {
  tvmflow_tensor in;
  tvmflow_tensor out;
  if (failed(model, "input", net.input(model, 0, &in))) return 1;
  if (failed(model, "output", net.output(model, 0, &out))) return 1;
  if (failed(model, "set_input", net.set_input(model, 0, in.dtype, input, in.bytes))) return 1;
  memset(output, 0, sizeof(output));
  if (later) {
    if (failed(model, "start", net.start(model)) || failed(model, "wait", net.wait(model)))
      return 1;
  } else if (failed(model, "run", net.run(model))) {
    return 1;
  }
  return failed(model, "get_output", net.get_output(model, 0, out.dtype, output, out.bytes));
}

static void* another(void* unused) {
  tvmflow_model* model;
  (void)unused;
  const tvmflow_status created = net.create(&options, &model);
  const int bad =
      failed(model, "create", created) || failed(model, "self_test", net.self_test(model, NULL));
  net.destroy(model);
  return bad ? &net : NULL;
}

static int at_the_same_time(void) {
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  int bad = 0;
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, another, NULL);
  for (int i = 0; i < THREADS; ++i) {
    void* result;
    pthread_join(threads[i], &result);
    bad |= result != NULL;
  }
  return bad;
}

static int use(tvmflow_model* model, const char* folder) {
  const tvmflow_kernel* kernels;
  uint32_t count;
  tvmflow_test test;
  char path[512];
  printf("describe: %s\n", net.describe(model));
  printf("interface: %u %u\n", net.input_count(model), net.output_count(model));
  if (run_once(model, 0) || run_once(model, 1)) return 1;
  snprintf(path, sizeof(path), "%s/output.bin", folder);
  FILE* file = fopen(path, "wb");
  if (!file || fwrite(output, 1, sizeof(output), file) != sizeof(output) || fclose(file)) return 1;
  if (failed(model, "profile", net.profile(model, &kernels, &count))) return 1;
  for (uint32_t i = 0; i < count; ++i)
    printf("kernel: %s %s\n", kernels[i].name, kernels[i].function);
  if (failed(model, "self_test", net.self_test(model, &test))) return 1;
  printf("self-test: %lu\n", (unsigned long)test.compared);
  const tvmflow_status status = net.set_input(model, 7, TVMFLOW_FLOAT32, input, 4);
  printf("refused: %d %s\n", (int)status, net.message(model));
  return at_the_same_time();
}

int main(int argc, char** argv) {
  char path[512];
  tvmflow_model* model;
  if (argc != 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);  // what was printed is seen even after a crash
  const char* reason = tvmflow_library_open(&net, argv[1]);
  if (reason) {
    printf("not loaded: %s\n", reason);
    return 1;
  }
  snprintf(path, sizeof(path), "%s/input.bin", argv[3]);
  FILE* file = fopen(path, "rb");
  if (!file || !fread(input, 1, sizeof(input), file) || fclose(file)) return 2;
  options.struct_size = sizeof(options);
  options.flags = TVMFLOW_PROFILE;
  options.opencl_library = strcmp(argv[2], "-") ? argv[2] : NULL;
  options.cache_folder = argv[3];
  const tvmflow_status created = net.create(&options, &model);
  const int bad = failed(model, "create", created) || use(model, argv[3]);
  net.destroy(model);
  // The fake driver knows what has not been released.
  void* driver = strcmp(argv[2], "-") ? dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD) : NULL;
  const char* (*const text)(void) =
      (const char* (*)(void))(driver ? dlsym(driver, "fake_live_text") : NULL);
  if (text) printf("left: %s\n", text());
  tvmflow_library_close(&net);
  puts(bad ? "bad" : "good");
  return bad;
}
