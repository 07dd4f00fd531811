// The session: the child process that touches drivers and libraries, one request at a time.
#pragma once

#include <stdatomic.h>

#include "frames.h"
#include "store.h"

// What the main process and its sessions share, in memory that both have mapped.
typedef struct agent_shared {
  atomic_bool cancelled;  // the host has cancelled the request that is in progress
} agent_shared;

// A request on its way through the session.
typedef struct agent_call {
  uint16_t kind;
  uint32_t id;
  int connection;
  const agent_store* store;
  agent_shared* shared;
  agent_reader in;      // the request's fields
  agent_writer answer;  // takes the fields of the answer; for a part, `agent_send_part` sends them
  bool failed;          // ERROR was sent, or the connection has ended
} agent_call;

// Sends the fields written to `answer` as a part, and empties it.  Returns false, and fails the
// call, if they did not fit or the connection has ended.
bool agent_send_part(agent_call* call);
// Sends data of any size as parts, each of which begins with `prefix` fields that `begin` writes:
// a part has the data's offset as a u64, then at most AGENT_PART_BYTES of it.
bool agent_send_data(agent_call* call, void (*begin)(agent_writer*, const void* context),
                     const void* context, const void* data, size_t bytes);
// Sends ERROR, unless one was sent.  `remedy` may be "".
void agent_fail(agent_call* call, uint32_t code, uint32_t detail, const char* remedy,
                const char* format, ...) __attribute__((format(printf, 5, 6)));
// Returns whether all fields of the request were read, and nothing is left; fails the call with
// PROTOCOL if not.
bool agent_check_fields(agent_call* call);
// Returns whether the host has cancelled the call, and then fails it.
bool agent_is_cancelled(agent_call* call);

// Objects that the host names by handles.
typedef enum agent_object { AGENT_MODEL, AGENT_PROGRAM, AGENT_MEMORY_OBJECT } agent_object;
// Returns the object's new handle; 0, and fails the call: there is no memory.
uint32_t agent_add_object(agent_call* call, agent_object kind, void* object);
// Returns an object; NULL, and fails the call, if there is none of this kind.
void* agent_find_object(agent_call* call, agent_object kind, uint32_t handle);
// Forgets an object and returns it; NULL: there is none of this kind.
void* agent_take_object(agent_object kind, uint32_t handle);

// Serves requests until the connection to the main process ends.  Objects are numbered starting at
// `first_handle`.
void agent_serve(int connection, const agent_store* store, agent_shared* shared,
                 uint32_t first_handle);

// models.c: standalone libraries.
void agent_open(agent_call* call);
void agent_close(agent_call* call);
void agent_run(agent_call* call);
void agent_time(agent_call* call);
void agent_profile(agent_call* call);
void agent_self_test(agent_call* call);
void agent_tune(agent_call* call);
void agent_describe(agent_call* call);
void agent_binaries(agent_call* call);

// kernels.c: programs, memory and launches.
void agent_build(agent_call* call);
void agent_allocate(agent_call* call);
void agent_write(agent_call* call);
void agent_fill(agent_call* call);
void agent_read(agent_call* call);
void agent_launch(agent_call* call);
void agent_free(agent_call* call);

// facts.c
void agent_facts(agent_call* call);
// sensors.c: writes the JSON of SENSORS, as a text of at most `bytes` bytes.
void agent_sensors(char* text, size_t bytes);
