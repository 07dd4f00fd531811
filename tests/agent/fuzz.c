// Sends valid and mutated requests to the agent's session and main process, in this process.
//
//   fuzz session FOLDER COUNT SEED LIBRARY   requests to `agent_serve`, whose driver is the fake
//                                            one, and whose library is the mock model
//   fuzz main FOLDER COUNT SEED              frames to `agent_supervise`; the answers of a session
//                                            are made up, and damaged as well
//
// Each request must be answered once, or the connection must end; the sanitizers find the rest.
// Prints for each kind how many requests succeeded, were refused, and ended the connection.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "agent/session.h"
#include "agent/supervisor.h"
#include "bindings/tvmflow.h"
#include "core/sha256_state.h"

enum { ROOM = 1 << 16, POOL = 8, CANCEL_MS = 20, STUCK_MS = 20000, KINDS = 64 };

static uint64_t state;
static uint64_t session_state;  // of the answers of a session that this program plays

static uint64_t draw(void) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static uint32_t below(uint32_t count) { return (uint32_t)(draw() % count); }
static bool one_in(uint32_t count) { return below(count) == 0; }

static struct {
  unsigned good, refused, ended;
} counts[KINDS];

static void count_kind(uint16_t kind, int outcome) {
  if (kind >= KINDS) return;
  unsigned* const all[] = {&counts[kind].good, &counts[kind].refused, &counts[kind].ended};
  ++*all[outcome];
}

static void stop(const char* what, uint16_t kind, unsigned number) {
  fprintf(stderr, "request %u of kind %u: %s\n", number, kind, what);
  abort();
}

// Makes reading after a frame's end an error: its memory is as large as the longest frame.
int __real_agent_read_frame(int file, int wait_ms, agent_frame* frame, const char** wrong);
int __wrap_agent_read_frame(int file, int wait_ms, agent_frame* frame, const char** wrong);

int __wrap_agent_read_frame(int file, int wait_ms, agent_frame* frame, const char** wrong) {
  __asan_unpoison_memory_region(frame->payload, AGENT_MAX_PAYLOAD);
  const int got = __real_agent_read_frame(file, wait_ms, frame, wrong);
  const uint32_t bytes = got == 1 ? frame->bytes : 0;
  __asan_poison_memory_region(frame->payload + bytes, AGENT_MAX_PAYLOAD - bytes);
  return got;
}

// -- mutations ------------------------------------------------------------------------------------

static uint64_t interesting(void) {
  static const uint64_t numbers[] = {0,
                                     1,
                                     2,
                                     3,
                                     16,
                                     17,
                                     24,
                                     128,
                                     129,
                                     4095,
                                     4096,
                                     4097,
                                     65535,
                                     65536,
                                     65537,
                                     1 << 20,
                                     (1 << 20) + 1,
                                     0x7FFFFFFF,
                                     0x80000000,
                                     0xFFFFFFFF,
                                     0x100000000,
                                     0x7FFFFFFFFFFFFFFF,
                                     0x8000000000000000,
                                     0xFFFFFFFFFFFFFFFF,
                                     0x3FF0000000000000,
                                     0x7FF8000000000000,
                                     0xFFF0000000000000};
  return numbers[below(sizeof(numbers) / sizeof(numbers[0]))];
}

// Overwrites a number of 1 to 8 bytes at a place.
static void put_number(agent_writer* w, uint32_t bytes) {
  uint64_t value = interesting();
  if (w->used < bytes) return;
  uint32_t at = below(w->used - bytes + 1);
  if (!one_in(4)) at &= ~3u;
  if (one_in(4)) {
    // A value next to the one that is there.
    memcpy(&value, w->begin + at, bytes);
    value += one_in(2) ? 1 : (uint64_t)-1;
  }
  memcpy(w->begin + at, &value, bytes);
}

