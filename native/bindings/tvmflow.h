// SPDX-License-Identifier: Apache-2.0
// Run a compiled network: the C interface of a library that `tvmflow compile --standalone`
// writes.  Kernels, weights and execution plan are inside; the device's OpenCL library is
// opened at run time.
//
// Instances are independent of each other and may be used from different threads at the same
// time.  One instance is used by one thread at a time: a call that comes while another one is under
// way returns TVMFLOW_ERROR_BUSY and changes nothing.  No function ends the process or throws.
//
// Structures grow at their end only, and those with a `struct_size` do: the application sets it to
// the size that it knows, so that programs and libraries of different versions fit.  What else is
// here keeps its name, layout and meaning.
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

// Grows when functions, or members of structures that change what a call does, are added.
#define TVMFLOW_API_VERSION 1
#define TVMFLOW_MAX_DIMENSIONS 8
#define TVMFLOW_API __attribute__((visibility("default")))

typedef struct tvmflow_model tvmflow_model;

typedef enum tvmflow_status {
  TVMFLOW_OK = 0,
  TVMFLOW_ERROR_ARGUMENT = 1,     // a null pointer, an index, a size or a dtype
  TVMFLOW_ERROR_NO_OPENCL = 2,    // no OpenCL library, platform or device
  TVMFLOW_ERROR_UNSUPPORTED = 3,  // the device lacks images, an extension or a size
  TVMFLOW_ERROR_BUILD = 4,        // the driver refused a kernel; the message has its log
  TVMFLOW_ERROR_MEMORY = 5,       // out of memory, of the host or the device
  TVMFLOW_ERROR_DAMAGED = 6,      // the library or its weights are damaged or cut short
  TVMFLOW_ERROR_DEVICE = 7,       // the driver failed in another way
  TVMFLOW_ERROR_BUSY = 8,         // a run was not waited for, or another thread is in a call
  TVMFLOW_ERROR_WRONG = 9,        // the self-test's results are outside the tolerance
  TVMFLOW_ERROR_CANCELLED = 10,   // by tvmflow_cancel: there is no result
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
  TVMFLOW_NO_COMMAND_BUFFER = 2,  // enqueue each kernel even where the driver can record them
  // Do not compare the weights with their checksum: of several gigabytes that takes a second.
  TVMFLOW_UNCHECKED_WEIGHTS = 4,
  TVMFLOW_PIN_THREADS = 8,  // on the CPU: each thread stays on a core of its own
  // TVMFLOW_AUTO takes the CPU where it is faster: both run a few times at the first start, and the
  // cache folder remembers it.
  TVMFLOW_CHOOSE_FASTER = 16,
};

// What kernels run on.  A library has those that it was compiled with (`--fallback cpu`).
typedef enum tvmflow_backend {
  TVMFLOW_AUTO = 0,  // OpenCL where it can be used and passes the self-test, else the CPU
  TVMFLOW_OPENCL = 1,
  TVMFLOW_CPU = 2,
} tvmflow_backend;

// How the device shares its time between queues: hints, where the driver takes some.
typedef enum tvmflow_priority {
  TVMFLOW_PRIORITY_DEFAULT = 0,
  TVMFLOW_PRIORITY_LOW = 1,  // frames that are drawn come first
  TVMFLOW_PRIORITY_HIGH = 2,
} tvmflow_priority;

typedef enum tvmflow_log_level {
  TVMFLOW_LOG_INFO = 0,     // what was chosen, built, taken from the cache
  TVMFLOW_LOG_WARNING = 1,  // what could not be used, and what is used instead
} tvmflow_log_level;
// Gets a sentence, valid during the call; from any thread that is in a call of the model.
typedef void (*tvmflow_log)(void* user, tvmflow_log_level level, const char* text);

