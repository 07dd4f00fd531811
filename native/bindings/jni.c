// SPDX-License-Identifier: Apache-2.0
// Native methods of the Java class `ai.tvmflow.Native` (in java/).
//
// Every library has these functions, and the virtual machine uses those of the first library that
// it loads: they work on the library that is passed to them, never on their own model.  Texts are
// arrays of UTF-8, because JNI's own strings have another encoding, and failures are codes whose
// message Java fetches, so that no strings or exceptions of the machine are needed.  The log is
// written to a stream, because shrinkers rename methods of the application, not of the platform.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "tvmflow_library.h"

// Entries of the function table, by their numbers in the Java Native Interface Specification, "JNI
// Functions", so that no header of a JDK or the NDK is needed.
typedef void (*tf_jni_entry)(void);
typedef const tf_jni_entry* const* tf_jni;  // JNIEnv*
typedef void* tf_object;
enum {
  TF_FIND_CLASS = 6,
  TF_EXCEPTION_CLEAR = 17,
  TF_NEW_GLOBAL_REF = 21,
  TF_DELETE_GLOBAL_REF = 22,
  TF_DELETE_LOCAL_REF = 23,
  TF_GET_METHOD_ID = 33,
  TF_CALL_VOID_METHOD_A = 63,
  TF_GET_ARRAY_LENGTH = 171,
  TF_NEW_BYTE_ARRAY = 176,
  TF_GET_BYTE_ARRAY_REGION = 200,
  TF_GET_LONG_ARRAY_REGION = 204,
  TF_SET_BYTE_ARRAY_REGION = 208,
  TF_SET_LONG_ARRAY_REGION = 212,
  TF_SET_DOUBLE_ARRAY_REGION = 214,
  TF_GET_JAVA_VM = 219,
  TF_GET_DIRECT_BUFFER_ADDRESS = 230,
  TF_GET_DIRECT_BUFFER_CAPACITY = 231,
};
// An entry in the table of a JavaVM, and the version of JNI.
enum { TF_GET_ENV = 6, TF_JNI_VERSION = 0x00010006 };

typedef int32_t (*tf_get_array_length)(tf_jni, tf_object);
typedef tf_object (*tf_new_byte_array)(tf_jni, int32_t);
typedef void (*tf_get_byte_region)(tf_jni, tf_object, int32_t, int32_t, signed char*);
typedef void (*tf_get_long_region)(tf_jni, tf_object, int32_t, int32_t, int64_t*);
typedef void (*tf_set_byte_region)(tf_jni, tf_object, int32_t, int32_t, const signed char*);
typedef void (*tf_set_long_region)(tf_jni, tf_object, int32_t, int32_t, const int64_t*);
typedef void (*tf_set_double_region)(tf_jni, tf_object, int32_t, int32_t, const double*);
typedef tf_object (*tf_find_class)(tf_jni, const char*);
typedef void (*tf_exception_clear)(tf_jni);
typedef tf_object (*tf_of_reference)(tf_jni, tf_object);
typedef void (*tf_delete_reference)(tf_jni, tf_object);
typedef void* (*tf_get_method)(tf_jni, tf_object, const char*, const char*);
typedef void (*tf_call_void)(tf_jni, tf_object, void*, const int64_t*);
typedef int32_t (*tf_get_vm)(tf_jni, tf_jni*);
typedef int32_t (*tf_get_env)(tf_jni, void**, int32_t);
typedef void* (*tf_get_address)(tf_jni, tf_object);
typedef int64_t (*tf_get_capacity)(tf_jni, tf_object);

#define TF_NATIVE(result, name) TVMFLOW_API result Java_ai_tvmflow_Native_##name
#define TF_CALL(env, type, number) ((type)(*(env))[number])

// Open library and model; Java's `handle` is its address.
typedef struct tf_opened {
  tvmflow_library library;
  tvmflow_model* model;
  tvmflow_status status;  // of the last call
  const char* reason;     // of a failure to open the library; NULL: the model has the message
  char text[512];         // storage of `reason`
  tf_jni machine;         // a JavaVM*
  tf_object log;          // a java.io.OutputStream, or NULL
  void* write;            // its method
  _Atomic float tuned;    // share of a tuning that is done
} tf_opened;

