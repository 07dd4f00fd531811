#include "frames.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static const uint8_t magic[4] = {'T', 'V', 'M', 'A'};

uint32_t agent_crc32(uint32_t crc, const void* data, size_t bytes) {
  static uint32_t table[256];
  if (!table[1]) {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
      table[i] = value;
    }
  }
  crc = ~crc;
  for (const uint8_t* at = data; bytes > 0; --bytes) crc = crc >> 8 ^ table[(crc ^ *at++) & 255];
  return ~crc;
}

static void store(uint8_t* at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t fetch(const uint8_t* at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= (uint64_t)at[i] << 8 * i;
  return value;
}

// Waits until a file that does not block can be read or written; false: not in time.
static bool wait_for(int file, short events, int wait_ms) {
  struct pollfd one = {.fd = file, .events = events};
  int ready;
  do {
    ready = poll(&one, 1, wait_ms);
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// Returns the number of bytes read before the end of the file; -1 on failure.
static ssize_t read_fully(int file, int wait_ms, uint8_t* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = read(file, to + done, bytes - done);
    if (got == 0) break;
    if (got > 0)
      done += (size_t)got;
    else if (errno == EAGAIN ? !wait_for(file, POLLIN, wait_ms) : errno != EINTR)
      return -1;
  }
  return (ssize_t)done;
}

bool agent_write_bytes(int file, int wait_ms, const uint8_t* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t put = write(file, from, bytes);
    if (put >= 0) {
      from += put;
      bytes -= (size_t)put;
    } else if (errno == EAGAIN ? !wait_for(file, POLLOUT, wait_ms) : errno != EINTR) {
      return false;
    }
  }
  return true;
}

int agent_read_frame(int file, int wait_ms, agent_frame* frame, const char** wrong) {
  uint8_t header[AGENT_HEADER_BYTES];
  const ssize_t got = read_fully(file, wait_ms, header, sizeof(header));
  if (got == 0) return 0;
  *wrong = "the connection ended, or stalled, within a frame";
  if (got != (ssize_t)sizeof(header)) return -1;
  *wrong = "a frame does not begin with TVMA";
  if (memcmp(header, magic, sizeof(magic)) != 0) return -1;
  frame->kind = (uint16_t)fetch(header + 4, 2);
  frame->id = (uint32_t)fetch(header + 8, 4);
  frame->limit_ms = (uint32_t)fetch(header + 12, 4);
  frame->bytes = (uint32_t)fetch(header + 16, 4);
  *wrong = "a frame is longer than the limit";
  if (frame->bytes > AGENT_MAX_PAYLOAD) return -1;
  *wrong = "the connection ended, or stalled, within a frame";
  if (read_fully(file, wait_ms, frame->payload, frame->bytes) != (ssize_t)frame->bytes) return -1;
  *wrong = "a frame's checksum is wrong";
  const uint32_t crc = agent_crc32(agent_crc32(0, header, 20), frame->payload, frame->bytes);
  if (crc != (uint32_t)fetch(header + 20, 4)) return -1;
  *wrong = "the bytes 6 and 7 of a frame are not 0";
  if (fetch(header + 6, 2) != 0) return -1;
  *wrong = NULL;
  return 1;
}

void agent_put_header(uint8_t* header, uint16_t kind, uint32_t id, uint32_t limit_ms,
                      const void* payload, uint32_t bytes) {
  memset(header, 0, AGENT_HEADER_BYTES);
  memcpy(header, magic, sizeof(magic));
  store(header + 4, kind, 2);
  store(header + 8, id, 4);
  store(header + 12, limit_ms, 4);
  store(header + 16, bytes, 4);
  store(header + 20, agent_crc32(agent_crc32(0, header, 20), payload, bytes), 4);
}

bool agent_write_frame(int file, int wait_ms, uint16_t kind, uint32_t id, uint32_t limit_ms,
                       const void* payload, uint32_t bytes) {
  uint8_t header[AGENT_HEADER_BYTES];
  agent_put_header(header, kind, id, limit_ms, payload, bytes);
  return agent_write_bytes(file, wait_ms, header, sizeof(header)) &&
         agent_write_bytes(file, wait_ms, payload, bytes);
}

const uint8_t* agent_get_bytes(agent_reader* reader, size_t bytes) {
  const uint8_t* const at = reader->at;
  if (reader->bad || (size_t)(reader->end - at) < bytes) {
    reader->bad = true;
    return NULL;
  }
  reader->at += bytes;
  return at;
}

uint32_t agent_get_u32(agent_reader* reader) {
  const uint8_t* const at = agent_get_bytes(reader, 4);
  return at ? (uint32_t)fetch(at, 4) : 0;
}

uint64_t agent_get_u64(agent_reader* reader) {
  const uint8_t* const at = agent_get_bytes(reader, 8);
  return at ? fetch(at, 8) : 0;
}

double agent_get_f64(agent_reader* reader) {
  const uint64_t bits = agent_get_u64(reader);
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t agent_get_count(agent_reader* reader, uint32_t most) {
  const uint32_t count = agent_get_u32(reader);
  if (count <= most) return count;
  reader->bad = true;
  return 0;
}

const char* agent_get_text(agent_reader* reader, char* memory, size_t bytes) {
  const uint32_t length = agent_get_count(reader, AGENT_MAX_TEXT);
  const uint8_t* const at = agent_get_bytes(reader, length);
  *memory = 0;
  if (!at) return memory;
  if (length >= bytes || memchr(at, 0, length)) {
    reader->bad = true;
    return memory;
  }
  memcpy(memory, at, length);
  memory[length] = 0;
  return memory;
}

bool agent_read_all(const agent_reader* reader) {
  return !reader->bad && reader->at == reader->end;
}

void agent_put_bytes(agent_writer* writer, const void* data, size_t bytes) {
  if (writer->bad || bytes > writer->limit - writer->used) {
    writer->bad = true;
    return;
  }
  if (bytes > 0) memcpy(writer->begin + writer->used, data, bytes);
  writer->used += (uint32_t)bytes;
}

void agent_put_u32(agent_writer* writer, uint32_t value) {
  uint8_t bytes[4];
  store(bytes, value, 4);
  agent_put_bytes(writer, bytes, sizeof(bytes));
}

void agent_put_u64(agent_writer* writer, uint64_t value) {
  uint8_t bytes[8];
  store(bytes, value, 8);
  agent_put_bytes(writer, bytes, sizeof(bytes));
}

void agent_put_f64(agent_writer* writer, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  agent_put_u64(writer, bits);
}

void agent_put_text(agent_writer* writer, const char* text) {
  const size_t length = strlen(text);
  agent_put_u32(writer, (uint32_t)length);
  agent_put_bytes(writer, text, length);
}
