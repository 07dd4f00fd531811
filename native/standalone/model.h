// An instance of the network: everything that `tvmflow_create` makes.
#ifndef TVMFLOW_STANDALONE_MODEL_H
#define TVMFLOW_STANDALONE_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cpu.h"
#include "device.h"
#include "threads.h"

typedef struct tf_weights {
  const uint8_t* data;  // with their header
  size_t bytes;
  bool mapped;                     // a file; they are in the library otherwise
  struct tf_weights_check* check;  // NULL: nothing is compared any more
} tf_weights;

// A folder's files may grow to this; those that were not used for longest go.
#ifndef TF_CACHE_LIMIT_BYTES
#define TF_CACHE_LIMIT_BYTES ((uint64_t)256 << 20)
#endif

// Programs' binaries on disk: in a folder that the application gives, and in a file beside the
// library that came with it (docs/standalone.md).  Nothing there is an error: where a binary is
// missing, damaged or cannot be kept, the program is built.
typedef struct tf_cache {
  char* folder;            // NULL: nothing is kept
  uint32_t driver;         // of the driver's file: an update need not change its version
  const uint8_t* shipped;  // the file beside the library, mapped; NULL: there is none
  size_t shipped_bytes;
  char note[128];  // why nothing is kept; "" where that is not so
} tf_cache;

// A kernel with its arguments set, and how it is launched.
typedef struct tf_step {
  cl_kernel kernel;
  cl_uint dimensions;
  size_t global[3];
  size_t local[3];
} tf_step;

// One program, taken from the cache or built by the driver.
typedef struct tf_build {
  tvmflow_model* model;
  const char* source;  // from where it was needed until the instance is created
  size_t source_bytes;
  char options[1024];
  uint8_t key[32];  // in the cache
  cl_program program;
  cl_int code;  // of the call that failed
  bool cached;
  bool shipped;  // the binary is from the file beside the library
} tf_build;

typedef struct tf_recording tf_recording;
typedef struct tf_picture_state tf_picture_state;
typedef struct tf_notice tf_notice;

struct tvmflow_model {
  // Other threads may look at these.
  atomic_bool entered;  // a thread is in a call
  atomic_bool refused;  // and another one was told so
  atomic_uint process;  // that it belongs to (process.h)
  tf_stop stop;
  // What lives as long as the instance; the rest is made anew where the CPU replaces a device.
  tf_message message;
  tvmflow_log log;
  void* log_user;
  uint32_t priority;
  tvmflow_status failed;  // of the creation: nothing but the message can be used
  uint32_t flags;
  tvmflow_backend backend;  // the one that is used
  tvmflow_status rejected_status;
  char* rejected;        // why OpenCL is not, where it could be; NULL otherwise
  uint32_t cpu_threads;  // as the options have it
  bool may_fall_back;    // the library has the CPU's kernels, and nobody insists on OpenCL
  bool recalled;         // OpenCL was chosen at an earlier start
  bool broken;           // the device has failed: the CPU takes its place at the next call
  bool* missing;         // of each input: it was not set since it or the device failed, or a fork
  bool* given;           // of each input of the shape: it was set
  bool ran;              // a run of the shape has ended well
  uint32_t shape;        // the one that calls are about
  bool started;
  bool half_done;  // a run has begun that has not ended well
  bool stored;     // the programs' binaries are in the cache or on their way, or need not be
  bool storing;    // by this thread, which was not waited for, with this copy of the cache
  pthread_t storer;
  tf_cache stored_to;
  bool shared_memory;  // weights are used where they are mapped
  bool torn;           // a thread that is missing in this forked process was changing it
  uint32_t built;      // programs that the driver compiled
  uint32_t shipped;    // programs from the file beside the library
  tf_cache cache;
  tf_plan plan;
  tf_weights weights;
  tf_device device;
  cl_context context;
  cl_command_queue queue;
  cl_mem* own;       // one for each allocation
  cl_mem* bound;     // what the kernels use: `own`, or the application's, which is retained
  char* sources;     // all programs' text; NULL where nobody has needed it
  tf_build* builds;  // one for each program
  tf_step* steps;
  tf_picture_state* pictures;  // one for each of the plan's
  size_t halves_bytes;
  uint16_t* halves;  // room for the largest input or output that is converted
  tf_recording* recording;
  tf_notice* notice;        // of the run that is under way
  bool recording_is_old;    // arguments have changed since
  cl_event* events;         // of the steps, for profiling
  tvmflow_kernel* kernels;  // their times
  char* description;
};