static tf_opened* tf_from_handle(int64_t handle) { return (tf_opened*)(intptr_t)handle; }

// Returns a copy of an array of bytes, followed by a zero; NULL for null, or without memory.
static char* tf_copy_text(tf_jni env, tf_object array) {
  if (array == NULL) return NULL;
  const int32_t length = TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, array);
  char* text = malloc((size_t)length + 1);
  if (text == NULL) return NULL;
  TF_CALL(env, tf_get_byte_region, TF_GET_BYTE_ARRAY_REGION)
  (env, array, 0, length, (signed char*)text);
  text[length] = 0;
  return text;
}

// Returns a new array of bytes; NULL, with an OutOfMemoryError pending, without memory.
static tf_object tf_new_bytes(tf_jni env, const char* bytes, size_t count) {
  if (count > INT32_MAX) count = INT32_MAX;
  tf_object array = TF_CALL(env, tf_new_byte_array, TF_NEW_BYTE_ARRAY)(env, (int32_t)count);
  if (array == NULL) return NULL;
  TF_CALL(env, tf_set_byte_region, TF_SET_BYTE_ARRAY_REGION)
  (env, array, 0, (int32_t)count, (const signed char*)bytes);
  return array;
}

// Writes level and text of a line of the log, on any thread that is in a call.
static void tf_write_log(void* user, tvmflow_log_level level, const char* text) {
  const tf_opened* const opened = user;
  void* found = NULL;
  if (TF_CALL(opened->machine, tf_get_env, TF_GET_ENV)(opened->machine, &found, TF_JNI_VERSION))
    return;
  tf_jni const env = found;
  const size_t bytes = strlen(text);
  char* const line = malloc(bytes + 1);
  if (line == NULL) return;
  line[0] = (char)level;
  memcpy(line + 1, text, bytes);
  tf_object const array = tf_new_bytes(env, line, bytes + 1);
  free(line);
  if (array != NULL) {
    // The call's `jvalue` has 64 bits.
    const int64_t argument = (int64_t)(intptr_t)array;
    TF_CALL(env, tf_call_void, TF_CALL_VOID_METHOD_A)(env, opened->log, opened->write, &argument);
  }
  // Ignore exceptions of the receiver.
  TF_CALL(env, tf_exception_clear, TF_EXCEPTION_CLEAR)(env);
  if (array != NULL) TF_CALL(env, tf_delete_reference, TF_DELETE_LOCAL_REF)(env, array);
}

static void tf_set_log(tf_jni env, tf_opened* opened, tf_object log, tvmflow_options* options) {
  tf_object const stream = TF_CALL(env, tf_find_class, TF_FIND_CLASS)(env, "java/io/OutputStream");
  if (stream != NULL)
    opened->write = TF_CALL(env, tf_get_method, TF_GET_METHOD_ID)(env, stream, "write", "([B)V");
  if (opened->write != NULL && TF_CALL(env, tf_get_vm, TF_GET_JAVA_VM)(env, &opened->machine) == 0)
    opened->log = TF_CALL(env, tf_of_reference, TF_NEW_GLOBAL_REF)(env, log);
  // Continue without a log if there is no memory.
  TF_CALL(env, tf_exception_clear, TF_EXCEPTION_CLEAR)(env);
  if (stream != NULL) TF_CALL(env, tf_delete_reference, TF_DELETE_LOCAL_REF)(env, stream);
  if (opened->log == NULL) return;
  options->log = tf_write_log;
  options->log_user = opened;
}

static void tf_fail_to_open(tf_opened* opened, const char* path, const char* reason) {
  snprintf(opened->text, sizeof(opened->text), "Opening the library %s failed: %s",
           path ? path : "(null)", reason);
  opened->reason = opened->text;
  opened->status = TVMFLOW_ERROR_DAMAGED;
}

static void tf_open(tf_opened* opened, const char* path, const tvmflow_options* options) {
  if (path == NULL) {
    tf_fail_to_open(opened, path, "it has no name, or there is no memory for it");
    return;
  }
  const char* reason = tvmflow_library_open(&opened->library, path);
  if (reason != NULL) {
    tf_fail_to_open(opened, path, reason);
    return;
  }
  opened->status = opened->library.create(options, &opened->model);
  if (opened->model == NULL) tf_fail_to_open(opened, path, "there is no memory for the model");
}

