// Damages a plan and its weights in this program's memory, byte by byte, and looks at what the
// runtime makes of it.
//
//   damage create SIZE          each byte of the plan and of the weights' header is changed;
//                               what is taken all the same must give the right results
//   damage many SIZE COUNT      so many instances, one after the other; nothing is left of them
//   damage records              the same with the right checksum: nothing but sanitizers judge
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/sha256_state.h"
#include "plan.h"
#include "tvmflow.h"

extern uint8_t tvmflow_plan_begin[];
extern uint8_t tvmflow_plan_end[];
extern uint8_t tvmflow_weights_begin[];

static int run(tvmflow_model* model, size_t size, float* y) {
  float* const x = malloc(size * sizeof(float));
  for (size_t i = 0; i < size; ++i) x[i] = (float)i;
  int status = tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, x, size * sizeof(float));
  if (!status) status = tvmflow_run(model);
  if (!status) status = tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, y, size * sizeof(float));
  free(x);
  return status;
}

static int change(uint8_t* data, size_t bytes, const char* what, size_t size, const float* right) {
  size_t refused = 0;
  size_t taken = 0;
  float* const y = calloc(size, sizeof(float));
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t before = data[i];
    data[i] ^= (uint8_t)(1 + i % 255);
    tvmflow_model* model;
    int status = tvmflow_create(NULL, &model);
    if (status == TVMFLOW_OK) {
      ++taken;
      status = run(model, size, y);
      if (status || memcmp(y, right, size * sizeof(float))) {
        printf("%s byte %zu: wrong result, %s\n", what, i, tvmflow_message(model));
        return 1;
      }
    } else if (status == TVMFLOW_ERROR_DAMAGED && strstr(tvmflow_message(model), "Remedy")) {
      ++refused;
      if (run(model, size, y) != TVMFLOW_ERROR_DAMAGED || tvmflow_input_count(model)) return 1;
    } else {
      printf("%s byte %zu: status %d, %s\n", what, i, status, tvmflow_message(model));
      return 1;
    }
    tvmflow_destroy(model);
    data[i] = before;
  }
  free(y);
  printf("%s %zu refused %zu taken\n", what, refused, taken);
  return 0;
}

static int create(size_t size) {
  float* const right = calloc(size, sizeof(float));
  tvmflow_model* model;
  if (tvmflow_create(NULL, &model) || run(model, size, right)) {
    printf("undamaged: %s\n", tvmflow_message(model));
    return 1;
  }
  tvmflow_destroy(model);
  const size_t bytes = (size_t)(tvmflow_plan_end - tvmflow_plan_begin);
  const int failed =
      change(tvmflow_plan_begin, bytes, "plan", size, right) ||
      change(tvmflow_weights_begin, sizeof(tf_weights_header), "weights", size, right);
  free(right);
  return failed;
}

static int many(size_t size, size_t count) {
  float* const y = calloc(size, sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    tvmflow_model* model;
    if (tvmflow_create(NULL, &model) || run(model, size, y)) {
      printf("%zu: %s\n", i, tvmflow_message(model));
      return 1;
    }
    tvmflow_destroy(model);
  }
  free(y);
  return 0;
}

// In memory of the exact size, so that reading further is noticed.
static void open_plan(const uint8_t* data, size_t bytes, size_t* taken) {
  static tf_message message;
  uint8_t* const copy = malloc(bytes);
  memcpy(copy, data, bytes);
  Sha256State hash;
  Sha256Begin(&hash);
  Sha256Add(&hash, copy + sizeof(tf_header), bytes - sizeof(tf_header));
  Sha256End(&hash, ((tf_header*)(void*)copy)->checksum);
  tf_plan plan;
  if (tf_plan_open(&plan, copy, bytes, &message) == TVMFLOW_OK) ++*taken;
  free(copy);
}

static int records(void) {
  static const uint8_t values[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
  const size_t bytes = (size_t)(tvmflow_plan_end - tvmflow_plan_begin);
  size_t taken = 0;
  size_t tried = 0;
  for (size_t i = 0; i < bytes; ++i) {
    const uint8_t before = tvmflow_plan_begin[i];
    for (size_t j = 0; j < sizeof(values); ++j, ++tried) {
      tvmflow_plan_begin[i] = values[j];
      open_plan(tvmflow_plan_begin, bytes, &taken);
    }
    tvmflow_plan_begin[i] = before;
  }
  for (size_t length = sizeof(tf_header); length < bytes; ++length, ++tried)
    open_plan(tvmflow_plan_begin, length, &taken);
  printf("%zu tried %zu taken\n", tried, taken);
  return 0;
}

int main(int count, char** arguments) {
  if (count > 2 && !strcmp(arguments[1], "create")) return create(strtoul(arguments[2], NULL, 10));
  if (count > 3 && !strcmp(arguments[1], "many"))
    return many(strtoul(arguments[2], NULL, 10), strtoul(arguments[3], NULL, 10));
  if (count > 1 && !strcmp(arguments[1], "records")) return records();
  return 2;
}
