// An instance of the network: everything that `tvmflow_create` makes.
#ifndef TVMFLOW_STANDALONE_MODEL_H
#define TVMFLOW_STANDALONE_MODEL_H

#include "cache.h"
#include "device.h"
#include "message.h"
#include "plan.h"
#include "recording.h"
#include "weights.h"

// A kernel with its arguments set, and how it is launched.
typedef struct tf_step {
  cl_kernel kernel;
  cl_uint dimensions;
  size_t global[3];
  size_t local[3];
} tf_step;

struct tvmflow_model {
  tf_message message;
  tvmflow_status failed;  // of the creation: nothing but the message can be used
  uint32_t flags;
  bool started;
  bool stored;         // the programs' binaries are in the cache, or need not be
  bool shared_memory;  // weights are used where they are mapped
  uint32_t built;      // programs that the driver compiled
  uint32_t shipped;    // programs from the file beside the library
  tf_cache cache;
  tf_plan plan;
  tf_weights weights;
  tf_device device;
  cl_context context;
  cl_command_queue queue;
  cl_mem* own;    // one for each allocation
  cl_mem* bound;  // what the kernels use: `own`, or the application's
  cl_program* programs;
  uint8_t (*program_keys)[32];
  tf_step* steps;
  uint16_t* halves;  // room for the largest input or output that is converted
  tf_recording* recording;
  bool recording_is_old;    // arguments have changed since
  cl_event* events;         // of the steps, for profiling
  tvmflow_kernel* kernels;  // their times
  char* description;
};

// memory.c: allocates and uploads the weights.
tvmflow_status tf_memory_create(tvmflow_model* model);
void tf_memory_destroy(tvmflow_model* model);

// build.c: one program, taken from the cache or built by the driver.
typedef struct tf_build {
  const tvmflow_model* model;
  const char* source;
  size_t source_bytes;
  char options[1024];
  const uint8_t* key;
  cl_program program;  // NULL, or to be released by who asked for it
  cl_int code;         // of the call that failed
  bool cached;
  bool shipped;  // the binary is from the file beside the library
} tf_build;

// Builds all, several at a time.
void tf_build_all(tf_build* builds, uint32_t count);
// Builds one whose binary was of no use from its source.
void tf_build_again(tf_build* build);

// program.c: builds the programs, or takes them from the cache, and makes the kernels.
tvmflow_status tf_programs_create(tvmflow_model* model);
void tf_programs_destroy(tvmflow_model* model);
// Puts the binaries into the cache, once they are complete.
void tf_programs_store(tvmflow_model* model);
// Sets all arguments that are this allocation.
tvmflow_status tf_programs_bind(tvmflow_model* model, uint32_t allocation);

// model.c: enqueues all launches; with `events`, one by one with an event for each.
tvmflow_status tf_enqueue(tvmflow_model* model, cl_event* events);
// Waits for what was enqueued.
tvmflow_status tf_finish(tvmflow_model* model);
// Why a call cannot be made now; the message is set.
tvmflow_status tf_check_idle(tvmflow_model* model, const char* attempt);

// describe.c: room for the description.
tvmflow_status tf_describe_create(tvmflow_model* model);

#endif