static void mutate(agent_writer* w) {
  const uint32_t from = below(w->used + 1);
  const uint32_t length = below(w->used - from + 1);
  uint8_t* const at = w->begin + from;
  switch (below(8)) {
    case 0:
      if (w->used) w->begin[below(w->used)] ^= (uint8_t)(1u << below(8));
      break;
    case 1:
    case 2:
      put_number(w, 4);
      break;
    case 3:
      put_number(w, one_in(4) ? 1 : 8);
      break;
    case 4:
      w->used = from;
      break;
    case 5:
      for (uint32_t i = below(64); i > 0 && w->used < ROOM; --i)
        w->begin[w->used++] = one_in(2) ? 0 : (uint8_t)draw();
      break;
    case 6:  // repeat a part
      if (w->used + length > ROOM) break;
      memmove(at + length, at, w->used - from);
      w->used += length;
      break;
    default:  // leave out a part
      memmove(at, at + length, w->used - from - length);
      w->used -= length;
  }
}

// -- the store ------------------------------------------------------------------------------------

typedef uint8_t digest[AGENT_DIGEST_BYTES];

static digest sources[2];
static digest data_blobs[3];
static digest library;

static void add_blob(agent_store* store, const void* data, size_t bytes, uint8_t* name) {
  Sha256State hash;
  int code = 0;
  Sha256Begin(&hash);
  Sha256Add(&hash, data, bytes);
  Sha256End(&hash, name);
  agent_upload* const upload = agent_upload_begin(store, name, bytes, &code);
  if (!upload || agent_upload_add(upload, data, bytes, &code) != 1) stop("no blob", AGENT_PUT, 0);
  agent_upload_end(upload);
}

static void add_blobs(agent_store* store, const char* path) {
  static const char* const code[] = {
      "__kernel void copy(__global const float* x, __global float* y, float k) {}\n"
      "__kernel void add(__global const float* x, __global const float* w, __global float* y) {}\n",
      "__kernel void copy_image(__read_only image2d_array_t x, __write_only image2d_array_t y,"
      " __local float* z) {}\n"};
  static uint8_t data[ROOM];
  for (int i = 0; i < 2; ++i) add_blob(store, code[i], strlen(code[i]), sources[i]);
  add_blob(store, data, 24, data_blobs[0]);
  add_blob(store, data, 4096, data_blobs[1]);
  add_blob(store, data, 0, data_blobs[2]);
  FILE* const file = fopen(path, "rb");
  static uint8_t content[1 << 20];
  const size_t bytes = file ? fread(content, 1, sizeof(content), file) : 0;
  if (file) fclose(file);
  add_blob(store, content, bytes, library);
}

// -- requests to the session ----------------------------------------------------------------------

// Handles of objects that should be there.
typedef struct pool {
  uint32_t handles[POOL];
  unsigned count;
} pool;

static pool models, programs, buffers, images;

static uint32_t any(const pool* p) {
  return p->count && !one_in(50) ? p->handles[below(p->count)] : below(16);
}

static void forget(pool* p, uint32_t handle) {
  for (unsigned i = 0; i < p->count; ++i)
    if (p->handles[i] == handle) p->handles[i--] = p->handles[--p->count];
}

static void put_numbers(agent_writer* w, unsigned count, const uint32_t* values) {
  for (unsigned i = 0; i < count; ++i) agent_put_u32(w, values[i]);
}

static void put_digest(agent_writer* w, const uint8_t* name) {
  agent_put_bytes(w, name, AGENT_DIGEST_BYTES);
}

static void put_device(agent_writer* w) {
  agent_put_u32(w, one_in(20) ? 1 : 0);
  agent_put_text(w, one_in(30) ? "/missing/libOpenCL.so" : "");
}

static void put_open(agent_writer* w) {
  static const char* const faults[] = {"fail create 4", "fail run 7", "fail test 9", "integers"};
  const uint32_t files = one_in(2) ? 1 : 2;
  agent_put_text(w, "libmock.so");
  agent_put_u32(w, files);
  agent_put_text(w, "");
  put_digest(w, library);
  if (files == 2) {
    agent_put_text(w, ".weights");
    put_digest(w, data_blobs[1]);
  }
  put_numbers(w, 5, (uint32_t[]){below(3), 0, one_in(3) ? 0 : TVMFLOW_PROFILE, below(4), 0});
  agent_put_text(w, one_in(4) ? faults[below(4)] : "");
  agent_put_u32(w, below(3));
}

