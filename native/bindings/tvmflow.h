// SPDX-License-Identifier: Apache-2.0
// C interface of a library that `tvmflow compile --standalone` writes, to run its network.  The
// library contains kernels, weights and execution plan; the device's OpenCL library is opened at
// run time.
//
// Instances are independent of each other and may be used from different threads at the same
// time.  One instance is used by one thread at a time: a call during another thread's call returns
// TVMFLOW_ERROR_BUSY and changes nothing.  No function ends the process or throws.
//
// Structures with a `struct_size` may grow at their end: the application sets it to the size that
// it knows, so that programs and libraries of different versions work with each other.  Everything
// else in this file keeps its name, layout and meaning.
//
//   tvmflow_model* model;
//   if (tvmflow_create(NULL, &model)) puts(tvmflow_message(model));
//   tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, image, sizeof(image));
//   tvmflow_run(model);
//   tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, scores, sizeof(scores));
//   tvmflow_destroy(model);
#ifndef TVMFLOW_H
#define TVMFLOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Incremented when functions are added, or members of structures that affect calls.
#define TVMFLOW_API_VERSION 1
#define TVMFLOW_MAX_DIMENSIONS 8
#define TVMFLOW_API __attribute__((visibility("default")))

typedef struct tvmflow_model tvmflow_model;

typedef enum tvmflow_status {
  TVMFLOW_OK = 0,
  TVMFLOW_ERROR_ARGUMENT = 1,     // a null pointer, an index, a size or a dtype
  TVMFLOW_ERROR_NO_OPENCL = 2,    // no OpenCL library, platform or device
  TVMFLOW_ERROR_UNSUPPORTED = 3,  // the device lacks images, an extension or a size
  TVMFLOW_ERROR_BUILD = 4,        // the driver rejected a kernel; the message has its log
  TVMFLOW_ERROR_MEMORY = 5,       // out of memory on the host or the device
  TVMFLOW_ERROR_DAMAGED = 6,      // the library or its weights are damaged or cut short
  TVMFLOW_ERROR_DEVICE = 7,       // the driver failed in another way
  TVMFLOW_ERROR_BUSY = 8,         // a run was not waited for, or another thread is in a call
  TVMFLOW_ERROR_WRONG = 9,        // the self-test's results are outside the tolerance
  TVMFLOW_ERROR_CANCELLED = 10,   // tvmflow_cancel ended the run: there is no result
} tvmflow_status;

typedef enum tvmflow_dtype {
  TVMFLOW_FLOAT32 = 0,
  TVMFLOW_FLOAT16 = 1,
  TVMFLOW_FLOAT64 = 2,
  TVMFLOW_BFLOAT16 = 3,
  TVMFLOW_INT8 = 4,
  TVMFLOW_INT16 = 5,
  TVMFLOW_INT32 = 6,
  TVMFLOW_INT64 = 7,
  TVMFLOW_UINT8 = 8,
  TVMFLOW_UINT16 = 9,
  TVMFLOW_UINT32 = 10,
  TVMFLOW_UINT64 = 11,
  TVMFLOW_BOOL = 12,
} tvmflow_dtype;

enum {
  TVMFLOW_PROFILE = 1,            // measure kernels; needed by `tvmflow_profile`
  TVMFLOW_NO_COMMAND_BUFFER = 2,  // enqueue each kernel even if the driver can record them
  // Do not compare the weights with their checksum, which takes a second for several gigabytes.
  TVMFLOW_UNCHECKED_WEIGHTS = 4,
  TVMFLOW_PIN_THREADS = 8,  // on the CPU: pin each thread to a different core
  // TVMFLOW_AUTO chooses the CPU if it is faster: both run a few times at the first start, and the
  // result is stored in the cache folder.
  TVMFLOW_CHOOSE_FASTER = 16,
  // TVMFLOW_AUTO compares results at the first start only once; by default a thread repeats runs
  // of another instance, for one second, and results that differ are treated as wrong ones.
  TVMFLOW_NO_REPEATED_RUNS = 32,
};

// Backend that runs kernels.  A library has those that it was compiled for (`--fallback cpu`).
typedef enum tvmflow_backend {
  TVMFLOW_AUTO = 0,  // OpenCL if it is usable and passes the self-test, otherwise the CPU
  TVMFLOW_OPENCL = 1,
  TVMFLOW_CPU = 2,
} tvmflow_backend;