// weights.c: whether the library's file holds all that the program headers say: what lies behind
// the end of a file that was cut short must not be touched.
tvmflow_status tf_library_check(tf_message* message);

// The weights of the plan, checked for length and identity, and with `check` against their
// checksum.  `path`: of the file, when they are not in the library; NULL: beside it.
tvmflow_status tf_weights_open(tf_weights* weights, const tf_plan* plan, const char* path,
                               bool check, tf_message* message);
// The checksum is compared by a thread while the driver is opened: waits for it.
tvmflow_status tf_weights_checked(const tf_weights* weights, tf_message* message);
void tf_weights_close(tf_weights* weights);

// Pages that were read need not stay in memory: they can be read from the file again.
void tf_forget(const uint8_t* data, size_t bytes);

// Opens a regular file for reading; -1: there is none or it cannot be, and `wrong` is why.
int tf_open_file(const char* path, size_t* bytes, const char** wrong);

// Maps a file of at least `least` bytes; `wrong` is why it cannot be.
tvmflow_status tf_map_file(const char* path, size_t least, const uint8_t** data, size_t* bytes,
                           const char** wrong);

// Path of the library with `suffix` behind it; false where it is not known.
bool tf_library_path(char* path, size_t bytes, const char* suffix);

// The plan in the library for OpenCL, or for this machine's processors; of no bytes where there is
// none.
const void* tf_library_plan(tvmflow_backend backend, size_t* bytes);

// cache.c: `folder` may be NULL; `driver_function` is one of the driver's.  False: no memory.
bool tf_cache_open(tf_cache* cache, const char* folder, const void* driver_function);
void tf_cache_close(tf_cache* cache);

// The binary stored under the key, a hash of source, options, device and driver; to be freed.
// NULL: there is none that is whole.  `shipped`: it is from the file beside the library.  From
// several threads at a time.
uint8_t* tf_cache_load(const tf_cache* cache, const uint8_t key[32], size_t* bytes, bool* shipped);

// Other processes find the old file, the new one, or none.
void tf_cache_store(tf_cache* cache, const uint8_t key[32], const uint8_t* binary, size_t bytes);

// shipped.c: maps `<library>.programs`; finds a binary in what was mapped, NULL: not there.
void tf_shipped_open(tf_cache* cache);
const uint8_t* tf_shipped_find(const tf_cache* cache, const uint8_t key[32], size_t* bytes);

// memory.c: allocates and uploads the weights.
tvmflow_status tf_memory_create(tvmflow_model* model);
void tf_memory_destroy(tvmflow_model* model);

// Takes and gives back a reference to memory of the application that is used for an allocation;
// nothing happens for the network's own.
tvmflow_status tf_memory_hold(tvmflow_model* model, uint32_t allocation, cl_mem memory);
void tf_memory_let_go(tvmflow_model* model, uint32_t allocation, cl_mem memory);

// Copies between the host and a buffer, or with `part` a part of an image; waits.
cl_int tf_transfer(const tvmflow_model* model, cl_mem memory, const tf_region* part, void* host,
                   size_t bytes, bool to_device);

// build.c: loads all programs from the cache, several at a time, and makes their kernels; false:
// some are missing.  Builds those from their sources.
bool tf_build_load(tvmflow_model* model);
void tf_build_missing(tvmflow_model* model);
// Builds one whose binary was of no use from its source.
void tf_build_again(tf_build* build);

