// An instance of the network: everything that `tvmflow_create` makes.
#ifndef TVMFLOW_STANDALONE_MODEL_H
#define TVMFLOW_STANDALONE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "../core/device.h"
#include "../core/recording.h"
#include "cache.h"
#include "cpu.h"
#include "weights.h"

typedef struct tf_build tf_build;                  // programs.h
typedef struct tf_companion tf_companion;          // companion.h
typedef struct tf_notice tf_notice;                // run.c
typedef struct tf_picture_state tf_picture_state;  // picture.c

// What is avoided because of faults of the device's driver (driver_faults.h).
typedef enum tf_avoided {
  TF_AVOID_OPENCL = 1 << 0,
  TF_AVOID_RECORDING = 1 << 1,
  TF_AVOID_BINARIES = 1 << 2,  // those that the driver returns
  TF_AVOID_PRIORITY = 1 << 3,
  TF_AVOID_SHARED_MEMORY = 1 << 4,      // of weights where they are mapped
  TF_AVOID_IMAGE_FROM_BUFFER = 1 << 5,  // reserved: no library uses it yet
  TF_AVOID_DOT_PRODUCTS = 1 << 6,
  TF_USE_SAFE_KERNELS = 1 << 7,  // alternatives.h
} tf_avoided;

struct tvmflow_model {
  // Other threads may read these.
  atomic_bool entered;  // a thread is in a call
  atomic_bool refused;  // and another thread was refused
  atomic_uint process;  // the process that it belongs to (process.h)
  atomic_uint runs;     // begun so far
  tf_stop stop;
  // Some of these live as long as the instance (backend.c); the rest is made anew where the CPU
  // replaces a device.
  tf_message message;
  tvmflow_log log;
  void* log_user;
  uint32_t priority;
  uint32_t performance;
  tvmflow_status failed;  // status of the creation: if set, only the message can be used
  uint32_t flags;
  tvmflow_backend backend;  // the one in use
  tvmflow_status rejected_status;
  char* rejected;        // why OpenCL is not in use although the library has it; or NULL
  uint32_t cpu_threads;  // from the options
  uint32_t device_index;
  char* drivers;            // the options' table of faults; NULL: they have none
  char* faults;             // of the OpenCL device, as JSON without brackets; or NULL
  uint32_t avoided;         // tf_avoided of the device in use
  char fault_options[256];  // the options that its compiler needs, each after a space
  bool may_fall_back;       // the library has the CPU's kernels, and the options allow them
  bool tested;              // the backend was found right, now or at an earlier start
  uint32_t equal_runs;      // repeated runs whose outputs were equal, at all starts
  bool broken;              // the device has failed: the CPU takes its place at the next call
  bool* missing;   // for each input: not set since it or the device failed, or since a fork
  bool* given;     // for each input of the shape: it was set
  bool ran;        // a run of the shape has succeeded
  uint32_t shape;  // the chosen one
  bool started;
  bool half_done;  // the last run that began has not succeeded
  bool stored;     // the programs' binaries are stored, being stored, or need not be
  bool storing;    // by the thread `storer`, not joined yet, with `stored_to`
  pthread_t storer;
  tf_cache stored_to;  // its copy of the cache
  bool shared_memory;  // the device uses weights where they are mapped
  bool torn;           // a thread that is missing in this forked process was changing it
  uint32_t built;      // programs that the driver compiled
  uint32_t shipped;    // programs from the file beside the library
  tf_cache cache;
  tf_plan plan;
  tf_weights weights;
  tf_device device;
  cl_context context;
  cl_command_queue queue;
  cl_mem* own;        // for each allocation
  cl_mem* bound;      // the memory that kernels use: `own`, or the application's, retained
  char* sources;      // the text of all programs; NULL until it is needed
  tf_build* builds;   // for each program
  tf_step* steps;     // for each launch; alternatives that are not used have no kernel
  uint8_t* standing;  // tf_standing of each alternative
  // The launches of the chosen shape in order, and the number of each.
  tf_step* order;
  uint32_t* launch_of;
  uint32_t ordered;
  tf_picture_state* pictures;  // for each picture of the plan
  size_t halves_bytes;
  uint16_t* halves;  // a buffer for the largest input or output that is converted
  tf_recording* recording;
  tf_notice* notice;        // for the run under way
  tf_companion* companion;  // tests the device at a first start; NULL: there is none
  bool recording_is_old;    // arguments have changed since
  cl_event* events;         // for each step, when profiling
  tvmflow_kernel* kernels;  // their times
  char* description;
  char* report;  // of the last self-test; NULL: there was none
  char* tuned;   // the report of the last tuning; NULL: there was none
};

// Returns why an instance, which may be NULL, cannot be used at all.
static inline tvmflow_status tf_check(const tvmflow_model* model) {
  return model ? model->failed : TVMFLOW_ERROR_ARGUMENT;
}
// Return the inputs, outputs and launches of the chosen shape.
static inline const tf_interface* tf_inputs(const tvmflow_model* model) {
  return model->plan.inputs + (size_t)model->shape * tf_count_each(&model->plan, TF_INPUTS);
}
static inline const tf_interface* tf_outputs(const tvmflow_model* model) {
  return model->plan.outputs + (size_t)model->shape * tf_count_each(&model->plan, TF_OUTPUTS);
}
static inline tf_shape tf_launches(const tvmflow_model* model) {
  return model->plan.shapes[model->shape];
}

// state.c: returns why a call cannot be made now, and sets the message.
tvmflow_status tf_check_idle(tvmflow_model* model, const char* attempt);
// Checks that all inputs were set since the device failed, or a fork.
tvmflow_status tf_check_inputs(tvmflow_model* model);
// Records that the device has failed with this status and the message, and returns the status.
tvmflow_status tf_device_failed(tvmflow_model* model, tvmflow_status status);
// Passes a text to the application's log, if it has one.
void tf_log(const tvmflow_model* model, tvmflow_log_level level, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
