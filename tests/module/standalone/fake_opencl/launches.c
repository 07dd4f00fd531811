// Launches, enqueued or recorded by cl_khr_command_buffer and cl_qcom_recordable_queues.
#include <string.h>

#include "fake.h"

enum { CL_INVALID_COMMAND_BUFFER = -1138 };

static void destroy_recording(fake_object* object) {
  fake_recording* recording = (fake_recording*)object;
  const fake_queue* replayed = recording->replayed;
  const fake_command* running = replayed && !replayed->lost ? replayed->first : NULL;
  for (; running && recording->first; running = running->next)
    if (running->kernel == recording->first->kernel)
      fake_wrong("releasing a recording", 0, "it still runs");
  while (recording->first) {
    fake_command* command = recording->first;
    recording->first = command->next;
    fake_free_command(command);
  }
  if (recording->queue->recording == recording) recording->queue->recording = NULL;
  fake_unuse(&recording->queue->object);
}

static fake_recording* new_recording(fake_queue* queue) {
  fake_recording* recording =
      fake_new(sizeof(*recording), FAKE_RECORDING, queue->object.context, destroy_recording);
  recording->queue = queue;
  fake_use(&queue->object);
  return recording;
}

static void record(fake_recording* recording, fake_kernel* kernel) {
  fake_command* command = fake_new_command(recording->queue, NULL);
  fake_take_arguments(command, kernel);
  if (recording->last)
    recording->last->next = command;
  else
    recording->first = command;
  recording->last = command;
  ++recording->launches;
}

// Enqueues copies of what was recorded, with the arguments of then.
static cl_int replay(fake_recording* recording, fake_queue* queue) {
  recording->replayed = queue;
  fake_note("replays");
  for (const fake_command* from = recording->first; from; from = from->next) {
    fake_command* command = fake_new_command(queue, NULL);
    if (!command) return CL_OUT_OF_HOST_MEMORY;
    command->replayed = true;
    fake_take_arguments(command, from->kernel);
    for (uint32_t i = 0; i < from->kernel->argument_count; ++i)
      if (command->arguments[i].memory) fake_unuse(&command->arguments[i].memory->object);
    memcpy(command->arguments, from->arguments, sizeof(command->arguments));
    for (uint32_t i = 0; i < from->kernel->argument_count; ++i)
      if (command->arguments[i].memory) fake_use(&command->arguments[i].memory->object);
    fake_submit(queue, command, false);
  }
  return CL_SUCCESS;
}

FAKE_API cl_int clEnqueueNDRangeKernel(cl_command_queue queue_handle, cl_kernel handle,
                                       cl_uint dimensions, const size_t* offset,
                                       const size_t* global, const size_t* local, cl_uint count,
                                       const cl_event* waited, cl_event* event) {
  if (fake_stub) {
    if (event) *event = NULL;
    return CL_SUCCESS;
  }
  FAKE_ENTER();
  fake_queue* queue = (fake_queue*)queue_handle;
  fake_kernel* kernel = (fake_kernel*)handle;
  cl_int wrong = fake_check_launch(__func__, queue, kernel, dimensions, offset, global, local);
  if (!wrong) wrong = fake_check_wait_list(__func__, count, waited);
  if (wrong) return wrong;
  if (queue->properties & FAKE_QUEUE_RECORDABLE) {
    fake_recording* recording = queue->recording;
    FAKE_REQUIRE(recording && !recording->complete, CL_INVALID_OPERATION, "nothing is recorded");
    FAKE_REQUIRE(recording->launches < fake_number("RECORDABLE"), CL_INVALID_OPERATION,
                 "more launches than one recording takes");
    FAKE_REQUIRE(!event, CL_INVALID_VALUE, "an event of a launch that is recorded");
    record(recording, kernel);
    return CL_SUCCESS;
  }
  fake_command* command = fake_new_command(queue, event);
  if (!command) return CL_OUT_OF_HOST_MEMORY;
  fake_take_arguments(command, kernel);
  return fake_submit(queue, command, false);
}

