// The programs of a network: taken from the cache or built, and their kernels.
#ifndef TVMFLOW_STANDALONE_PROGRAMS_H
#define TVMFLOW_STANDALONE_PROGRAMS_H

#include "model.h"

// One program, taken from the cache or built by the driver.
struct tf_build {
  tvmflow_model* model;
  const char* source;  // set from the first use until the instance is created
  size_t source_bytes;
  char options[1024];
  uint8_t key[32];  // in the cache
  cl_program program;
  cl_int code;  // of the call that failed
  bool cached;
  bool shipped;  // the binary is from the file next to the library
  bool spare;    // only alternatives use it: it is made when one is used
  bool kept;     // the binary was stored in the cache
};

// build.c: loads all programs but spare ones from the cache, several at a time, and makes their
// kernels.  Returns false if some are missing.
bool tf_build_load(tvmflow_model* model);
// Builds the missing ones from their sources.
void tf_build_missing(tvmflow_model* model);
// Loads or builds a spare program.
void tf_build_spare(tf_build* build);
// Builds a program from its source because its binary was of no use.
void tf_build_again(tf_build* build);

// program.c: loads or builds the programs, and makes the kernels.
tvmflow_status tf_programs_create(tvmflow_model* model);
void tf_programs_destroy(tvmflow_model* model);
// Begins to store the binaries in the cache, once they are complete.
void tf_programs_store(tvmflow_model* model);
// Waits until they are stored.
void tf_programs_stored(tvmflow_model* model);
// Unpacks the text of all programs, unless it is there.
tvmflow_status tf_sources_unpack(tvmflow_model* model);
void tf_sources_forget(tvmflow_model* model);
// Makes the kernel of a launch and sets its arguments; a spare program is loaded or built first.
tvmflow_status tf_step_create(tvmflow_model* model, uint32_t launch);
// Makes a kernel of a program; the caller releases it.
tvmflow_status tf_kernel_create(tvmflow_model* model, uint32_t program, const char* name,
                                cl_kernel* kernel);
// Sets all arguments that are this allocation.
tvmflow_status tf_programs_bind(tvmflow_model* model, uint32_t allocation);

#endif