// Priority of a queue among those that share the device: a hint for drivers that support it.
typedef enum tvmflow_priority {
  TVMFLOW_PRIORITY_DEFAULT = 0,
  TVMFLOW_PRIORITY_LOW = 1,  // below the drawing of frames
  TVMFLOW_PRIORITY_HIGH = 2,
} tvmflow_priority;

// Clocks of the GPU, and the energy that they take: a hint for Qualcomm's drivers
// (cl_qcom_perf_hint).
typedef enum tvmflow_performance {
  TVMFLOW_PERFORMANCE_DEFAULT = 0,
  TVMFLOW_PERFORMANCE_HIGH = 1,
  TVMFLOW_PERFORMANCE_NORMAL = 2,
  TVMFLOW_PERFORMANCE_LOW = 3,
} tvmflow_performance;

typedef enum tvmflow_log_level {
  TVMFLOW_LOG_INFO = 0,     // choices, builds, hits in the cache
  TVMFLOW_LOG_WARNING = 1,  // failures, and what is used instead
} tvmflow_log_level;
// Receives a sentence, valid during the call, on any thread that is in a call of the model.
typedef void (*tvmflow_log)(void* user, tvmflow_log_level level, const char* text);

// Options of a model; zeros are the defaults.  Set `struct_size` to sizeof(tvmflow_options).
typedef struct tvmflow_options {
  size_t struct_size;
  uint32_t device_index;       // among all devices, GPUs first
  uint32_t flags;              // TVMFLOW_PROFILE and so on
  const char* opencl_library;  // path of the only library to try; NULL: the usual places
  const char* cache_folder;    // folder for built programs; NULL: they are not kept
  const char* weights_path;    // file of large weights; NULL: next to the library
  void* cl_context;            // the application's cl_context and cl_device_id, to share
  void* cl_device;             // memory with it; NULL: a new context
  uint32_t backend;            // a tvmflow_backend
  uint32_t cpu_threads;        // including the calling one; 0: one for each fast core
  uint32_t priority;           // a tvmflow_priority
  tvmflow_log log;             // NULL: no log
  void* log_user;              // its first argument
  const char* drivers;         // JSON: more known faults of drivers (docs/standalone.md)
  uint32_t performance;        // a tvmflow_performance
} tvmflow_options;

typedef struct tvmflow_tensor {
  const char* name;
  const char* layout;  // "" or, for a tensor in blocks of four channels, "NCHW4c"
  tvmflow_dtype dtype;
  uint32_t dimensions;
  int64_t shape[TVMFLOW_MAX_DIMENSIONS];
  size_t bytes;            // for `tvmflow_set_input` and `tvmflow_get_output`
  uint32_t image_size[3];  // width, height, layers of its image; zeros: it is in a buffer
} tvmflow_tensor;

typedef struct tvmflow_kernel {
  const char* name;      // the kernel's
  const char* function;  // the primary function that contains it
  uint64_t start_ns;     // on the device's clock
  uint64_t end_ns;
} tvmflow_kernel;

typedef struct tvmflow_test {
  double largest_error;   // largest absolute error in all outputs
  double tolerance_used;  // largest ratio of an error to its tolerance; above 1 is wrong
  uint64_t compared;      // number of elements
} tvmflow_test;

// Options of a self-test; with zeros, it compares one run.  Set `struct_size` to
// sizeof(tvmflow_test_options).
typedef struct tvmflow_test_options {
  size_t struct_size;
  uint32_t runs;       // more runs, whose outputs must be equal to the last bit
  uint32_t pause_ms;   // pause before the second half of these runs, in which a device may sleep
  uint32_t budget_ms;  // no run begins after this time; 0: no limit
  uint32_t flags;      // TVMFLOW_TEST_SECOND_INSTANCE
} tvmflow_test_options;

enum {
  TVMFLOW_TEST_SECOND_INSTANCE = 1,  // another instance of the library runs at the same time
};

// Called by a tuning with its user pointer and the share of the work that is done, up to 1.
typedef void (*tvmflow_tune_progress)(void* user, double done);