static void put_run(agent_writer* w) {
  const uint32_t inputs = below(3);
  agent_put_u32(w, any(&models));
  agent_put_u32(w, below(2));
  agent_put_u32(w, inputs);
  for (uint32_t i = 0; i < inputs; ++i) {
    agent_put_u32(w, i);
    agent_put_u32(w, TVMFLOW_FLOAT32);
    put_digest(w, data_blobs[0]);
  }
  const uint32_t outputs = below(2);
  agent_put_u32(w, outputs);
  for (uint32_t i = 0; i < outputs; ++i) {
    agent_put_u32(w, 0);
    agent_put_u32(w, TVMFLOW_FLOAT32);
    agent_put_u64(w, 24);
  }
}

static void put_time(agent_writer* w) {
  static const double shares[] = {0, 0.01, 0.5};
  const double share = shares[below(3)];
  uint64_t bits;
  agent_put_u32(w, any(&models));
  put_numbers(w, 4, (uint32_t[]){below(2), below(2), below(3), below(40)});
  agent_put_u64(w, one_in(2) ? UINT64_MAX : 100000);
  memcpy(&bits, &share, sizeof(bits));
  agent_put_u64(w, bits);
}

static void put_allocate(agent_writer* w, bool image) {
  static const uint32_t types[] = {0x10D0, 0x10D7, 0x10DA, 0x10DD, 0x10DE, 0x10D2};
  put_device(w);
  agent_put_u32(w, image);
  agent_put_u64(w, 4096);
  put_numbers(w, 4,
              (uint32_t[]){types[below(6)], one_in(10) ? 16383 + below(3) : 1 + below(8),
                           1 + below(4), 1 + below(4)});
}

// Writes a part of an image or buffer, without the number of bytes.
static uint64_t put_part(agent_writer* w) {
  const bool image = one_in(2);
  agent_put_u32(w, any(image ? &images : &buffers));
  put_numbers(w, 6, (uint32_t[]){one_in(8) ? below(10) : 0, 0, one_in(8) ? below(5) : 0, 1, 1, 1});
  agent_put_u64(w, image ? 0 : below(16));
  // Buffers have 4096 bytes: some parts end at their end, or after it.
  return image ? 4u << below(3) : one_in(4) ? 4080 + below(18) : 1 + below(4000);
}

static void put_argument(agent_writer* w, uint32_t kind, uint32_t handle) {
  static const uint8_t value[128];
  agent_put_u32(w, kind);
  if (kind != 1) {
    agent_put_u32(w, handle);
    return;
  }
  const uint32_t bytes = one_in(10) ? 1 + below(128) : 4;
  agent_put_u32(w, bytes);
  agent_put_bytes(w, value, bytes);
}

static void put_launch(agent_writer* w) {
  const uint32_t program = any(&programs);
  const uint32_t count = below(4);
  const bool open = one_in(3);
  const bool image = one_in(4);
  agent_put_u32(w, program);
  agent_put_text(w, image ? "copy_image" : one_in(3) ? "add" : "copy");
  put_numbers(w, 4, (uint32_t[]){1 + below(3), 16, 8, 4});
  put_numbers(w, 3, (uint32_t[]){open ? 0 : 8, open ? 0 : 4, open ? 0 : 1});
  agent_put_u32(w, count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t kind = i < 2 ? 0 : image ? 2 : 1;
    put_argument(w, kind, kind == 2 ? 64 : any(image ? &images : &buffers));
  }
}

static void put_launches(agent_writer* w) {
  const uint32_t sequences = 1 + below(3);
  agent_put_u32(w, sequences);
  for (uint32_t s = 0; s < sequences; ++s) {
    const uint32_t launches = 1 + below(3);
    agent_put_u32(w, launches);
    for (uint32_t i = 0; i < launches; ++i) {
      // Most are valid: a single fault refuses them all.
      if (one_in(12)) {
        put_launch(w);
        continue;
      }
      agent_put_u32(w, any(&programs));
      agent_put_text(w, "copy");
      put_numbers(w, 7, (uint32_t[]){1, 16, 1, 1, 4, 1, 1});
      agent_put_u32(w, 3);
      put_argument(w, 0, any(&buffers));
      put_argument(w, 0, any(&buffers));
      put_argument(w, 1, 0);
    }
  }
  put_numbers(w, 4, (uint32_t[]){one_in(2), below(3), 1 + below(3), below(4)});
}