// All zero is the default; set `struct_size` to sizeof(tvmflow_options).
typedef struct tvmflow_options {
  size_t struct_size;
  uint32_t device_index;       // among all devices, GPUs first
  uint32_t flags;              // TVMFLOW_PROFILE and so on
  const char* opencl_library;  // path of the only library to try; NULL: the usual places
  const char* cache_folder;    // where built programs are kept; NULL: nowhere
  const char* weights_path;    // large weights; NULL: beside the library
  void* cl_context;            // the application's cl_context and cl_device_id, to share
  void* cl_device;             // memory with it; NULL: an own context
  uint32_t backend;            // a tvmflow_backend
  uint32_t cpu_threads;        // with the one that calls; 0: one for each fast core
  uint32_t priority;           // a tvmflow_priority
  tvmflow_log log;             // NULL: nothing is told
  void* log_user;              // its first argument
} tvmflow_options;

typedef struct tvmflow_tensor {
  const char* name;
  const char* layout;  // "" or, for a tensor in blocks of four channels, "NCHW4c"
  tvmflow_dtype dtype;
  uint32_t dimensions;
  int64_t shape[TVMFLOW_MAX_DIMENSIONS];
  size_t bytes;            // what `tvmflow_set_input` and `tvmflow_get_output` take
  uint32_t image_size[3];  // width, height, layers of the image behind it; zeros: a buffer
} tvmflow_tensor;

typedef struct tvmflow_kernel {
  const char* name;      // of the kernel
  const char* function;  // the primary function that it is part of
  uint64_t start_ns;     // on the device's clock
  uint64_t end_ns;
} tvmflow_kernel;

typedef struct tvmflow_test {
  double largest_error;   // absolute, over all outputs
  double tolerance_used;  // of an element's tolerance, at most; above 1 is wrong
  uint64_t compared;      // elements
} tvmflow_test;

// OpenCL's objects of an instance; NULL on the CPU.  Another model, of this or another library,
// that gets context, device and library in its options shares memory with it.
typedef struct tvmflow_opencl_info {
  size_t struct_size;  // set it before the call
  void* context;       // cl_context and so on: valid until the model is destroyed, or retained
  void* device;
  void* queue;
  const char* library;  // for tvmflow_options.opencl_library
} tvmflow_opencl_info;

// Bytes that an instance holds.
typedef struct tvmflow_memory_info {
  size_t struct_size;       // set it before the call
  uint64_t weights;         // on the device, or where they are mapped
  uint64_t tensors;         // on the device: inputs, outputs and what is between kernels
  uint64_t pictures;        // on the device: copies of the application's
  uint64_t host;            // of the process, besides the weights that are mapped
  uint32_t weights_shared;  // 1: they are used where they are mapped
} tvmflow_memory_info;

// How a run is started; all zero is tvmflow_start.
typedef struct tvmflow_run_options {
  size_t struct_size;
  uint32_t wait_count;  // cl_events that the run waits for
  void* const* wait_events;
  void** event;  // gets a cl_event of the end of the run, to be released
  // Called once, from a thread of the driver or of the library, when the run has ended; it must not
  // call functions of this model.
  void (*done)(void* user, tvmflow_status status);
  void* user;
} tvmflow_run_options;

// Pictures have 8 bits a channel.  Those from NV12 on have a plane of luma, and chroma at half the
// width and height: NV12 a plane of pairs (U, V), NV21 of pairs (V, U), YUV420 and I420 a plane of
// U and one of V, YV12 a plane of V and one of U.
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

// What an input takes that was compiled with `--image-input`.
typedef struct tvmflow_image_info {
  size_t struct_size;  // set it before the call
  uint32_t format;     // a tvmflow_image_format
  uint32_t width;      // of pictures, as they lie in memory; 0: any
  uint32_t height;
} tvmflow_image_info;