// OpenCL objects of an instance; NULL on the CPU.  Another model, of this or another library, that
// gets this context, device and library in its options shares memory with the instance.
typedef struct tvmflow_opencl_info {
  size_t struct_size;  // set it before the call
  void* context;       // cl_context and so on: valid until the model is destroyed, or retained
  void* device;
  void* queue;
  const char* library;  // for tvmflow_options.opencl_library
} tvmflow_opencl_info;

// Memory of an instance, in bytes.
typedef struct tvmflow_memory_info {
  size_t struct_size;       // set it before the call
  uint64_t weights;         // on the device, or mapped from the library
  uint64_t tensors;         // on the device: inputs, outputs and intermediate tensors
  uint64_t pictures;        // on the device: copies of the application's pictures
  uint64_t host;            // in the process, without mapped weights
  uint32_t weights_shared;  // 1: kernels read the mapped weights without a copy
} tvmflow_memory_info;

// Options of an asynchronous run; with zeros it is like tvmflow_start.
typedef struct tvmflow_run_options {
  size_t struct_size;
  uint32_t wait_count;  // number of cl_events that the run waits for
  void* const* wait_events;
  void** event;  // receives a cl_event for the end of the run, to be released
  // Called once, from a thread of the driver or of the library, when the run has ended; it must not
  // call functions of this model.
  void (*done)(void* user, tvmflow_status status);
  void* user;
} tvmflow_run_options;

// Formats of pictures, with 8 bits a channel.  NV12 and the following formats have a plane of luma,
// and chroma at half the width and height: NV12 a plane of pairs (U, V), NV21 of pairs (V, U),
// YUV420 and I420 a plane of U and one of V, YV12 a plane of V and one of U.
typedef enum tvmflow_image_format {
  TVMFLOW_RGBA8 = 0,
  TVMFLOW_BGRA8 = 1,
  TVMFLOW_RGB8 = 2,
  TVMFLOW_GREY8 = 3,
  TVMFLOW_NV12 = 4,
  TVMFLOW_NV21 = 5,
  TVMFLOW_YUV420 = 6,  // with any strides of rows and pixels, as Android's YUV_420_888
  TVMFLOW_I420 = 7,
  TVMFLOW_YV12 = 8,
} tvmflow_image_format;

// Pictures that an input compiled with `--image-input` accepts.
typedef struct tvmflow_image_info {
  size_t struct_size;  // set it before the call
  uint32_t format;     // a tvmflow_image_format
  uint32_t width;      // of pictures in memory, before rotation; 0: any
  uint32_t height;
} tvmflow_image_info;

// A picture in memory of this process, of OpenCL or of Android.  Zeros are the defaults; set
// `struct_size` to sizeof(tvmflow_image).
typedef struct tvmflow_image {
  size_t struct_size;
  uint32_t width;  // in pixels, in memory, before rotation
  uint32_t height;
  uint32_t rotation;          // degrees clockwise until it is upright: 0, 90, 180 or 270
  uint32_t strides[3];        // bytes from one row to the next, by plane; 0: no gap
  uint32_t pixel_strides[3];  // bytes from one sample of a row to the next; 0: no gap
  const void* planes[3];      // further planes may be NULL if they follow the first
  // Size of each plane in bytes, to be checked; 0: unknown.  If further planes follow the first
  // one, its size includes theirs.  The last byte of pairs of chroma may be missing, as in
  // Android's planes: the sample before it is used instead.
  size_t bytes[3];
  void* cl_memory;        // a cl_mem: a buffer or, for RGBA8 and BGRA8, an image2d of CL_UNORM_INT8
  size_t offsets[3];      // bytes before each plane in a buffer; 0: it follows the one before
  void* hardware_buffer;  // an AHardwareBuffer*, if the device's driver can import it
  // 1: the picture has `format`, not the format that the library was compiled for.  BGRA8 may
  // replace RGBA8, a format with chroma at half the size may replace another one, and the reverse.
  uint32_t has_format;
  uint32_t format;
} tvmflow_image;

TVMFLOW_API uint32_t tvmflow_api_version(void);
// Returns the name of a status, such as "TVMFLOW_ERROR_BUSY"; never NULL.
TVMFLOW_API const char* tvmflow_status_name(tvmflow_status status);