static void put_request(agent_writer* w, uint16_t kind) {
  switch (kind) {
    case AGENT_OPEN:
      put_open(w);
      break;
    case AGENT_FACTS:
      agent_put_u32(w, below(3));
      break;
    case AGENT_CLOSE:
    case AGENT_DESCRIBE:
    case AGENT_BINARIES:
      agent_put_u32(w, any(&models));
      break;
    case AGENT_RUN:
      put_run(w);
      break;
    case AGENT_TIME:
      put_time(w);
      break;
    case AGENT_SELF_TEST:
      agent_put_u32(w, any(&models));
      put_numbers(w, 4, (uint32_t[]){below(3), below(3), below(3), below(2)});
      break;
    case AGENT_TUNE:
      agent_put_u32(w, any(&models));
      agent_put_u32(w, below(3));
      break;
    case AGENT_PROFILE:
      agent_put_u32(w, any(&models));
      agent_put_u32(w, below(2));
      agent_put_u32(w, below(5));
      break;
    case AGENT_BUILD:
      put_device(w);
      agent_put_text(w, one_in(2) ? "" : "-cl-std=CL1.2");
      put_digest(w, sources[one_in(8)]);
      break;
    case AGENT_ALLOCATE:
      put_allocate(w, one_in(2));
      break;
    case AGENT_WRITE: {
      const uint64_t bytes = put_part(w);
      put_digest(w, data_blobs[one_in(10) ? below(3) : 1]);
      agent_put_u64(w, below(16));
      agent_put_u64(w, bytes);
      break;
    }
    case AGENT_FILL: {
      static const uint8_t pattern[16] = {1, 2, 3};
      const uint32_t bytes = 1u << below(5);
      agent_put_u32(w, any(one_in(2) ? &images : &buffers));
      agent_put_u32(w, bytes);
      agent_put_bytes(w, pattern, bytes);
      break;
    }
    case AGENT_READ:
      agent_put_u64(w, put_part(w));
      break;
    case AGENT_LAUNCH:
      put_launches(w);
      break;
    case AGENT_FREE:
      agent_put_u32(w, 2);
      agent_put_u32(w, any(one_in(2) ? &images : &buffers));
      agent_put_u32(w, any(&programs));
      break;
    default:
      break;
  }
}

static uint16_t any_kind(void) {
  static const uint16_t kinds[] = {
      AGENT_OPEN,      AGENT_CLOSE,    AGENT_RUN,      AGENT_RUN,    AGENT_TIME,     AGENT_PROFILE,
      AGENT_SELF_TEST, AGENT_DESCRIBE, AGENT_BINARIES, AGENT_BUILD,  AGENT_ALLOCATE, AGENT_ALLOCATE,
      AGENT_WRITE,     AGENT_WRITE,    AGENT_FILL,     AGENT_READ,   AGENT_READ,     AGENT_LAUNCH,
      AGENT_LAUNCH,    AGENT_LAUNCH,   AGENT_LAUNCH,   AGENT_LAUNCH, AGENT_FREE,     AGENT_TUNE,
  };
  if (one_in(200)) return AGENT_FACTS;
  if (one_in(100)) return (uint16_t)draw();
  return kinds[below(sizeof(kinds) / sizeof(kinds[0]))];
}

typedef struct session {
  int connection;
  agent_store* store;
  agent_shared shared;
  uint32_t number;
  agent_frame reply;
  uint8_t content[ROOM];
} session;

static void* serve(void* argument) {
  session* const s = argument;
  agent_serve(s->connection, s->store, &s->shared, 1);
  close(s->connection);
  return NULL;
}