// A picture: in memory of this process, of OpenCL or of Android.  Zeros are the default; set
// `struct_size` to sizeof(tvmflow_image).
typedef struct tvmflow_image {
  size_t struct_size;
  uint32_t width;  // in pixels, as it lies in memory
  uint32_t height;
  uint32_t rotation;          // degrees clockwise until it is upright: 0, 90, 180 or 270
  uint32_t strides[3];        // bytes from one row to the next, of each plane; 0: there is no gap
  uint32_t pixel_strides[3];  // bytes from one sample of a row to the next; 0: there is no gap
  const void* planes[3];      // those after the first one may be NULL: they follow it
  // Bytes that each plane has, to be checked; 0: unknown.  Those of a first plane that the others
  // follow include theirs.  The last byte of pairs of chroma may be missing, as in Android's
  // planes: the sample before it takes its place.
  size_t bytes[3];
  void* cl_memory;        // a cl_mem: a buffer, or of RGBA8 and BGRA8 an image2d of CL_UNORM_INT8
  size_t offsets[3];      // bytes before each plane of a buffer; 0: it follows the one before
  void* hardware_buffer;  // an AHardwareBuffer*, where the device's driver can import one
  // 1: the picture is of `format`, not of that which the library was compiled for: BGRA8 for RGBA8,
  // a format with chroma at half the size for another one, or the other way round.
  uint32_t has_format;
  uint32_t format;
} tvmflow_image;

TVMFLOW_API uint32_t tvmflow_api_version(void);
// The name of a status as above, such as "TVMFLOW_ERROR_BUSY"; never NULL.
TVMFLOW_API const char* tvmflow_status_name(tvmflow_status status);

// Opens OpenCL, builds the kernels or takes them from the cache, and uploads the weights.
// Also gives an instance on failure, which only has a message and must be destroyed; NULL
// when there is no memory for it.
TVMFLOW_API tvmflow_status tvmflow_create(const tvmflow_options* options, tvmflow_model** model);
// A forked child goes on with models on the CPU, and has threads of its own; models on OpenCL are
// refused there, and can only be destroyed (docs/deploying.md).
TVMFLOW_API void tvmflow_destroy(tvmflow_model* model);  // waits for what was started; NULL is fine

// What went wrong in the last call that failed, and what helps; "" before.  Valid until the
// next call with this instance.
TVMFLOW_API const char* tvmflow_message(const tvmflow_model* model);

