/* Runs a model that this program is linked to: checks the device, then measures.
 *
 *     make MODEL=../../libmobilenet.so
 *     ./run [FOLDER FOR BUILT KERNELS [OPENCL LIBRARY]]
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tvmflow.h"

enum { RUNS = 50 };

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int by_time(const void* left, const void* right) {
  double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

/* Every call can fail: the status says how, the message says what helps. */
static int failed(const tvmflow_model* model, tvmflow_status status) {
  if (status != TVMFLOW_OK)
    fprintf(stderr, "Error %d: %s\n", (int)status, model ? tvmflow_message(model) : "no memory");
  return status != TVMFLOW_OK;
}

static void print_tensor(const char* kind, const tvmflow_tensor* tensor) {
  uint32_t i;
  printf("%s %s:", kind, tensor->name);
  for (i = 0; i < tensor->dimensions; ++i) printf(" %lld", (long long)tensor->shape[i]);
  printf(" (%lu bytes)\n", (unsigned long)tensor->bytes);
}

static int set_inputs(tvmflow_model* model) {
  uint32_t index;
  for (index = 0; index < tvmflow_input_count(model); ++index) {
    tvmflow_tensor info;
    void* data;
    int bad;
    if (failed(model, tvmflow_input(model, index, &info))) return 1;
    print_tensor("input", &info);
    /* Here an application has its image; zeros are good enough to measure with. */
    data = calloc(1, info.bytes ? info.bytes : 1);
    if (data == NULL) return 1;
    bad = failed(model, tvmflow_set_input(model, index, info.dtype, data, info.bytes));
    free(data);
    if (bad) return 1;
  }
  return 0;
}

static int print_outputs(tvmflow_model* model) {
  uint32_t index;
  for (index = 0; index < tvmflow_output_count(model); ++index) {
    tvmflow_tensor info;
    void* data;
    int bad;
    if (failed(model, tvmflow_output(model, index, &info))) return 1;
    print_tensor("output", &info);
    data = malloc(info.bytes ? info.bytes : 1);
    if (data == NULL) return 1;
    bad = failed(model, tvmflow_get_output(model, index, info.dtype, data, info.bytes));
    if (!bad && info.dtype == TVMFLOW_FLOAT32 && info.bytes >= sizeof(float))
      printf("  first value %g\n", (double)*(const float*)data);
    free(data);
    if (bad) return 1;
  }
  return 0;
}

static int measure(tvmflow_model* model) {
  double times[RUNS];
  int run;
  if (failed(model, tvmflow_run(model))) return 1;
  for (run = 0; run < RUNS; ++run) {
    double start = now_ms();
    if (failed(model, tvmflow_run(model))) return 1;
    times[run] = now_ms() - start;
  }
  qsort(times, RUNS, sizeof(times[0]), by_time);
  printf("median of %d runs: %.3f ms\n", RUNS, times[RUNS / 2]);
  return 0;
}

static int use(tvmflow_model* model) {
  tvmflow_test test;
  printf("%s\n", tvmflow_describe(model));
  if (failed(model, tvmflow_self_test(model, &test))) return 1;
  printf("self-test passed: %lu elements, %.3g of the tolerance used\n",
         (unsigned long)test.compared, test.tolerance_used);
  return set_inputs(model) || measure(model) || print_outputs(model);
}

int main(int argc, char** argv) {
  tvmflow_options options;
  tvmflow_model* model;
  tvmflow_status status;
  int bad;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  if (argc > 1) options.cache_folder = argv[1];
  if (argc > 2) options.opencl_library = argv[2];
  status = tvmflow_create(&options, &model);
  bad = failed(model, status) || use(model);
  tvmflow_destroy(model);
  return bad;
}
