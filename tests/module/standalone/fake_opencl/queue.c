// Queues, whose commands are executed when somebody waits, and events.
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static cl_ulong clock_ns = 1000;
enum { kCommandNs = 1500 };

void fake_pass(cl_ulong ns) { clock_ns += ns; }

void fake_free_command(fake_command* command) {
  if (command->source) fake_unuse(&command->source->object);
  if (command->destination) fake_unuse(&command->destination->object);
  if (command->kernel) {
    for (uint32_t i = 0; i < command->kernel->argument_count; ++i)
      if (command->arguments[i].memory) fake_unuse(&command->arguments[i].memory->object);
    fake_unuse(&command->kernel->object);
  }
  if (command->event) fake_unuse(&command->event->object);
  free(command);
}

static void execute(const fake_command* command) {
  if (command->event) command->event->times[2] = clock_ns;
  clock_ns += kCommandNs;
  if (command->what == FAKE_COPY) {
    const unsigned char* from = command->source ? command->source->data : command->host;
    unsigned char* to = command->destination ? command->destination->data : command->host;
    from += command->source_begin;
    to += command->destination_begin;
    for (size_t z = 0; z < command->extent[2]; ++z)
      for (size_t y = 0; y < command->extent[1]; ++y)
        memcpy(to + z * command->destination_pitch[1] + y * command->destination_pitch[0],
               from + z * command->source_pitch[1] + y * command->source_pitch[0],
               command->extent[0]);
  } else {
    fake_run_kernel(command);
  }
  if (command->event) {
    command->event->times[3] = clock_ns;
    command->event->complete = true;
  }
}

void fake_execute_all(fake_queue* queue) {
  while (queue->first) {
    fake_command* command = queue->first;
    queue->first = command->next;
    execute(command);
    fake_free_command(command);
  }
  queue->last = NULL;
}

void fake_abandon(fake_queue* queue) {
  while (queue->first) {
    fake_command* command = queue->first;
    queue->first = command->next;
    fake_free_command(command);
  }
}

FAKE_API cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id device,
                                               cl_bitfield properties, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(fake_alive(context, FAKE_CONTEXT), code, CL_INVALID_CONTEXT, "no context");
  FAKE_REQUIRE_CREATE(fake_alive(device, FAKE_DEVICE), code, CL_INVALID_DEVICE, "no device");
  const bool recordable = properties & FAKE_QUEUE_RECORDABLE;
  FAKE_REQUIRE_CREATE(!recordable || fake_has_extension("cl_qcom_recordable_queues"), code,
                      CL_INVALID_QUEUE_PROPERTIES, "the device has no recordable queues");
  FAKE_REQUIRE_CREATE(!((properties & ~(cl_bitfield)FAKE_QUEUE_RECORDABLE) >> 2), code,
                      CL_INVALID_VALUE, "properties 0x%llx", (unsigned long long)properties);
  fake_queue* queue = fake_new(sizeof(*queue), FAKE_QUEUE, (fake_object*)context, NULL);
  queue->properties = properties;
  return (cl_command_queue)queue;
}

const char* fake_asked_priority = "";
FAKE_API const char* fake_priority(void) {
  const char* const asked = fake_asked_priority;
  fake_asked_priority = "";
  return asked;
}

FAKE_API cl_command_queue clCreateCommandQueueWithProperties(cl_context context,
                                                             cl_device_id device,
                                                             const cl_ulong* properties,
                                                             cl_int* code) {
  if (properties && properties[0] == 0x1093 && properties[2] == 0x1096 && !properties[4] &&
      fake_has_extension("cl_khr_priority_hints"))
    fake_asked_priority = properties[3] == 4 ? "low" : properties[3] == 1 ? "high" : "wrong";
  return clCreateCommandQueue(context, device, properties[1], code);
}

static void destroy_event(fake_object* object) {
  fake_unuse(&((fake_event*)object)->queue->object);
}

