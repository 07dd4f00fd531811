// A program that is linked to a library and knows its header only.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tvmflow.h"

#define CHECK(condition)                                                                           \
  if (!(condition)) return printf("line %d: %s; %s\n", __LINE__, #condition, tvmflow_message(model))

int main(void) {
  tvmflow_model* model = NULL;
  const tvmflow_options options = {.struct_size = sizeof(options), .flags = TVMFLOW_PROFILE};
  CHECK(tvmflow_create(&options, &model) == TVMFLOW_OK);
  CHECK(tvmflow_api_version() == TVMFLOW_API_VERSION);
  tvmflow_tensor info;
  CHECK(tvmflow_input(model, 0, &info) == TVMFLOW_OK);
  CHECK(!strcmp(info.name, "x") && info.dimensions == 1 && info.shape[0] == 64);
  float x[64], y[64], again[64];
  for (int i = 0; i < 64; ++i) x[i] = (float)i;
  CHECK(info.bytes == sizeof(x));
  CHECK(tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, x, sizeof(x)) == TVMFLOW_OK);
  CHECK(tvmflow_run(model) == TVMFLOW_OK);
  CHECK(tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, y, sizeof(y)) == TVMFLOW_OK);
  for (int i = 0; i < 64; ++i) x[i] += 1;
  CHECK(tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, x, sizeof(x)) == TVMFLOW_OK);
  CHECK(tvmflow_start(model) == TVMFLOW_OK && tvmflow_wait(model) == TVMFLOW_OK);
  CHECK(tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, again, sizeof(again)) == TVMFLOW_OK);
  for (int i = 0; i < 64; ++i) CHECK(fabsf(again[i] - y[i] - 2) < 1e-4f);
  const tvmflow_kernel* kernels;
  uint32_t count = 0;
  CHECK(tvmflow_profile(model, &kernels, &count) == TVMFLOW_OK && count == 1);
  CHECK(!strcmp(kernels[0].name, "add") && kernels[0].end_ns >= kernels[0].start_ns);
  tvmflow_test test;
  CHECK(tvmflow_self_test(model, &test) == TVMFLOW_ERROR_UNSUPPORTED);
  tvmflow_destroy(model);
  return 0;
}