// JSON: the network, target and versions that it was compiled with, memory, device and driver.
TVMFLOW_API const char* tvmflow_describe(const tvmflow_model* model);
TVMFLOW_API tvmflow_backend tvmflow_backend_used(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_input_count(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_output_count(const tvmflow_model* model);
TVMFLOW_API tvmflow_status tvmflow_input(tvmflow_model* model, uint32_t index,
                                         tvmflow_tensor* info);
TVMFLOW_API tvmflow_status tvmflow_output(tvmflow_model* model, uint32_t index,
                                          tvmflow_tensor* info);

// Their numbers by the ONNX model's names.
TVMFLOW_API tvmflow_status tvmflow_find_input(tvmflow_model* model, const char* name,
                                              uint32_t* index);
TVMFLOW_API tvmflow_status tvmflow_find_output(tvmflow_model* model, const char* name,
                                               uint32_t* index);
TVMFLOW_API tvmflow_status tvmflow_opencl(tvmflow_model* model, tvmflow_opencl_info* info);
TVMFLOW_API tvmflow_status tvmflow_memory(tvmflow_model* model, tvmflow_memory_info* info);

// A library that was compiled for several shapes of its inputs has them in the order of the
// compilation, and begins with the first one.  All calls are about the one that is chosen:
// `tvmflow_input` and `tvmflow_output` tell its tensors.  Another one has the same memory: inputs
// must be set again, and memory of the application is given back.
TVMFLOW_API uint32_t tvmflow_shape_count(const tvmflow_model* model);
TVMFLOW_API uint32_t tvmflow_shape(const tvmflow_model* model);  // the one that is chosen
TVMFLOW_API tvmflow_status tvmflow_choose_shape(tvmflow_model* model, uint32_t index);
// The one in which an input has these extents; of several, the one whose other inputs are most as
// they are now.
TVMFLOW_API tvmflow_status tvmflow_set_shape(tvmflow_model* model, uint32_t input,
                                             const int64_t* dims, uint32_t count);

// Copies: the data may be changed when these return.  `tvmflow_get_output` waits for the run.
TVMFLOW_API tvmflow_status tvmflow_set_input(tvmflow_model* model, uint32_t index,
                                             tvmflow_dtype dtype, const void* data, size_t bytes);
TVMFLOW_API tvmflow_status tvmflow_get_output(tvmflow_model* model, uint32_t index,
                                              tvmflow_dtype dtype, void* data, size_t bytes);
// No copy, on the CPU: waits for the run and gives the address of its result, which is valid until
// the next run, another shape, or the end of the model.  UNSUPPORTED where `tvmflow_get_output`
// converts: on OpenCL, and boxes that it brings to a picture's pixels.
TVMFLOW_API tvmflow_status tvmflow_output_data(tvmflow_model* model, uint32_t index,
                                               tvmflow_dtype dtype, const void** data,
                                               size_t bytes);

// For inputs that were compiled with `--image-input`, beside `tvmflow_set_input`.  Pixels in
// this process's memory may be changed when this returns; other memory when the run is done.
TVMFLOW_API tvmflow_status tvmflow_image_input(tvmflow_model* model, uint32_t index,
                                               tvmflow_image_info* info);
TVMFLOW_API tvmflow_status tvmflow_set_image(tvmflow_model* model, uint32_t index,
                                             const tvmflow_image* image);
// Where the last picture is: point (x, y) of the network's input, in pixels from its upper left
// corner, is (x * scale[0] + offset[0], y * scale[1] + offset[1]) of the upright picture.
TVMFLOW_API tvmflow_status tvmflow_image_place(tvmflow_model* model, uint32_t index,
                                               double scale[2], double offset[2]);

// No copy: the network reads or writes the application's cl_mem, a buffer of at least `bytes`
// or an image array of `image_size`, of the context given to `tvmflow_create`.  The model retains
// it (clRetainMemObject) until other memory takes its place or the model is destroyed: the
// application may release its own reference at once.  It may read and write the memory itself while
// no run is under way.  NULL gives the network's own memory back, with what it held before.
TVMFLOW_API tvmflow_status tvmflow_use_input(tvmflow_model* model, uint32_t index, void* cl_memory);
TVMFLOW_API tvmflow_status tvmflow_use_output(tvmflow_model* model, uint32_t index,
                                              void* cl_memory);

// Runs once, unless a run of the shape that is chosen has ended before: what the driver does at the
// first launch is then done, and no picture or sound waits for it.  Inputs that were not set become
// zeros; outputs become what the network makes of them.  To be called after `tvmflow_create`, from
// any thread, such as the one that has created the model in the background.
TVMFLOW_API tvmflow_status tvmflow_warm_up(tvmflow_model* model);
TVMFLOW_API tvmflow_status tvmflow_run(tvmflow_model* model);    // and waits
TVMFLOW_API tvmflow_status tvmflow_start(tvmflow_model* model);  // returns at once
TVMFLOW_API tvmflow_status tvmflow_wait(tvmflow_model* model);   // for what was started
// As tvmflow_start.  On the CPU there are no cl_events to wait for or to get.
TVMFLOW_API tvmflow_status tvmflow_run_async(tvmflow_model* model,
                                             const tvmflow_run_options* options);
// From any thread: the run that is under way ends before its next kernel on the CPU; what OpenCL's
// queue has already runs to its end.  Whoever waits for it gets TVMFLOW_ERROR_CANCELLED, and its
// outputs cannot be read; the inputs are what they were.  Without a run nothing happens.
TVMFLOW_API void tvmflow_cancel(tvmflow_model* model);

// Runs once and gives the times of all kernels, in order; valid until the next call.
TVMFLOW_API tvmflow_status tvmflow_profile(tvmflow_model* model, const tvmflow_kernel** kernels,
                                           uint32_t* count);

// Runs the input that the library carries and compares with the results that it carries; the
// model's inputs are then that input; all shapes are tested.  `result` may be NULL.
TVMFLOW_API tvmflow_status tvmflow_self_test(tvmflow_model* model, tvmflow_test* result);

#ifdef __cplusplus
}
#endif
#endif