fake_command* fake_new_command(fake_queue* queue, cl_event* event) {
  fake_command* command = calloc(1, sizeof(*command));
  if (!command || !event) return command;
  fake_event* made = fake_new(sizeof(*made), FAKE_EVENT, queue->object.context, destroy_event);
  made->queue = queue;
  fake_use(&queue->object);
  made->profiled = queue->properties & CL_QUEUE_PROFILING_ENABLE;
  made->times[0] = made->times[1] = clock_ns;
  fake_use(&made->object);
  command->event = made;
  *event = (cl_event)made;
  return command;
}

cl_int fake_submit(fake_queue* queue, fake_command* command, bool blocking) {
  if (queue->last)
    queue->last->next = command;
  else
    queue->first = command;
  queue->last = command;
  if (blocking) fake_execute_all(queue);
  return CL_SUCCESS;
}

cl_int fake_check_wait_list(const char* function, cl_uint count, const cl_event* events) {
  if (!events != (count == 0))
    return fake_wrong(function, CL_INVALID_EVENT_WAIT_LIST, "%u events at %p", count,
                      (const void*)events);
  for (cl_uint i = 0; i < count; ++i)
    if (!fake_alive(events[i], FAKE_EVENT))
      return fake_wrong(function, CL_INVALID_EVENT_WAIT_LIST, "event %u is not alive", i);
  return CL_SUCCESS;
}

static cl_int check_queue(const char* function, cl_command_queue handle) {
  return fake_alive(handle, FAKE_QUEUE)
             ? CL_SUCCESS
             : fake_wrong(function, CL_INVALID_COMMAND_QUEUE, "no queue");
}

FAKE_API cl_int clFlush(cl_command_queue queue) {
  if (fake_stub) return CL_SUCCESS;
  FAKE_ENTER();
  return check_queue(__func__, queue);
}

FAKE_API cl_int clFinish(cl_command_queue queue) {
  if (fake_stub) return CL_SUCCESS;
  FAKE_GUARD();
  const cl_int failure = fake_enter(__func__);
  const cl_int wrong = check_queue(__func__, queue);
  if (failure && !wrong) ((fake_queue*)queue)->lost = true;
  if (failure) return failure;
  if (!wrong) fake_execute_all((fake_queue*)queue);
  return wrong;
}

FAKE_API cl_int clWaitForEvents(cl_uint count, const cl_event* events) {
  FAKE_ENTER();
  FAKE_REQUIRE(count > 0, CL_INVALID_VALUE, "no events");
  const cl_int wrong = fake_check_wait_list(__func__, count, events);
  for (cl_uint i = 0; !wrong && i < count; ++i) fake_execute_all(((fake_event*)events[i])->queue);
  return wrong;
}

FAKE_API cl_int clGetEventProfilingInfo(cl_event handle, cl_uint what, size_t room,
                                        void* destination, size_t* needed) {
  FAKE_ENTER();
  const fake_event* event = (const fake_event*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_EVENT), CL_INVALID_EVENT, "no event");
  FAKE_REQUIRE(event->profiled && event->complete, CL_PROFILING_INFO_NOT_AVAILABLE,
               "the queue does not profile, or nobody waited");
  FAKE_REQUIRE(what >= 0x1280 && what <= 0x1283, CL_INVALID_VALUE, "0x%x is unknown", what);
  return fake_give(__func__, &event->times[what - 0x1280], sizeof(cl_ulong), room, destination,
                   needed);
}

FAKE_API cl_int clGetEventInfo(cl_event handle, cl_uint what, size_t room, void* destination,
                               size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(handle, FAKE_EVENT), CL_INVALID_EVENT, "no event");
  FAKE_REQUIRE(what == 0x11D3, CL_INVALID_VALUE, "0x%x is unknown", what);  // execution status
  const cl_int status = ((const fake_event*)handle)->complete ? 0 : 3;
  return fake_give(__func__, &status, sizeof(status), room, destination, needed);
}