// ---- cl_khr_command_buffer ------------------------------------------------------------------

FAKE_API void* clCreateCommandBufferKHR(cl_uint count, const cl_command_queue* queues,
                                        const cl_ulong* properties, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(count == 1 && queues && fake_alive(queues[0], FAKE_QUEUE), code,
                      CL_INVALID_COMMAND_QUEUE, "not one queue");
  FAKE_REQUIRE_CREATE(!properties || !*properties, code, CL_INVALID_VALUE, "properties");
  return new_recording((fake_queue*)queues[0]);
}

#define REQUIRE_BUFFER(buffer, want_complete)                                                      \
  FAKE_REQUIRE(fake_alive(buffer, FAKE_RECORDING), CL_INVALID_COMMAND_BUFFER,                      \
               "no command buffer");                                                               \
  FAKE_REQUIRE(((fake_recording*)(buffer))->complete == (want_complete), CL_INVALID_OPERATION,     \
               "it is %sfinalized", (want_complete) ? "not " : "")

FAKE_API cl_int clCommandNDRangeKernelKHR(void* buffer, cl_command_queue queue,
                                          const cl_ulong* properties, cl_kernel handle,
                                          cl_uint dimensions, const size_t* offset,
                                          const size_t* global, const size_t* local, cl_uint count,
                                          const cl_uint* waited, cl_uint* point,
                                          void** mutable_handle) {
  FAKE_ENTER();
  REQUIRE_BUFFER(buffer, false);
  FAKE_REQUIRE(!queue, CL_INVALID_COMMAND_QUEUE, "a queue, in version 0.9");
  FAKE_REQUIRE(!properties && !mutable_handle, CL_INVALID_VALUE, "properties");
  FAKE_REQUIRE(!count && !waited && !point, -1139, "synchronization is not needed in order");
  fake_recording* recording = buffer;
  fake_kernel* kernel = (fake_kernel*)handle;
  const cl_int wrong =
      fake_check_launch(__func__, recording->queue, kernel, dimensions, offset, global, local);
  if (!wrong) record(recording, kernel);
  return wrong;
}

FAKE_API cl_int clFinalizeCommandBufferKHR(void* buffer) {
  FAKE_ENTER();
  REQUIRE_BUFFER(buffer, false);
  ((fake_recording*)buffer)->complete = true;
  return CL_SUCCESS;
}

FAKE_API cl_int clEnqueueCommandBufferKHR(cl_uint count, cl_command_queue* queues, void* buffer,
                                          cl_uint waited, const cl_event* events, cl_event* event) {
  if (fake_stub) return CL_SUCCESS;
  FAKE_ENTER();
  REQUIRE_BUFFER(buffer, true);
  FAKE_REQUIRE(!queues == (count == 0), CL_INVALID_VALUE, "%u queues", count);
  FAKE_REQUIRE(!event, CL_INVALID_VALUE, "an event is not understood here");
  const cl_int wrong = fake_check_wait_list(__func__, waited, events);
  fake_recording* recording = buffer;
  // Without CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR, which is not asked for.
  for (const fake_command* c = recording->queue->first; !wrong && c; c = c->next)
    FAKE_REQUIRE(c->kernel != recording->first->kernel, CL_INVALID_OPERATION, "it still runs");
  return wrong ? wrong : replay(recording, recording->queue);
}

// ---- cl_qcom_recordable_queues --------------------------------------------------------------

FAKE_API void* clNewRecordingQCOM(cl_command_queue handle, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  fake_queue* queue = (fake_queue*)handle;
  FAKE_REQUIRE_CREATE(fake_alive(handle, FAKE_QUEUE) && queue->properties & FAKE_QUEUE_RECORDABLE,
                      code, CL_INVALID_COMMAND_QUEUE, "no recordable queue");
  FAKE_REQUIRE_CREATE(!queue->recording, code, CL_INVALID_OPERATION, "it is recording");
  queue->recording = new_recording(queue);
  return queue->recording;
}