// `numbers` has device, flags, backend, threads, priority and performance; missing ones are zero.
// Returns 0 without memory; otherwise a handle that must be closed, even if opening failed.
TF_NATIVE(int64_t, open)
(tf_jni env, tf_object class, tf_object library, tf_object cache_folder, tf_object weights,
 tf_object opencl, tf_object drivers, tf_object numbers, tf_object log) {
  (void)class;
  tf_opened* opened = calloc(1, sizeof(*opened));
  if (opened == NULL) return 0;
  int64_t n[6] = {0};
  int32_t count =
      numbers ? TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) : 0;
  if (count > 6) count = 6;
  if (count) TF_CALL(env, tf_get_long_region, TF_GET_LONG_ARRAY_REGION)(env, numbers, 0, count, n);
  char* const texts[] = {tf_copy_text(env, library), tf_copy_text(env, cache_folder),
                         tf_copy_text(env, weights), tf_copy_text(env, opencl),
                         tf_copy_text(env, drivers)};
  tvmflow_options options = {.struct_size = sizeof(options),
                             .device_index = (uint32_t)n[0],
                             .flags = (uint32_t)n[1],
                             .opencl_library = texts[3],
                             .cache_folder = texts[1],
                             .weights_path = texts[2],
                             .drivers = texts[4],
                             .backend = (uint32_t)n[2],
                             .cpu_threads = (uint32_t)n[3],
                             .priority = (uint32_t)n[4],
                             .performance = (uint32_t)n[5]};
  if (log != NULL) tf_set_log(env, opened, log, &options);
  tf_open(opened, texts[0], &options);
  for (int i = 0; i < 5; ++i) free(texts[i]);
  return (int64_t)(intptr_t)opened;
}

TF_NATIVE(void, close)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL) return;
  if (opened->model != NULL) opened->library.destroy(opened->model);
  tvmflow_library_close(&opened->library);
  if (opened->log != NULL)
    TF_CALL(env, tf_delete_reference, TF_DELETE_GLOBAL_REF)(env, opened->log);
  free(opened);
}

// Returns the status of the last call with this handle.
TF_NATIVE(int32_t, status)(tf_jni env, tf_object class, int64_t handle) {
  (void)env, (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  return opened ? (int32_t)opened->status : TVMFLOW_ERROR_ARGUMENT;
}

// Returns the message of the last failure.
TF_NATIVE(tf_object, message)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  const char* text = "";
  if (opened != NULL && opened->reason != NULL) {
    text = opened->reason;
  } else if (opened != NULL && opened->model != NULL) {
    text = opened->library.message(opened->model);
  }
  return tf_new_bytes(env, text, strlen(text));
}

TF_NATIVE(tf_object, describe)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  const char* text = opened && opened->model ? opened->library.describe(opened->model) : "";
  return tf_new_bytes(env, text, strlen(text));
}

TF_NATIVE(int32_t, count)
(tf_jni env, tf_object class, int64_t handle, uint8_t outputs) {
  (void)env, (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return 0;
  return (int32_t)(outputs ? opened->library.output_count
                           : opened->library.input_count)(opened->model);
}

// Returns name, zero byte, layout, or NULL on failure; sets `numbers` to dtype, bytes, image size
// and shape.
TF_NATIVE(tf_object, tensor)
(tf_jni env, tf_object class, int64_t handle, uint8_t output, int32_t index, tf_object numbers) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || numbers == NULL) return NULL;
  tvmflow_tensor info;
  memset(&info, 0, sizeof(info));
  opened->status = (output ? opened->library.output : opened->library.input)(
      opened->model, (uint32_t)index, &info);
  if (opened->status != TVMFLOW_OK) return NULL;
  int64_t values[6 + TVMFLOW_MAX_DIMENSIONS] = {info.dtype,         (int64_t)info.bytes,
                                                info.image_size[0], info.image_size[1],
                                                info.image_size[2], info.dimensions};
  memcpy(values + 6, info.shape, sizeof(info.shape));
  const int32_t count = (int32_t)(sizeof(values) / sizeof(values[0]));
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) < count) return NULL;
  TF_CALL(env, tf_set_long_region, TF_SET_LONG_ARRAY_REGION)(env, numbers, 0, count, values);
  const size_t name = strlen(info.name), layout = strlen(info.layout);
  char* text = malloc(name + 1 + layout);
  if (text == NULL) {
    opened->status = TVMFLOW_ERROR_MEMORY;
    return NULL;
  }
  memcpy(text, info.name, name + 1);
  memcpy(text + name + 1, info.layout, layout);
  tf_object found = tf_new_bytes(env, text, name + 1 + layout);
  free(text);
  return found;
}