// Opens OpenCL, builds the kernels or loads them from the cache, and uploads the weights.
// On failure, too, the model is set to an instance, which only has a message and must be
// destroyed, or to NULL if there is no memory for it.
TVMFLOW_API tvmflow_status tvmflow_create(const tvmflow_options* options, tvmflow_model** model);
// A forked child can use models on the CPU, with new threads; models on OpenCL can only be
// destroyed there (docs/deploying.md).
TVMFLOW_API void tvmflow_destroy(tvmflow_model* model);  // waits for a started run; NULL is allowed

// Returns the reason and the remedy of the last failure; "" before any.  Valid until the next
// call with this instance.
TVMFLOW_API const char* tvmflow_message(const tvmflow_model* model);

// Returns JSON: network, target, versions of the compiler, memory, device and driver.
TVMFLOW_API const char* tvmflow_describe(const tvmflow_model* model);
TVMFLOW_API tvmflow_backend tvmflow_backend_used(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_input_count(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_output_count(const tvmflow_model* model);
TVMFLOW_API tvmflow_status tvmflow_input(tvmflow_model* model, uint32_t index,
                                         tvmflow_tensor* info);
TVMFLOW_API tvmflow_status tvmflow_output(tvmflow_model* model, uint32_t index,
                                          tvmflow_tensor* info);

// Find the index of an input or output by its name in the ONNX model.
TVMFLOW_API tvmflow_status tvmflow_find_input(tvmflow_model* model, const char* name,
                                              uint32_t* index);
TVMFLOW_API tvmflow_status tvmflow_find_output(tvmflow_model* model, const char* name,
                                               uint32_t* index);
TVMFLOW_API tvmflow_status tvmflow_opencl(tvmflow_model* model, tvmflow_opencl_info* info);
TVMFLOW_API tvmflow_status tvmflow_memory(tvmflow_model* model, tvmflow_memory_info* info);

// A library that was compiled for several shapes of its inputs numbers them in the order of the
// compilation, and starts with the first one.  All calls refer to the chosen shape: `tvmflow_input`
// and `tvmflow_output` describe its tensors.  Shapes share memory: after another one is chosen,
// inputs must be set again, and memory of the application is no longer used.
TVMFLOW_API uint32_t tvmflow_shape_count(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_shape(const tvmflow_model* model);  // the chosen one
TVMFLOW_API tvmflow_status tvmflow_choose_shape(tvmflow_model* model, uint32_t index);
// Chooses the shape in which an input has these extents; among several, the shape whose other
// inputs are most similar to the current ones.
TVMFLOW_API tvmflow_status tvmflow_set_shape(tvmflow_model* model, uint32_t input,
                                             const int64_t* dims, uint32_t count);

// Copy data, which may be changed when these return.  `tvmflow_get_output` waits for the run.
TVMFLOW_API tvmflow_status tvmflow_set_input(tvmflow_model* model, uint32_t index,
                                             tvmflow_dtype dtype, const void* data, size_t bytes);
TVMFLOW_API tvmflow_status tvmflow_get_output(tvmflow_model* model, uint32_t index,
                                              tvmflow_dtype dtype, void* data, size_t bytes);
// Waits for the run and returns the address of its result on the CPU, without a copy.  It is valid
// until the next run, the choice of another shape, or the end of the model.  Returns UNSUPPORTED if
// `tvmflow_get_output` converts: on OpenCL, and for boxes converted to a picture's pixels.
TVMFLOW_API tvmflow_status tvmflow_output_data(tvmflow_model* model, uint32_t index,
                                               tvmflow_dtype dtype, const void** data,
                                               size_t bytes);

// For inputs compiled with `--image-input`, in addition to `tvmflow_set_input`.  Pixels in this
// process's memory may be changed when this returns; other memory when the run is done.
TVMFLOW_API tvmflow_status tvmflow_image_input(tvmflow_model* model, uint32_t index,
                                               tvmflow_image_info* info);
TVMFLOW_API tvmflow_status tvmflow_set_image(tvmflow_model* model, uint32_t index,
                                             const tvmflow_image* image);
// Sets the mapping from the network's input to the last picture: point (x, y) of the input, in
// pixels from its upper left corner, is (x * scale[0] + offset[0], y * scale[1] + offset[1]) in the
// upright picture.
TVMFLOW_API tvmflow_status tvmflow_image_place(tvmflow_model* model, uint32_t index,
                                               double scale[2], double offset[2]);

// Make the network read or write the application's cl_mem without a copy: a buffer of at least
// `bytes`, or an image array of `image_size`, in the context given to `tvmflow_create`.  The model
// retains it (clRetainMemObject) until other memory replaces it or the model is destroyed: the
// application may release its own reference at once.  It may access the memory while no run is in
// progress.  NULL restores the network's own memory, with its previous contents.
TVMFLOW_API tvmflow_status tvmflow_use_input(tvmflow_model* model, uint32_t index, void* cl_memory);
TVMFLOW_API tvmflow_status tvmflow_use_output(tvmflow_model* model, uint32_t index,
                                              void* cl_memory);

// Runs once, unless a run of the chosen shape has ended before, so that the driver's work at the
// first launch does not delay a later run.  Inputs that were not set become zeros; outputs are
// overwritten.  Call it after `tvmflow_create`, from any thread, such as the background thread that
// has created the model.
TVMFLOW_API tvmflow_status tvmflow_warm_up(tvmflow_model* model);
TVMFLOW_API tvmflow_status tvmflow_run(tvmflow_model* model);    // and waits
TVMFLOW_API tvmflow_status tvmflow_start(tvmflow_model* model);  // returns at once
TVMFLOW_API tvmflow_status tvmflow_wait(tvmflow_model* model);   // for the started run
// Starts a run, as tvmflow_start.  On the CPU there are no cl_events to wait for or to receive.
TVMFLOW_API tvmflow_status tvmflow_run_async(tvmflow_model* model,
                                             const tvmflow_run_options* options);
// Cancels the current run, from any thread.  On the CPU it ends before its next kernel; on OpenCL
// kernels in the queue still run.  Calls that wait for the run return TVMFLOW_ERROR_CANCELLED; its
// outputs cannot be read, and the inputs are unchanged.  Without a run nothing happens.
TVMFLOW_API void tvmflow_cancel(tvmflow_model* model);

// Runs once and returns the times of all kernels, in order; valid until the next call.
TVMFLOW_API tvmflow_status tvmflow_profile(tvmflow_model* model, const tvmflow_kernel** kernels,
                                           uint32_t* count);

// Runs the test input in the library and compares the results with those in the library, for all
// shapes.  Afterwards the model's inputs are the test input.  `result` may be NULL.
TVMFLOW_API tvmflow_status tvmflow_self_test(tvmflow_model* model, tvmflow_test* result);
// The same, with more runs.  `options` may be NULL.
//
// A library of `--alternatives safe` compares the tensors between its functions, too.  Where a
// function is wrong, or gives different results in two runs, its plain kernels are used from then
// on, also in later starts with this driver and cache folder.  TVMFLOW_ERROR_WRONG: results are
// still wrong.
TVMFLOW_API tvmflow_status tvmflow_self_test_with(tvmflow_model* model,
                                                  const tvmflow_test_options* options,
                                                  tvmflow_test* result);
// Returns what the last self-test found, as JSON (docs/standalone.md): "{}" if there was none.
// Valid until the next self-test.
TVMFLOW_API const char* tvmflow_test_report(const tvmflow_model* model);

// Times the choices in a library of `--choices N` on this device, and uses those that give the
// right results and are faster; later starts with this driver and cache folder use them at once.
//
// The function returns at once.  A second instance of the network does the work in a thread of its
// own, while the application runs nothing; it ends when the device or its compiler has worked for
// `budget_ms`, and the next tuning goes on from there.  Choices are used from the next call on.
// `progress` may be NULL; it is called in that thread, and must not call functions of this model.
TVMFLOW_API tvmflow_status tvmflow_tune(tvmflow_model* model, uint32_t budget_ms,
                                        tvmflow_tune_progress progress, void* user);
// Waits for the end of the tuning.
TVMFLOW_API tvmflow_status tvmflow_tune_wait(tvmflow_model* model);
// Returns the result of the last tuning that has ended, as JSON (docs/standalone.md): "{}" if there
// was none.  Valid until the next call.
TVMFLOW_API const char* tvmflow_tune_report(const tvmflow_model* model);

#ifdef __cplusplus
}
#endif
#endif
