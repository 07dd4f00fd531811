// Times calls of a standalone library as an application makes them, with the copies of the first
// input and the first output; prints the median in milliseconds.
//
//     cc -O2 -Inative/bindings benchmarks/library_loop.c libnet.so -o loop
//     LD_LIBRARY_PATH=. ./loop INPUT_FLOATS OUTPUT_FLOATS RUNS
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tvmflow.h"

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const size_t inputs = strtoul(arguments[1], NULL, 10), outputs = strtoul(arguments[2], NULL, 10);
  const int warmup = 5, runs = atoi(arguments[3]);
  float* const image = malloc(inputs * sizeof(float));
  float* const scores = malloc(outputs * sizeof(float));
  double* const times = malloc((size_t)runs * sizeof(double));
  tvmflow_model* model = NULL;
  if (!image || !scores || !times || runs < 1) return 2;
  for (size_t i = 0; i < inputs; ++i) image[i] = (float)rand() / (float)RAND_MAX;
  int failed = tvmflow_create(NULL, &model);
  for (int i = -warmup; i < runs && !failed; ++i) {
    const double began = now_ms();
    failed = tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, image, inputs * sizeof(float)) ||
             tvmflow_run(model) ||
             tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, scores, outputs * sizeof(float));
    if (i >= 0) times[i] = now_ms() - began;
  }
  if (failed) {
    fprintf(stderr, "%s\n", tvmflow_message(model));
    return 1;
  }
  qsort(times, (size_t)runs, sizeof(double), by_value);
  printf("%.4f\n", times[runs / 2]);
  tvmflow_destroy(model);
  return 0;
}