// program.c: builds the programs, or takes them from the cache, and makes the kernels.
tvmflow_status tf_programs_create(tvmflow_model* model);
void tf_programs_destroy(tvmflow_model* model);
// Puts the binaries into the cache, once they are complete: begins to, and waits for the end.
void tf_programs_store(tvmflow_model* model);
void tf_programs_stored(tvmflow_model* model);
// Unpacks the text of all programs, unless it is there; and forgets it.
tvmflow_status tf_sources_unpack(tvmflow_model* model);
void tf_sources_forget(tvmflow_model* model);
// A kernel of a program; the caller releases it.
tvmflow_status tf_kernel_create(tvmflow_model* model, uint32_t program, const char* name,
                                cl_kernel* kernel);
// Sets all arguments that are this allocation.
tvmflow_status tf_programs_bind(tvmflow_model* model, uint32_t allocation);

// picture.c: the kernels that take pictures.
tvmflow_status tf_pictures_create(tvmflow_model* model);
void tf_pictures_destroy(tvmflow_model* model);
uint64_t tf_picture_bytes(const tvmflow_model* model);
// The input has other data than a picture now.
void tf_picture_replaced(tvmflow_model* model, uint32_t input);
// Brings an output's boxes, which may lie at any address, to where the picture has them.
void tf_picture_boxes(const tvmflow_model* model, uint32_t output, float* data);
// Whether an output has boxes that are brought there.
bool tf_has_picture_boxes(const tvmflow_model* model, uint32_t output);

// backend.c: opens what the options ask for, or what can be used.
tvmflow_status tf_backend_open(tvmflow_model* model, const tvmflow_options* options);
// Replaces a device that has failed by the CPU.
tvmflow_status tf_backend_replace(tvmflow_model* model);

// choice.c: refuses an OpenCL that was not chosen at an earlier start, and stores the choice.
tvmflow_status tf_choice_recall(tvmflow_model* model);
void tf_choice_store(tvmflow_model* model, bool cpu);

// open.c: everything but the weights, which are opened once, for one of the library's plans;
// closes it, and releases the weights, too.
tvmflow_status tf_open(tvmflow_model* model, const tvmflow_options* options,
                       tvmflow_backend backend);
void tf_close(tvmflow_model* model);
void tf_release(tvmflow_model* model);

// state.c: why a call cannot be made now; the message is set.
tvmflow_status tf_check_idle(tvmflow_model* model, const char* attempt);
// The device has failed, with this status and the message: notes it, and returns the status.
tvmflow_status tf_device_failed(tvmflow_model* model, tvmflow_status status);
// Whether all inputs were set since.
tvmflow_status tf_check_inputs(tvmflow_model* model);
// Tells the application, where it listens.
void tf_log(const tvmflow_model* model, tvmflow_log_level level, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// adopt.c: makes the instance one of this process, if that is a child of the one it was made in.
void tf_adopt(tvmflow_model* model);

// entry.c: what applications call is each of these for one thread at a time, and whether it uses
// the device.
#define TF_ENTRIES(ROW)                                                                            \
  ROW(input, false, (tvmflow_model * m, uint32_t index, tvmflow_tensor* info), (m, index, info))   \
  ROW(output, false, (tvmflow_model * m, uint32_t index, tvmflow_tensor* info), (m, index, info))  \
  ROW(find_input, false, (tvmflow_model * m, const char* name, uint32_t* index), (m, name, index)) \
  ROW(find_output, false, (tvmflow_model * m, const char* name, uint32_t* index),                  \
      (m, name, index))                                                                            \
  ROW(opencl, false, (tvmflow_model * m, tvmflow_opencl_info * info), (m, info))                   \
  ROW(memory, false, (tvmflow_model * m, tvmflow_memory_info * info), (m, info))                   \
  ROW(set_input, true,                                                                             \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, const void* data, size_t bytes),    \
      (m, index, dtype, data, bytes))                                                              \
  ROW(get_output, false,                                                                           \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, void* data, size_t bytes),          \
      (m, index, dtype, data, bytes))                                                              \
  ROW(output_data, false,                                                                          \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, const void** data, size_t bytes),   \
      (m, index, dtype, data, bytes))                                                              \
  ROW(use_input, true, (tvmflow_model * m, uint32_t index, void* memory), (m, index, memory))      \
  ROW(use_output, true, (tvmflow_model * m, uint32_t index, void* memory), (m, index, memory))     \
  ROW(image_input, false, (tvmflow_model * m, uint32_t index, tvmflow_image_info* info),           \
      (m, index, info))                                                                            \
  ROW(set_image, true, (tvmflow_model * m, uint32_t index, const tvmflow_image* image),            \
      (m, index, image))                                                                           \
  ROW(image_place, false, (tvmflow_model * m, uint32_t index, double scale[2], double offset[2]),  \
      (m, index, scale, offset))                                                                   \
  ROW(choose_shape, true, (tvmflow_model * m, uint32_t index), (m, index))                         \
  ROW(set_shape, true, (tvmflow_model * m, uint32_t input, const int64_t* dims, uint32_t count),   \
      (m, input, dims, count))                                                                     \
  ROW(warm_up, true, (tvmflow_model * m), (m))                                                     \
  ROW(run, true, (tvmflow_model * m), (m))                                                         \
  ROW(start, true, (tvmflow_model * m), (m))                                                       \
  ROW(run_async, true, (tvmflow_model * m, const tvmflow_run_options* options), (m, options))      \
  ROW(wait, false, (tvmflow_model * m), (m))                                                       \
  ROW(profile, true, (tvmflow_model * m, const tvmflow_kernel** kernels, uint32_t* count),         \
      (m, kernels, count))                                                                         \
  ROW(self_test, true, (tvmflow_model * m, tvmflow_test * result), (m, result))