FAKE_API cl_int clEndRecordingQCOM(void* handle) {
  FAKE_ENTER();
  fake_recording* recording = handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_RECORDING) && !recording->complete, CL_INVALID_VALUE,
               "nothing is recorded");
  recording->complete = true;
  recording->queue->recording = NULL;
  return CL_SUCCESS;
}

FAKE_API cl_int clEnqueueRecordingQCOM(cl_command_queue handle, void* recording, size_t arguments,
                                       const void* argument, size_t offsets, const void* offset,
                                       size_t globals, const void* global, size_t locals,
                                       const void* local, cl_uint count, const cl_event* waited,
                                       cl_event* event) {
  if (fake_stub) return CL_SUCCESS;
  FAKE_ENTER();
  fake_queue* queue = (fake_queue*)handle;
  FAKE_REQUIRE(fake_alive(recording, FAKE_RECORDING) && ((fake_recording*)recording)->complete,
               CL_INVALID_VALUE, "no finished recording");
  FAKE_REQUIRE(fake_alive(handle, FAKE_QUEUE) && !(queue->properties & FAKE_QUEUE_RECORDABLE),
               CL_INVALID_COMMAND_QUEUE, "a recording is enqueued on another queue");
  FAKE_REQUIRE(!arguments && !argument && !offsets && !offset && !globals && !global && !locals &&
                   !local && !event,
               CL_INVALID_VALUE, "changes are not understood here");
  const cl_int wrong = fake_check_wait_list(__func__, count, waited);
  return wrong ? wrong : replay(recording, queue);
}

// ---- How extensions are found ---------------------------------------------------------------

FAKE_API cl_mem clImportMemoryARM(cl_context, cl_bitfield, const intptr_t*, void*, size_t, cl_int*);

static void* find_extension(const char* name) {
  static const struct {
    const char* name;
    void* function;
  } all[] = {
      {"clCreateCommandBufferKHR", clCreateCommandBufferKHR},
      {"clCommandNDRangeKernelKHR", clCommandNDRangeKernelKHR},
      {"clFinalizeCommandBufferKHR", clFinalizeCommandBufferKHR},
      {"clEnqueueCommandBufferKHR", clEnqueueCommandBufferKHR},
      {"clReleaseCommandBufferKHR", clReleaseCommandBufferKHR},
      {"clNewRecordingQCOM", clNewRecordingQCOM},
      {"clEndRecordingQCOM", clEndRecordingQCOM},
      {"clEnqueueRecordingQCOM", clEnqueueRecordingQCOM},
      {"clReleaseRecordingQCOM", clReleaseRecordingQCOM},
      {"clImportMemoryARM", clImportMemoryARM},
  };
  if (strcmp(name, "clIcdGetPlatformIDsKHR") == 0) return clGetPlatformIDs;
  const size_t length = strlen(name);
  const char* extension = length > 4 && strcmp(name + length - 4, "QCOM") == 0
                              ? "cl_qcom_recordable_queues"
                          : strcmp(name, "clImportMemoryARM") == 0 ? "cl_arm_import_memory"
                                                                   : "cl_khr_command_buffer";
  if (!fake_has_extension(extension)) return NULL;
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i)
    if (strcmp(all[i].name, name) == 0) return all[i].function;
  return NULL;
}

FAKE_API void* clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char* name) {
  FAKE_GUARD();
  if (fake_enter(__func__)) return NULL;
  if (!fake_alive(platform, FAKE_PLATFORM)) {
    fake_wrong(__func__, 0, "no platform");
    return NULL;
  }
  return find_extension(name);
}

FAKE_API void* clGetExtensionFunctionAddress(const char* name) {
  FAKE_GUARD();
  return fake_enter(__func__) ? NULL : find_extension(name);
}
