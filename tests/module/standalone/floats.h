// Input and expected output of programs that run a model in several threads or processes.
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_FLOATS = 1024 };
static float input[MOST_FLOATS], expected[MOST_FLOATS];
static size_t floats, bytes;

static inline size_t read_file(const char* folder, const char* name, float* values) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE* const file = fopen(path, "rb");
  if (!file) exit(3);
  const size_t count = fread(values, sizeof(float), MOST_FLOATS, file);
  fclose(file);
  return count;
}

// Reads both files; they must have as many numbers.
static inline void read_floats(const char* folder) {
  floats = read_file(folder, "input.bin", input);
  bytes = floats * sizeof(float);
  if (!floats || read_file(folder, "expected.bin", expected) != floats) exit(3);
}

static inline bool is_right(const float* found, float rtol) {
  for (size_t i = 0; i < floats; ++i)
    if (!(fabsf(found[i] - expected[i]) <= 1e-5f + rtol * fabsf(expected[i]))) return false;
  return true;
}
