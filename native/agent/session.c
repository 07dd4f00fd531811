#include "session.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Time after a request's limit at which the session ends itself.
enum { ALARM_S = 2 };

typedef struct object {
  uint32_t handle;
  agent_object kind;
  void* value;
} object;

static object* objects;
static size_t object_count;
static uint32_t next_handle;

bool agent_send_part(agent_call* call) {
  agent_writer* const w = &call->answer;
  if (call->failed) return false;
  if (w->bad) {
    agent_fail(call, AGENT_MEMORY, 0, "", "A part of the answer is longer than a frame.");
    return false;
  }
  const bool sent = agent_write_frame(call->connection, -1, (uint16_t)(call->kind | AGENT_PART),
                                      call->id, 0, w->begin, w->used);
  w->used = 0;
  call->failed = !sent;
  return sent;
}

bool agent_send_data(agent_call* call, void (*begin)(agent_writer*, const void*),
                     const void* context, const void* data, size_t bytes) {
  size_t offset = 0;
  do {
    const size_t left = bytes - offset;
    const size_t part = left < AGENT_PART_BYTES ? left : (size_t)AGENT_PART_BYTES;
    if (begin) begin(&call->answer, context);
    agent_put_u64(&call->answer, offset);
    agent_put_bytes(&call->answer, (const uint8_t*)data + offset, part);
    if (!agent_send_part(call)) return false;
    offset += part;
  } while (offset < bytes);
  return true;
}

void agent_fail(agent_call* call, uint32_t code, uint32_t detail, const char* remedy,
                const char* format, ...) {
  static char message[AGENT_MAX_TEXT];
  if (call->failed) return;
  call->failed = true;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  agent_writer* const w = &call->answer;
  w->used = 0;
  w->bad = false;
  agent_put_u32(w, code);
  agent_put_u32(w, detail);
  agent_put_text(w, message);
  agent_put_text(w, remedy);
  agent_write_frame(call->connection, -1, AGENT_ERROR, call->id, 0, w->begin, w->used);
}

bool agent_check_fields(agent_call* call) {
  if (agent_read_all(&call->in)) return true;
  agent_fail(call, AGENT_PROTOCOL, 0, "",
             "The fields of a request of kind %u do not fit the protocol.", call->kind);
  return false;
}

bool agent_is_cancelled(agent_call* call) {
  if (!atomic_load(&call->shared->cancelled)) return false;
  agent_fail(call, AGENT_CANCELLED, 0, "", "The request was cancelled.");
  return true;
}

uint32_t agent_add_object(agent_call* call, agent_object kind, void* value) {
  object* const more = realloc(objects, (object_count + 1) * sizeof(object));
  if (!more) {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for another object.");
    return 0;
  }
  objects = more;
  objects[object_count++] = (object){next_handle, kind, value};
  return next_handle++;
}

void* agent_find_object(agent_call* call, agent_object kind, uint32_t handle) {
  for (size_t i = 0; i < object_count; ++i)
    if (objects[i].handle == handle && objects[i].kind == kind) return objects[i].value;
  agent_fail(call, AGENT_MISSING, 0, "Open it again.",
             "Handle %u names no object of its kind in this session.", handle);
  return NULL;
}

void* agent_take_object(agent_object kind, uint32_t handle) {
  for (size_t i = 0; i < object_count; ++i) {
    if (objects[i].handle != handle || objects[i].kind != kind) continue;
    void* const value = objects[i].value;
    objects[i] = objects[--object_count];
    return value;
  }
  return NULL;
}

static void (*handler_of(uint16_t kind))(agent_call*) {
  switch (kind) {
    case AGENT_FACTS:
      return agent_facts;
    case AGENT_OPEN:
      return agent_open;
    case AGENT_CLOSE:
      return agent_close;
    case AGENT_RUN:
      return agent_run;
    case AGENT_TIME:
      return agent_time;
    case AGENT_PROFILE:
      return agent_profile;
    case AGENT_SELF_TEST:
      return agent_self_test;
    case AGENT_TUNE:
      return agent_tune;
    case AGENT_DESCRIBE:
      return agent_describe;
    case AGENT_BINARIES:
      return agent_binaries;
    case AGENT_BUILD:
      return agent_build;
    case AGENT_ALLOCATE:
      return agent_allocate;
    case AGENT_WRITE:
      return agent_write;
    case AGENT_FILL:
      return agent_fill;
    case AGENT_READ:
      return agent_read;
    case AGENT_LAUNCH:
      return agent_launch;
    case AGENT_FREE:
      return agent_free;
    default:
      return NULL;
  }
}

void agent_serve(int connection, const agent_store* store, agent_shared* shared,
                 uint32_t first_handle) {
  agent_frame frame = {.payload = malloc(AGENT_MAX_PAYLOAD)};
  uint8_t* const answer = malloc(AGENT_MAX_PAYLOAD);
  const char* wrong;
  next_handle = first_handle;
  while (frame.payload && answer && agent_read_frame(connection, -1, &frame, &wrong) == 1) {
    agent_call call = {
        .kind = frame.kind,
        .id = frame.id,
        .connection = connection,
        .store = store,
        .shared = shared,
        .in = {frame.payload, frame.payload + frame.bytes, false},
        .answer = {answer, 0, AGENT_MAX_PAYLOAD, false},
    };
    void (*const handle)(agent_call*) = handler_of(frame.kind);
    // The main process ends a late request, unless it is waiting for a host that has stalled.
    alarm(frame.limit_ms / 1000 + ALARM_S);
    if (handle)
      handle(&call);
    else
      agent_fail(&call, AGENT_PROTOCOL, 0, "", "Requests have no kind %u.", frame.kind);
    if (!call.failed && call.answer.bad)
      agent_fail(&call, AGENT_MEMORY, 0, "", "The answer is longer than a frame.");
    if (!call.failed)
      agent_write_frame(connection, -1, (uint16_t)(frame.kind | AGENT_ANSWER), frame.id, 0,
                        call.answer.begin, call.answer.used);
    alarm(0);
  }
  free(frame.payload);
  free(answer);
}
