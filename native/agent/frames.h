// Frames of the agent's protocol, and the fields in them (docs/agent-protocol.md).
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

typedef struct agent_frame {
  uint16_t kind;
  uint32_t id;
  uint32_t limit_ms;
  uint32_t bytes;    // of the payload
  uint8_t* payload;  // of AGENT_MAX_PAYLOAD bytes, owned by the caller
} agent_frame;

// Reads a frame, which must have its payload's memory; between two bytes it waits at most `wait_ms`
// (-1: for any time), which needs a file that does not block.  Returns 1; 0 if the other side has
// closed the connection; -1 if it failed or the frame is damaged, and sets `wrong` to the reason.
int agent_read_frame(int file, int wait_ms, agent_frame* frame, const char** wrong);
// Writes bytes of frames, waiting likewise; false: the connection has ended.
bool agent_write_bytes(int file, int wait_ms, const uint8_t* from, size_t bytes);
// Stores the AGENT_HEADER_BYTES before a payload.
void agent_put_header(uint8_t* header, uint16_t kind, uint32_t id, uint32_t limit_ms,
                      const void* payload, uint32_t bytes);
// Writes a frame, waiting likewise; false: the connection has ended.
bool agent_write_frame(int file, int wait_ms, uint16_t kind, uint32_t id, uint32_t limit_ms,
                       const void* payload, uint32_t bytes);

// Reads fields of a payload in order.  After a field that is cut short or too long, all are zeros
// and `bad` is set.
typedef struct agent_reader {
  const uint8_t* at;
  const uint8_t* end;
  bool bad;
} agent_reader;

uint32_t agent_get_u32(agent_reader* reader);
uint64_t agent_get_u64(agent_reader* reader);
double agent_get_f64(agent_reader* reader);
// Returns a count, at most `most`.
uint32_t agent_get_count(agent_reader* reader, uint32_t most);
// Returns bytes in place, NULL if they are cut short.
const uint8_t* agent_get_bytes(agent_reader* reader, size_t bytes);
// Returns a text that ends with a zero byte, in `memory` of `bytes` bytes; "" if it is bad, does
// not fit, or contains a zero byte.
const char* agent_get_text(agent_reader* reader, char* memory, size_t bytes);
// Returns whether all fields were read, and nothing is left.
bool agent_read_all(const agent_reader* reader);

// Writes fields of a payload.  What does not fit is left out, and `bad` is set.
typedef struct agent_writer {
  uint8_t* begin;
  uint32_t used;
  uint32_t limit;
  bool bad;
} agent_writer;

void agent_put_u32(agent_writer* writer, uint32_t value);
void agent_put_u64(agent_writer* writer, uint64_t value);
void agent_put_f64(agent_writer* writer, double value);
void agent_put_bytes(agent_writer* writer, const void* data, size_t bytes);
void agent_put_text(agent_writer* writer, const char* text);

// CRC-32 as in zlib and PNG (polynomial 0xEDB88320); `crc` continues an earlier one, 0 at first.
uint32_t agent_crc32(uint32_t crc, const void* data, size_t bytes);