// Checks that the driver was asked for nothing that the agent must refuse itself: memory that is
// too large, parts outside of it, and recordings that still run.
static void check_driver(uint16_t kind, uint32_t number) {
  static const char* const checked[] = {
      "clCreateBuffer:",        "clCreateImage:",     "clEnqueueRead",        "clEnqueueWrite",
      "clEnqueueCommandBuffer", "clEnqueueRecording", "releasing a recording"};
  static void* driver;
  const char* (*violations)(void);
  void (*reset)(void);
  if (!driver) driver = dlopen(getenv("TVMFLOW_OPENCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  if (!driver) return;
  *(void**)&violations = dlsym(driver, "fake_violations");
  *(void**)&reset = dlsym(driver, "fake_reset");
  for (size_t i = 0; i < sizeof(checked) / sizeof(checked[0]); ++i)
    if (strstr(violations(), checked[i])) stop(violations(), kind, number);
  reset();
}

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// Sends a request and returns the kind of the answer, which `reply` has then.
static uint16_t ask(session* s, int file, uint16_t kind, const agent_writer* w) {
  const char* wrong;
  const uint32_t number = ++s->number;
  atomic_store(&s->shared.cancelled, false);
  if (!agent_write_frame(file, -1, kind, number, 0, w->begin, w->used))
    stop("not sent", kind, number);
  const uint64_t began = now_ms();
  for (;;) {
    struct pollfd one = {.fd = file, .events = POLLIN};
    const int ready = poll(&one, 1, CANCEL_MS);
    const uint64_t waited = now_ms() - began;
    // Mutated numbers of runs may take hours.
    if (waited > CANCEL_MS) atomic_store(&s->shared.cancelled, true);
    if (waited > STUCK_MS) stop("no answer", kind, number);
    if (ready <= 0) continue;
    if (agent_read_frame(file, -1, &s->reply, &wrong) != 1) stop("no frame", kind, number);
    const uint16_t got = s->reply.kind;
    if (s->reply.id != number) stop("another request's answer", kind, number);
    if (got == (kind | AGENT_PART)) continue;
    if (got != AGENT_ERROR && got != (kind | AGENT_ANSWER)) stop("another kind", kind, number);
    count_kind(kind, got == AGENT_ERROR);
    check_driver(kind, number);
    return got;
  }
}

// Keeps the handle of a new object, and closes another one if there are many.
static void keep(session* s, int file, pool* p, uint32_t handle) {
  uint8_t memory[8];
  agent_writer w = {memory, 0, sizeof(memory), false};
  if (p->count < POOL) {
    p->handles[p->count++] = handle;
    return;
  }
  uint32_t* const old = &p->handles[below(POOL)];
  if (p != &models) agent_put_u32(&w, 1);
  agent_put_u32(&w, *old);
  *old = handle;
  ask(s, file, p == &models ? AGENT_CLOSE : AGENT_FREE, &w);
}

static uint32_t number_at(const uint8_t* data, uint32_t bytes) {
  agent_reader in = {data, data + bytes, false};
  return agent_get_u32(&in);
}

// Follows which objects there are.
static void follow(session* s, int file, uint16_t kind, uint16_t got, const agent_writer* w) {
  const uint32_t first = number_at(s->reply.payload, s->reply.bytes);
  if (got == AGENT_ERROR ? first == AGENT_MISSING
                         : kind == AGENT_FREE || kind == AGENT_CLOSE || kind == AGENT_BINARIES) {
    for (uint32_t at = 0; at + 4 <= w->used; at += 4) {
      const uint32_t handle = number_at(w->begin + at, 4);
      if (kind != AGENT_FREE) forget(&models, handle);
      if (kind == AGENT_CLOSE || kind == AGENT_BINARIES) break;
      forget(&programs, handle);
      forget(&buffers, handle);
      forget(&images, handle);
    }
  }
  if (got == AGENT_ERROR) return;
  if (kind == AGENT_OPEN) keep(s, file, &models, first);
  if (kind == AGENT_BUILD) keep(s, file, &programs, first);
  if (kind == AGENT_ALLOCATE) {
    // The kind of memory is after the device's number and text.
    const uint32_t text = number_at(w->begin + 4, w->used - 4);
    const bool image = number_at(w->begin + 8 + text, w->used - 8 - text) != 0;
    keep(s, file, image ? &images : &buffers, first);
  }
}

static void send_session_request(session* s, int file, uint16_t kind, unsigned mutations) {
  agent_writer w = {s->content, 0, ROOM, false};
  put_request(&w, kind);
  while (mutations-- > 0) mutate(&w);
  follow(s, file, kind, ask(s, file, kind, &w), &w);
}

// Opens new objects of a kind of which there is none.
static void refill(session* s, int file) {
  if (!models.count) send_session_request(s, file, AGENT_OPEN, 0);
  if (!programs.count) send_session_request(s, file, AGENT_BUILD, 0);
  if (!buffers.count || !images.count) send_session_request(s, file, AGENT_ALLOCATE, 0);
}

static void fuzz_session(agent_store* store, unsigned count) {
  static session s;
  int pair[2];
  pthread_t thread;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) stop("no pair", 0, 0);
  s.connection = pair[1];
  s.store = store;
  s.reply.payload = malloc(AGENT_MAX_PAYLOAD);
  pthread_create(&thread, NULL, serve, &s);
  for (unsigned i = 0; i < count; ++i) {
    refill(&s, pair[0]);
    send_session_request(&s, pair[0], any_kind(), one_in(3) ? 0 : 1 + below(2));
  }
  close(pair[0]);
  pthread_join(thread, NULL);
  free(s.reply.payload);
}

// -- frames to the main process -------------------------------------------------------------------

// The other end of the channel to a session, which this program plays.
static atomic_int session_end = -1;
static int last_pair[2];

int __real_socketpair(int domain, int type, int protocol, int pair[2]);
int __wrap_socketpair(int domain, int type, int protocol, int pair[2]);
pid_t __wrap_fork(void);

int __wrap_socketpair(int domain, int type, int protocol, int pair[2]) {
  const int code = __real_socketpair(domain, type, protocol, pair);
  if (!code) memcpy(last_pair, pair, sizeof(last_pair));
  return code;
}

// Plays the start of a session: the process's number is larger than any.
pid_t __wrap_fork(void) {
  const int old = atomic_load(&session_end);
  const int end = fcntl(last_pair[1], F_DUPFD_CLOEXEC, 3);
  if (old >= 0 || end < 0) {
    if (end >= 0) close(end);
    errno = EAGAIN;
    return -1;
  }
  atomic_store(&session_end, end);
  return 1 << 30;
}

typedef struct connection {
  int host;  // this program's end
  int agent;
  const agent_options* options;
  agent_frame got;
  uint8_t content[ROOM + AGENT_HEADER_BYTES];
} connection;

static void* supervise(void* argument) {
  const connection* const c = argument;
  // Its own session's messages are not of interest.
  agent_supervise(c->agent, c->agent, c->options);
  shutdown(c->agent, SHUT_RDWR);
  return NULL;
}

// Answers a request to the session, in one of many ways.
static void answer_as_session(connection* c) {
  static uint8_t payload[ROOM];
  const char* wrong;
  const int end = atomic_load(&session_end);
  agent_frame* const f = &c->got;
  const bool alive = agent_read_frame(end, STUCK_MS, f, &wrong) == 1;
  const uint32_t bytes = below(one_in(10) ? ROOM : 64);
  if (alive && one_in(4)) agent_write_frame(end, 0, f->kind | AGENT_PART, f->id, 0, payload, bytes);
  if (alive && !one_in(4)) {
    const uint16_t kind = one_in(3) ? AGENT_ERROR : f->kind | AGENT_ANSWER;
    agent_write_frame(end, 0, kind, f->id, 0, payload, bytes);
    return;
  }
  if (alive && one_in(4)) return;  // it stays busy
  if (alive && one_in(2)) agent_write_frame(end, 0, f->kind | AGENT_ANSWER, f->id + 1, 0, NULL, 0);
  if (alive && one_in(2)) (void)!write(end, payload, bytes);
  atomic_store(&session_end, -1);
  close(end);
}

// Answers with random numbers of its own: when the session is asked depends on the threads.
static void play_session(connection* c) {
  const uint64_t other = state;
  state = session_state;
  answer_as_session(c);
  session_state = state;
  state = other;
}

// Writes all bytes, playing the session and dropping answers meanwhile.  Returns false when the
// connection has ended, or true when `last` was answered.
static bool exchange(connection* c, const uint8_t* data, size_t bytes, uint32_t last, bool ends,
                     uint16_t* got) {
  const char* wrong;
  *got = 0;
  if (bytes == 0 && ends) shutdown(c->host, SHUT_WR);
  for (;;) {
    struct pollfd all[2] = {{.fd = c->host, .events = (short)(POLLIN | (bytes ? POLLOUT : 0))},
                            {.fd = atomic_load(&session_end), .events = POLLIN}};
    const int ready = poll(all, 2, 50);
    if (all[1].revents) play_session(c);
    if (ready == 0 && bytes == 0 && !ends) {
      // The agent waits for the rest of a frame whose length was changed.
      ends = true;
      shutdown(c->host, SHUT_WR);
    }
    if (all[0].revents & POLLOUT && bytes > 0) {
      const ssize_t put = send(c->host, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put < 0 && errno != EAGAIN) bytes = 0;
      if (put > 0) data += put;
      if (put > 0) bytes -= (size_t)put;
      if (bytes == 0 && ends) shutdown(c->host, SHUT_WR);
    }
    if (!(all[0].revents & (POLLIN | POLLHUP))) continue;
    const int read = agent_read_frame(c->host, STUCK_MS, &c->got, &wrong);
    // What the agent sends is whole, unless the connection was reset.
    if (read < 0 && strstr(wrong, "stalled") == NULL) stop(wrong, c->got.kind, last);
    if (read <= 0) return false;
    if (c->got.id == last && !ends) return true;
    if (c->got.kind & AGENT_ANSWER) *got = c->got.kind;
  }
}

static uint16_t put_main_request(agent_writer* w, uint16_t kind) {
  static digest name;
  switch (kind) {
    case AGENT_HELLO:
      put_numbers(w, 4, (uint32_t[]){1, 1, 0, 10000});
      agent_put_text(w, "fuzz");
      break;
    case AGENT_HAVE: {
      const uint32_t n = below(4);
      agent_put_u32(w, n);
      for (uint32_t i = 0; i < n; ++i) put_digest(w, one_in(2) ? name : data_blobs[below(3)]);
      break;
    }
    case AGENT_PUT: {
      static uint8_t data[512];
      Sha256State hash;
      data[0] = (uint8_t)draw();
      Sha256Begin(&hash);
      Sha256Add(&hash, data, sizeof(data));
      Sha256End(&hash, name);
      put_digest(w, name);
      agent_put_u64(w, one_in(20) ? interesting() : sizeof(data));
      break;
    }
    case AGENT_PUT | AGENT_PART: {
      static uint8_t data[512];
      agent_put_bytes(w, data, one_in(2) ? sizeof(data) : below(sizeof(data)));
      break;
    }
    case AGENT_CANCEL:
      agent_put_u32(w, one_in(2) ? 7 : below(10));
      break;
    default:
      if (kind >= AGENT_FIRST_OF_SESSION)
        for (uint32_t i = below(100); i > 0; --i) agent_put_u32(w, (uint32_t)draw());
  }
  return kind;
}

// Writes a frame with the right checksum at `w`, of a request that may be mutated.
static uint16_t put_frame(agent_writer* w, uint16_t kind, uint32_t id, unsigned mutations) {
  agent_writer payload = {w->begin + w->used + AGENT_HEADER_BYTES, 0,
                          w->limit - w->used - AGENT_HEADER_BYTES, false};
  const uint32_t limit_ms = one_in(10) ? (uint32_t)interesting() : 0;
  put_main_request(&payload, kind);
  while (mutations-- > 0 && payload.used < 1024) mutate(&payload);
  if (payload.used > 2048) payload.used = 2048;
  agent_put_bytes(w, "TVMA", 4);
  agent_put_u32(w, kind);
  agent_put_u32(w, id);
  agent_put_u32(w, limit_ms);
  agent_put_u32(w, payload.used);
  agent_put_u32(
      w, agent_crc32(agent_crc32(0, w->begin + w->used - 20, 20), payload.begin, payload.used));
  w->used += payload.used;
  return kind;
}

static uint16_t any_main_kind(void) {
  static const uint16_t kinds[] = {
      AGENT_PING,   AGENT_SENSORS, AGENT_HAVE,  AGENT_HAVE,   AGENT_PUT,  AGENT_PUT,  AGENT_CANCEL,
      AGENT_CANCEL, AGENT_RUN,     AGENT_FACTS, AGENT_LAUNCH, AGENT_READ, AGENT_OPEN, AGENT_RESET};
  if (one_in(100)) return (uint16_t)draw();
  if (one_in(50)) return one_in(2) ? AGENT_HELLO : AGENT_PUT | AGENT_PART;
  return kinds[below(sizeof(kinds) / sizeof(kinds[0]))];
}

// Sends some frames and a PING.  Returns false when the connection has ended.
static bool send_frames(connection* c, unsigned* sent, uint32_t number) {
  agent_writer w = {c->content, 0, sizeof(c->content), false};
  const unsigned frames = one_in(4) ? 1 + below(4) : 1;
  bool ends = false;
  uint16_t kind = 0;
  uint16_t got;
  for (unsigned i = 0; i < frames; ++i) {
    const uint32_t id = one_in(3) ? below(10) : 7;
    const uint32_t begin = w.used;
    kind = put_frame(&w, any_main_kind(), id, one_in(6) ? 1 + below(2) : 0);
    // Parts with the content of the upload, which ends or fails.
    if (kind == AGENT_PUT && !one_in(8))
      for (unsigned part = 1 + below(2); part > 0; --part)
        put_frame(&w, AGENT_PUT | AGENT_PART, id, one_in(10));
    if (one_in(40)) {
      // Repeated as it is.
      agent_put_bytes(&w, w.begin + begin, w.used - begin);
    }
    ++*sent;
  }
  if (one_in(12)) {
    // Damage that the checksum should find.
    agent_writer all = {w.begin, w.used, ROOM, false};
    mutate(&all);
    w.used = all.used;
    ends = true;
  }
  if (!ends) put_frame(&w, AGENT_PING, number, 0);
  const bool goes_on = exchange(c, w.begin, w.used, number, ends, &got);
  if (frames == 1) count_kind(kind, goes_on ? got == AGENT_ERROR : 2);
  return goes_on;
}

static void fuzz_main(const agent_options* options, unsigned count) {
  static connection c;
  c.options = options;
  c.got.payload = malloc(AGENT_MAX_PAYLOAD);
  unsigned sent = 0;
  uint32_t number = 1000;
  while (sent < count) {
    int pair[2];
    pthread_t thread;
    uint16_t got;
    if (__real_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) stop("no pair", 0, 0);
    c.host = pair[0];
    c.agent = pair[1];
    pthread_create(&thread, NULL, supervise, &c);
    agent_writer w = {c.content, 0, sizeof(c.content), false};
    bool goes_on = true;
    if (!one_in(50)) {
      put_frame(&w, AGENT_HELLO, ++number, one_in(8));
      goes_on = exchange(&c, w.begin, w.used, number, false, &got);
      count_kind(AGENT_HELLO, !goes_on ? 2 : c.got.kind == AGENT_ERROR ? 1 : 0);
    }
    while (goes_on && sent < count) goes_on = send_frames(&c, &sent, ++number);
    close(pair[0]);
    pthread_join(thread, NULL);
    close(pair[1]);
    const int end = atomic_exchange(&session_end, -1);
    if (end >= 0) close(end);
  }
  free(c.got.payload);
}

int main(int argc, char** argv) {
  agent_store store;
  if (argc < 5) return 2;
  const bool session = !strcmp(argv[1], "session");
  const agent_options options = {argv[2], session ? 64u << 20 : 8192};
  state = strtoull(argv[4], NULL, 10);
  session_state = ~state;
  const unsigned count = (unsigned)strtoul(argv[3], NULL, 10);
  if (agent_store_open(&store, options.folder, options.limit_bytes)) return 2;
  if (session) {
    add_blobs(&store, argv[5]);
    fuzz_session(&store, count);
  } else {
    fuzz_main(&options, count);
  }
  free(store.used);
  for (unsigned kind = 0; kind < KINDS; ++kind)
    if (counts[kind].good || counts[kind].refused || counts[kind].ended)
      printf("%u %u %u %u\n", kind, counts[kind].good, counts[kind].refused, counts[kind].ended);
  return 0;
}