TF_NATIVE(int32_t, shapes)(tf_jni env, tf_object class, int64_t handle) {
  (void)env, (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  return opened && opened->model ? (int32_t)opened->library.shape_count(opened->model) : 0;
}

TF_NATIVE(int32_t, shape)(tf_jni env, tf_object class, int64_t handle) {
  (void)env, (void)class;
  const tf_opened* opened = tf_from_handle(handle);
  return opened && opened->model ? (int32_t)opened->library.shape(opened->model) : 0;
}

TF_NATIVE(int32_t, chooseShape)
(tf_jni env, tf_object class, int64_t handle, int32_t index) {
  (void)env, (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  return opened->status = opened->library.choose_shape(opened->model, (uint32_t)index);
}

TF_NATIVE(int32_t, setShape)
(tf_jni env, tf_object class, int64_t handle, int32_t input, tf_object extents) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || extents == NULL) return TVMFLOW_ERROR_ARGUMENT;
  int64_t values[TVMFLOW_MAX_DIMENSIONS + 1];
  int32_t count = TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, extents);
  // For too many extents, the model returns an error.
  if (count > TVMFLOW_MAX_DIMENSIONS) count = TVMFLOW_MAX_DIMENSIONS + 1;
  TF_CALL(env, tf_get_long_region, TF_GET_LONG_ARRAY_REGION)(env, extents, 0, count, values);
  return opened->status =
             opened->library.set_shape(opened->model, (uint32_t)input, values, (uint32_t)count);
}

// Checks the range once more, after Java's checks, before memory is read or written.
static char* tf_buffer_memory(tf_jni env, tf_object buffer, int32_t offset, int32_t bytes) {
  if (buffer == NULL || offset < 0 || bytes < 0) return NULL;
  char* memory = TF_CALL(env, tf_get_address, TF_GET_DIRECT_BUFFER_ADDRESS)(env, buffer);
  const int64_t capacity =
      TF_CALL(env, tf_get_capacity, TF_GET_DIRECT_BUFFER_CAPACITY)(env, buffer);
  return memory && (int64_t)offset + bytes <= capacity ? memory + offset : NULL;
}

TF_NATIVE(int32_t, setInput)
(tf_jni env, tf_object class, int64_t handle, int32_t index, int32_t dtype, tf_object buffer,
 int32_t offset, int32_t bytes) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  // For NULL, the model returns the error.
  const char* memory = tf_buffer_memory(env, buffer, offset, bytes);
  return opened->status = opened->library.set_input(opened->model, (uint32_t)index,
                                                    (tvmflow_dtype)dtype, memory, (size_t)bytes);
}

TF_NATIVE(int32_t, getOutput)
(tf_jni env, tf_object class, int64_t handle, int32_t index, int32_t dtype, tf_object buffer,
 int32_t offset, int32_t bytes) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  char* memory = tf_buffer_memory(env, buffer, offset, bytes);
  return opened->status = opened->library.get_output(opened->model, (uint32_t)index,
                                                     (tvmflow_dtype)dtype, memory, (size_t)bytes);
}

// Returns the AHardwareBuffer of a Java object; NULL without Android.
static void* tf_hardware_buffer(tf_jni env, tf_object object) {
  void* (*convert)(tf_jni, tf_object) = NULL;
  void* const android = object ? dlopen("libandroid.so", RTLD_NOW) : NULL;
  void* const symbol = android ? dlsym(android, "AHardwareBuffer_fromHardwareBuffer") : NULL;
  memcpy(&convert, &symbol, sizeof(symbol));
  return convert ? convert(env, object) : NULL;
}

