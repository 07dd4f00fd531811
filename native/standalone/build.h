// One program: taken from the cache, or built by the driver.
#ifndef TVMFLOW_STANDALONE_BUILD_H
#define TVMFLOW_STANDALONE_BUILD_H

#include "model.h"

typedef struct tf_build {
  const tvmflow_model* model;
  const char* source;
  size_t source_bytes;
  char options[1024];
  const uint8_t* key;
  cl_program program;  // NULL, or to be released by who asked for it
  cl_int code;         // of the call that failed
  bool cached;
} tf_build;

// Builds all, several at a time.
void tf_build_all(tf_build* builds, uint32_t count);
// Builds one whose binary was of no use from its source.
void tf_build_again(tf_build* build);

#endif