#define TF_DECLARE(name, uses_device, parameters, arguments) tvmflow_status tf_do_##name parameters;
TF_ENTRIES(TF_DECLARE)
#undef TF_DECLARE

// run.c: the application has been told of the end of the run, or will be without the model.
void tf_notice_end(tvmflow_model* model);
// Enqueues all launches; with `events`, one by one with an event for each.
tvmflow_status tf_enqueue(tvmflow_model* model, cl_event* events);
// Waits for what was enqueued.
tvmflow_status tf_finish(tvmflow_model* model);

// interface.c: sets an input that is idle to data in the layout that kernels read.
tvmflow_status tf_set_packed(tvmflow_model* model, uint32_t index, const void* data);

// Why an instance, which may be NULL, cannot be used at all.
static inline tvmflow_status tf_check(const tvmflow_model* model) {
  return model ? model->failed : TVMFLOW_ERROR_ARGUMENT;
}
// Inputs, outputs and launches of the shape that is chosen.
static inline const tf_interface* tf_inputs(const tvmflow_model* model) {
  return model->plan.inputs + (size_t)model->shape * tf_count_each(&model->plan, TF_INPUTS);
}
static inline const tf_interface* tf_outputs(const tvmflow_model* model) {
  return model->plan.outputs + (size_t)model->shape * tf_count_each(&model->plan, TF_OUTPUTS);
}
static inline tf_shape tf_launches(const tvmflow_model* model) {
  return model->plan.shapes[model->shape];
}
// interface.c: the network's own memory in place of the application's, for all inputs and outputs
// of the shape that is chosen.
tvmflow_status tf_give_back(tvmflow_model* model);

// recording.c: records all steps; NULL where the driver cannot or the options forbid it, and they
// are then enqueued one by one.
tf_recording* tf_recording_begin(const tvmflow_model* model);
// Enqueues what was recorded.  `begun`: also after a failure, something was.
cl_int tf_recording_enqueue(const tvmflow_model* model, const tf_recording* recording, bool* begun);
void tf_recording_end(tf_recording* recording);
// The extension that is used.
const char* tf_recording_name(const tf_recording* recording);

// describe.c: room for the description.
tvmflow_status tf_describe_create(tvmflow_model* model);

#endif