// `numbers`: width, height, rotation, format or -1, then for each plane stride, pixel stride,
// offset in its buffer and number of bytes after that.
TF_NATIVE(int32_t, setImage)
(tf_jni env, tf_object class, int64_t handle, int32_t index, tf_object numbers, tf_object first,
 tf_object second, tf_object third, tf_object hardware_buffer) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || numbers == NULL) return TVMFLOW_ERROR_ARGUMENT;
  int64_t n[16] = {0};
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) < 16)
    return opened->status = TVMFLOW_ERROR_ARGUMENT;
  TF_CALL(env, tf_get_long_region, TF_GET_LONG_ARRAY_REGION)(env, numbers, 0, 16, n);
  tvmflow_image image;
  memset(&image, 0, sizeof(image));
  image.struct_size = sizeof(image);
  image.width = (uint32_t)n[0];
  image.height = (uint32_t)n[1];
  image.rotation = (uint32_t)n[2];
  image.has_format = n[3] >= 0;
  image.format = n[3] >= 0 ? (uint32_t)n[3] : 0;
  const tf_object buffers[] = {first, second, third};
  for (int i = 0; i < 3; ++i) {
    const int64_t* const plane = n + 4 + 4 * i;
    image.strides[i] = (uint32_t)plane[0];
    image.pixel_strides[i] = (uint32_t)plane[1];
    if (buffers[i] == NULL) continue;
    // For the model, 0 bytes would mean an unknown size.
    if (plane[3] < 1) return opened->status = TVMFLOW_ERROR_ARGUMENT;
    image.bytes[i] = (size_t)plane[3];
    image.planes[i] = tf_buffer_memory(env, buffers[i], (int32_t)plane[2], (int32_t)plane[3]);
    if (image.planes[i] == NULL) return opened->status = TVMFLOW_ERROR_ARGUMENT;
  }
  image.hardware_buffer = tf_hardware_buffer(env, hardware_buffer);
  return opened->status = opened->library.set_image(opened->model, (uint32_t)index, &image);
}

// Sets `numbers` to format, width and height.
TF_NATIVE(int32_t, imageInput)
(tf_jni env, tf_object class, int64_t handle, int32_t index, tf_object numbers) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || numbers == NULL) return TVMFLOW_ERROR_ARGUMENT;
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) < 3)
    return opened->status = TVMFLOW_ERROR_ARGUMENT;
  tvmflow_image_info info = {sizeof(info), 0, 0, 0};
  opened->status = opened->library.image_input(opened->model, (uint32_t)index, &info);
  const int64_t values[3] = {info.format, info.width, info.height};
  TF_CALL(env, tf_set_long_region, TF_SET_LONG_ARRAY_REGION)(env, numbers, 0, 3, values);
  return opened->status;
}

// Sets `place` to the scales of columns and rows, then their offsets.
TF_NATIVE(int32_t, imagePlace)
(tf_jni env, tf_object class, int64_t handle, int32_t index, tf_object place) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || place == NULL) return TVMFLOW_ERROR_ARGUMENT;
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, place) < 4)
    return TVMFLOW_ERROR_ARGUMENT;
  double found[4] = {1, 1, 0, 0};
  opened->status = opened->library.image_place(opened->model, (uint32_t)index, found, found + 2);
  TF_CALL(env, tf_set_double_region, TF_SET_DOUBLE_ARRAY_REGION)(env, place, 0, 4, found);
  return opened->status;
}

#define TF_STEP(name, function)                                                                    \
  TF_NATIVE(int32_t, name)(tf_jni env, tf_object class, int64_t handle) {                          \
    (void)env, (void)class;                                                                        \
    tf_opened* opened = tf_from_handle(handle);                                                    \
    if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;                    \
    return opened->status = opened->library.function(opened->model);                               \
  }
TF_STEP(warmUp, warm_up)
TF_STEP(run, run)
TF_STEP(start, start)
TF_STEP(await, wait)

// May be called from any thread.
TF_NATIVE(void, cancel)(tf_jni env, tf_object class, int64_t handle) {
  (void)env, (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened != NULL && opened->model != NULL) opened->library.cancel(opened->model);
}

// Sets `numbers` to the bytes of weights, tensors, pictures and the process, and whether weights
// are shared.
TF_NATIVE(int32_t, memory)
(tf_jni env, tf_object class, int64_t handle, tf_object numbers) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || numbers == NULL) return TVMFLOW_ERROR_ARGUMENT;
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) < 5)
    return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_memory_info info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  opened->status = opened->library.memory(opened->model, &info);
  const int64_t values[5] = {(int64_t)info.weights, (int64_t)info.tensors, (int64_t)info.pictures,
                             (int64_t)info.host, (int64_t)info.weights_shared};
  TF_CALL(env, tf_set_long_region, TF_SET_LONG_ARRAY_REGION)(env, numbers, 0, 5, values);
  return opened->status;
}

// Returns lines of kernel, function, start and end, separated by tabs; NULL on failure.  Names are
// identifiers in OpenCL C, without tabs.
TF_NATIVE(tf_object, profile)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return NULL;
  const tvmflow_kernel* kernels = NULL;
  uint32_t count = 0;
  opened->status = opened->library.profile(opened->model, &kernels, &count);
  if (opened->status != TVMFLOW_OK) return NULL;
  size_t room = 1;
  for (uint32_t i = 0; i < count; ++i)
    room += strlen(kernels[i].name) + strlen(kernels[i].function) + 64;
  char* text = malloc(room);
  if (text == NULL) {
    opened->status = TVMFLOW_ERROR_MEMORY;
    return NULL;
  }
  size_t used = 0;
  for (uint32_t i = 0; i < count; ++i)
    used += (size_t)snprintf(text + used, room - used, "%s\t%s\t%llu\t%llu\n", kernels[i].name,
                             kernels[i].function, (unsigned long long)kernels[i].start_ns,
                             (unsigned long long)kernels[i].end_ns);
  tf_object found = tf_new_bytes(env, text, used);
  free(text);
  return found;
}

TF_NATIVE(tf_object, testReport)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  const char* text = opened && opened->model ? opened->library.test_report(opened->model) : "";
  return tf_new_bytes(env, text, strlen(text));
}

static void tf_note_progress(void* user, double done) {
  tf_opened* const opened = user;
  atomic_store(&opened->tuned, (float)done);
}

TF_NATIVE(int32_t, tune)(tf_jni env, tf_object class, int64_t handle, int32_t budget_ms) {
  (void)env;
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  atomic_store(&opened->tuned, 0);
  opened->status =
      opened->library.tune(opened->model, (uint32_t)budget_ms, tf_note_progress, opened);
  return opened->status;
}

TF_NATIVE(int32_t, tuneWait)(tf_jni env, tf_object class, int64_t handle) {
  (void)env;
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  opened->status = opened->library.tune_wait(opened->model);
  return opened->status;
}

TF_NATIVE(double, tuneProgress)(tf_jni env, tf_object class, int64_t handle) {
  (void)env;
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  return opened == NULL ? 0 : atomic_load(&opened->tuned);
}

TF_NATIVE(tf_object, tuneReport)(tf_jni env, tf_object class, int64_t handle) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  const char* text = opened && opened->model ? opened->library.tune_report(opened->model) : "";
  return tf_new_bytes(env, text, strlen(text));
}

// Sets `numbers` to the largest error, tolerance used and elements compared.
TF_NATIVE(int32_t, selfTest)
(tf_jni env, tf_object class, int64_t handle, int32_t runs, int32_t pause_ms, int32_t budget_ms,
 int32_t flags, tf_object numbers) {
  (void)class;
  tf_opened* opened = tf_from_handle(handle);
  if (opened == NULL || opened->model == NULL || numbers == NULL) return TVMFLOW_ERROR_ARGUMENT;
  if (TF_CALL(env, tf_get_array_length, TF_GET_ARRAY_LENGTH)(env, numbers) < 3)
    return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_test result;
  memset(&result, 0, sizeof(result));
  const tvmflow_test_options options = {
      .struct_size = sizeof(options),
      .runs = (uint32_t)runs,
      .pause_ms = (uint32_t)pause_ms,
      .budget_ms = (uint32_t)budget_ms,
      .flags = (uint32_t)flags,
  };
  opened->status = opened->library.self_test_with(opened->model, &options, &result);
  const double values[3] = {result.largest_error, result.tolerance_used, (double)result.compared};
  TF_CALL(env, tf_set_double_region, TF_SET_DOUBLE_ARRAY_REGION)(env, numbers, 0, 3, values);
  return opened->status;
}
