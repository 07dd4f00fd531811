#define _GNU_SOURCE  // poll, prctl

#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "session.h"

#ifndef TF_AGENT_BUILD
#define TF_AGENT_BUILD ""  // digest of the sources, from the build
#endif
#ifndef TF_AGENT_HOST
#define TF_AGENT_HOST ""  // name of the machine that the agent is compiled for
#endif

enum {
  GREETING_MS = 30000,  // until HELLO
  CANCEL_MS = 5000,     // from CANCEL to the end of a session that does not react
  NEXT_MS = 1,          // from a part to the frame after it, if that is ready
  END_MS = 2000,        // from SIGKILL to the end of a process
  HANDLES_A_SESSION = 1 << 18,
  SILENCE_MIN_MS = 1000,
  SILENCE_MAX_MS = 600000,
};

typedef struct request {
  uint16_t kind;  // 0: none is in progress
  uint32_t id;
  uint32_t limit_ms;
  uint64_t deadline_ms;
  bool cancelled;
} request;

typedef struct supervisor {
  int in;
  int out;
  int lock;
  const agent_options* options;
  agent_store store;
  agent_shared* shared;
  bool greeted;
  bool over;
  int wait_ms;  // for the rest of a frame
  uint64_t silent_since_ms;
  agent_frame frame;  // from the host
  agent_frame reply;  // from the session
  uint8_t answer[AGENT_MAX_TEXT * 2];
  uint8_t held[AGENT_PART_BYTES + 4096];  // frames for the host
  size_t held_bytes;
  request current;    // what the session works on
  pid_t session;      // 0: there is none
  int channel;        // to the session
  uint32_t sessions;  // that were started
  agent_upload* upload;
  uint32_t upload_id;
  uint32_t ignored_id;  // of an upload whose parts are no longer wanted
} supervisor;

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void send_held(supervisor* s) {
  if (!s->over && !agent_write_bytes(s->out, s->wait_ms, s->held, s->held_bytes)) s->over = true;
  s->held_bytes = 0;
}

// Adds a frame to what the next write has: adb's server holds the second of two messages back
// until the first was received, up to 40 ms later.
static void hold_frame(supervisor* s, uint16_t kind, uint32_t id, const void* payload,
                       uint32_t bytes) {
  if (s->held_bytes + AGENT_HEADER_BYTES + bytes > sizeof(s->held)) send_held(s);
  if (AGENT_HEADER_BYTES + bytes > sizeof(s->held)) {
    if (!s->over && !agent_write_frame(s->out, s->wait_ms, kind, id, 0, payload, bytes))
      s->over = true;
    return;
  }
  uint8_t* const to = s->held + s->held_bytes;
  agent_put_header(to, kind, id, 0, payload, bytes);
  if (bytes > 0) memcpy(to + AGENT_HEADER_BYTES, payload, bytes);
  s->held_bytes += AGENT_HEADER_BYTES + bytes;
}

static void send_frame(supervisor* s, uint16_t kind, uint32_t id, const void* payload,
                       uint32_t bytes) {
  hold_frame(s, kind, id, payload, bytes);
  send_held(s);
}

static agent_writer answer_of(supervisor* s) {
  return (agent_writer){s->answer, 0, sizeof(s->answer), false};
}

static void send_answer(supervisor* s, const agent_writer* writer) {
  send_frame(s, (uint16_t)(s->frame.kind | AGENT_ANSWER), s->frame.id, writer->begin, writer->used);
}

static void send_error(supervisor* s, uint32_t id, uint32_t code, uint32_t detail,
                       const char* remedy, const char* format, ...)
    __attribute__((format(printf, 6, 7)));

static void send_error(supervisor* s, uint32_t id, uint32_t code, uint32_t detail,
                       const char* remedy, const char* format, ...) {
  char message[4096];
  agent_writer w = answer_of(s);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  agent_put_u32(&w, code);
  agent_put_u32(&w, detail);
  agent_put_text(&w, message);
  agent_put_text(&w, remedy);
  send_frame(s, AGENT_ERROR, id, w.begin, w.used);
}

// Ends the connection because the host does not keep to the protocol.
static void send_violation(supervisor* s, const char* wrong) {
  send_error(s, s->frame.id, AGENT_PROTOCOL, 0, "Use the agent of this version of tvmflow.",
             "The connection was ended: %s.", wrong);
  s->over = true;
}

static const char* const bad_fields = "a request's fields do not fit the protocol";

// -- the session ---------------------------------------------------------------------------------

// Waits for the end of the session's process; returns false if it does not end.
static bool wait_for_end(const supervisor* s, int* status) {
  const uint64_t until = now_ms() + END_MS;
  const struct timespec pause = {0, 1000000};
  while (waitpid(s->session, status, WNOHANG) == 0) {
    if (now_ms() > until) return false;
    nanosleep(&pause, NULL);
  }
  return true;
}

// Removes what sessions have left in the folder for their files.
static void remove_work(const supervisor* s) {
  char path[AGENT_MAX_PATH];
  snprintf(path, sizeof(path), "%s/work", s->store.folder);
  agent_remove_folder(path);
  agent_store_make_folders(&s->store);
}

// Ends the session.  Returns its signal, or 256 + its exit status; 0: it cannot be ended.
static uint32_t end_session(supervisor* s, bool kill_it) {
  int status = 0;
  if (!s->session) return 0;
  bool ended = !kill_it && wait_for_end(s, &status);
  // Its group has the processes that a driver's compiler starts.
  kill(-s->session, SIGKILL);
  if (!ended) ended = wait_for_end(s, &status);
  close(s->channel);
  s->channel = -1;
  s->session = 0;
  if (!s->upload) remove_work(s);
  if (!ended) return 0;
  return WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 256u + (uint32_t)WEXITSTATUS(status);
}

static bool start_session(supervisor* s) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return false;
  const pid_t parent = getpid();
  const uint32_t first = s->sessions * (uint32_t)HANDLES_A_SESSION + 1;
  const pid_t child = fork();
  if (child < 0) {
    close(pair[0]);
    close(pair[1]);
    return false;
  }
  if (child == 0) {
    // It ends with the main process, however that ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    close(pair[0]);
    // While a copy is open, the host would not notice the end of the main process.
    close(s->in);
    close(s->out);
    close(s->lock);
    agent_serve(pair[1], &s->store, s->shared, first);
    _exit(0);
  }
  setpgid(child, child);
  close(pair[1]);
  fcntl(pair[0], F_SETFL, O_NONBLOCK);
  s->channel = pair[0];
  s->session = child;
  ++s->sessions;
  return true;
}

// Ends a request that takes too long, or that does not react to being cancelled.
static void end_late_request(supervisor* s) {
  const request late = s->current;
  const bool ended = end_session(s, true) != 0;
  s->current.kind = 0;
  if (late.cancelled)
    send_error(s, late.id, AGENT_CANCELLED, 0, "", "The request was cancelled.");
  else
    send_error(s, late.id, AGENT_TIMEOUT, 0, "",
               "The request took longer than its limit of %u ms, and the session %s.",
               late.limit_ms, ended ? "was ended" : "does not end, as it waits for the driver");
}

// Reports that the session has ended by itself.
static void lose_session(supervisor* s, bool kill_it) {
  if (s->current.kind && now_ms() >= s->current.deadline_ms) {
    end_late_request(s);
    return;
  }
  const request lost = s->current;
  const uint32_t detail = end_session(s, kill_it);
  s->current.kind = 0;
  if (!lost.kind) return;
  if (lost.cancelled)
    send_error(s, lost.id, AGENT_CANCELLED, 0, "", "The request was cancelled.");
  else if (detail < 256)
    send_error(s, lost.id, AGENT_LOST, detail, "", "The session was ended by signal %u.", detail);
  else
    send_error(s, lost.id, AGENT_LOST, detail, "", "The session ended with status %u.",
               detail - 256);
}

// Passes the host's request on to the session.
static void pass_on(supervisor* s) {
  const agent_frame* const f = &s->frame;
  const uint32_t limit_ms = f->limit_ms ? f->limit_ms : (uint32_t)AGENT_DEFAULT_LIMIT_MS;
  if (s->current.kind) {
    send_error(s, f->id, AGENT_BUSY, 0, "", "Request %u is in progress.", s->current.id);
    return;
  }
  if (limit_ms > AGENT_MAX_LIMIT_MS) {
    send_error(s, f->id, AGENT_ARGUMENT, 0, "", "The time limit is %u ms, expected at most %u.",
               limit_ms, (unsigned)AGENT_MAX_LIMIT_MS);
    return;
  }
  if (!s->session && !start_session(s)) {
    send_error(s, f->id, AGENT_MEMORY, 0, "Close other programs.",
               "A process for the session cannot be started: %s.", strerror(errno));
    return;
  }
  atomic_store(&s->shared->cancelled, false);
  s->current = (request){f->kind, f->id, limit_ms, now_ms() + limit_ms, false};
  if (!agent_write_frame(s->channel, (int)limit_ms, f->kind, f->id, limit_ms, f->payload, f->bytes))
    lose_session(s, true);
}

// Passes an answer of the session, or a part of it, on to the host.
static void pass_back(supervisor* s) {
  const char* wrong;
  const int got = agent_read_frame(s->channel, END_MS, &s->reply, &wrong);
  if (got <= 0 || !s->current.kind || s->reply.id != s->current.id) {
    lose_session(s, got != 0);
    return;
  }
  hold_frame(s, s->reply.kind, s->reply.id, s->reply.payload, s->reply.bytes);
  // The last part and the answer follow one another at once.
  struct pollfd next = {.fd = s->channel, .events = POLLIN};
  if (!(s->reply.kind & AGENT_PART) || poll(&next, 1, NEXT_MS) <= 0) send_held(s);
  // ERROR has this bit, too.
  if (s->reply.kind & AGENT_ANSWER) s->current.kind = 0;
  agent_reader in = {s->reply.payload, s->reply.payload + s->reply.bytes, false};
  if (s->reply.kind == AGENT_ERROR && agent_get_u32(&in) == AGENT_PROTOCOL) s->over = true;
}

// -- the host's requests
// ---------------------------------------------------------------------------

static void greet(supervisor* s) {
  agent_reader in = {s->frame.payload, s->frame.payload + s->frame.bytes, false};
  char name[256];
  const uint32_t lowest = agent_get_u32(&in);
  const uint32_t highest = agent_get_u32(&in);
  agent_get_u32(&in);
  const uint32_t silence_ms = agent_get_u32(&in);
  agent_get_text(&in, name, sizeof(name));
  if (!agent_read_all(&in) || silence_ms < SILENCE_MIN_MS || silence_ms > SILENCE_MAX_MS) {
    send_violation(s, bad_fields);
    return;
  }
  if (lowest > AGENT_VERSION || highest < AGENT_VERSION) {
    send_error(s, s->frame.id, AGENT_VERSIONS, AGENT_VERSION,
               "Use the agent of this version of tvmflow.",
               "The host knows the versions %u to %u of the protocol, and this agent version %u.",
               lowest, highest, (unsigned)AGENT_VERSION);
    s->over = true;
    return;
  }
  char path[AGENT_MAX_PATH];
  snprintf(path, sizeof(path), "%s/lock", s->store.folder);
  s->lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (s->lock < 0 || flock(s->lock, LOCK_EX | LOCK_NB)) {
    char other[256] = "";
    const int code = errno;
    if (s->lock >= 0 && read(s->lock, other, sizeof(other) - 1) < 0) *other = 0;
    if (code == EWOULDBLOCK)
      send_error(s, s->frame.id, AGENT_BUSY, 0, "Wait for its end.",
                 "The device is in use by another host: %s.", other);
    else
      send_error(s, s->frame.id, AGENT_STORE, (uint32_t)code, "Name another folder.",
                 "The folder %s cannot be used: %s.", s->store.folder, strerror(code));
    s->over = true;
    return;
  }
  if (ftruncate(s->lock, 0) || write(s->lock, name, strlen(name)) < 0) {
    // The name is for a message only.
  }
  remove_work(s);
  s->greeted = true;
  s->wait_ms = (int)silence_ms;
  agent_writer w = answer_of(s);
  agent_put_u32(&w, AGENT_VERSION);
  agent_put_u32(&w, AGENT_FEATURES);
  agent_put_u32(&w, (uint32_t)getpid());
  agent_put_u64(&w, s->store.limit_bytes);
  agent_put_text(&w, TF_AGENT_BUILD);
  agent_put_text(&w, TF_AGENT_HOST);
  agent_put_text(&w, s->store.folder);
  send_answer(s, &w);
}

static void have(supervisor* s) {
  agent_reader in = {s->frame.payload, s->frame.payload + s->frame.bytes, false};
  agent_writer w = answer_of(s);
  const uint32_t count = agent_get_count(&in, AGENT_MAX_ITEMS);
  const uint8_t* const digests = agent_get_bytes(&in, (size_t)count * AGENT_DIGEST_BYTES);
  if (!agent_read_all(&in)) {
    send_violation(s, bad_fields);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t is_there =
        agent_blob_use(&s->store, digests + (size_t)i * AGENT_DIGEST_BYTES) ? 1 : 0;
    agent_put_bytes(&w, &is_there, 1);
  }
  send_answer(s, &w);
}

static void fail_upload(supervisor* s, int code) {
  s->ignored_id = s->frame.id;
  agent_upload_end(s->upload);
  s->upload = NULL;
  if (code == EBADMSG)
    send_error(s, s->frame.id, AGENT_STORE, EBADMSG, "Send it again.",
               "What arrived is not the announced content.");
  else if (code == EFBIG)
    send_error(s, s->frame.id, AGENT_STORE, EFBIG,
               "Start the agent with a larger --limit-mb, or use a smaller network.",
               "The data does not fit into the %llu MB that the agent may use in %s.",
               (unsigned long long)(s->store.limit_bytes >> 20), s->store.folder);
  else
    send_error(s, s->frame.id, AGENT_STORE, (uint32_t)code,
               "Free space on the device, or remove the agent's folder (tvmflow devices --clean).",
               "Writing to %s failed: %s.", s->store.folder, strerror(code));
}

static void put_begin(supervisor* s) {
  agent_reader in = {s->frame.payload, s->frame.payload + s->frame.bytes, false};
  const uint8_t* const digest = agent_get_bytes(&in, AGENT_DIGEST_BYTES);
  const uint64_t bytes = agent_get_u64(&in);
  int code = 0;
  if (!agent_read_all(&in) || s->upload) {
    send_violation(s, s->upload ? "a second upload began during another" : bad_fields);
    return;
  }
  if (agent_blob_use(&s->store, digest)) {
    agent_writer w = answer_of(s);
    agent_put_u32(&w, 1);
    s->ignored_id = s->frame.id;
    send_answer(s, &w);
    return;
  }
  s->upload = agent_upload_begin(&s->store, digest, bytes, &code);
  s->upload_id = s->frame.id;
  s->ignored_id = 0;
  if (!s->upload) fail_upload(s, code);
}

// Adds bytes to the upload; also called for none, at its beginning.
static void put_part(supervisor* s, const uint8_t* data, size_t bytes) {
  int code = 0;
  const int state = agent_upload_add(s->upload, data, bytes, &code);
  if (state < 0) fail_upload(s, code);
  if (state <= 0) return;
  agent_upload_end(s->upload);
  s->upload = NULL;
  agent_writer w = answer_of(s);
  agent_put_u32(&w, 0);
  send_frame(s, AGENT_PUT | AGENT_ANSWER, s->frame.id, w.begin, w.used);
}

static void cancel(supervisor* s) {
  agent_reader in = {s->frame.payload, s->frame.payload + s->frame.bytes, false};
  const agent_writer w = answer_of(s);
  const uint32_t id = agent_get_u32(&in);
  if (!agent_read_all(&in)) {
    send_violation(s, bad_fields);
    return;
  }
  if (s->current.kind && s->current.id == id && !s->current.cancelled) {
    const uint64_t limit = now_ms() + CANCEL_MS;
    s->current.cancelled = true;
    if (s->current.deadline_ms > limit) s->current.deadline_ms = limit;
    atomic_store(&s->shared->cancelled, true);
  }
  send_answer(s, &w);
}

static void answer_request(supervisor* s) {
  const agent_frame* const f = &s->frame;
  agent_writer w = answer_of(s);
  if (!s->greeted) {
    if (f->kind == AGENT_HELLO)
      greet(s);
    else
      send_violation(s, "the first request is not HELLO");
    return;
  }
  if (f->kind >= AGENT_FIRST_OF_SESSION && f->kind < AGENT_PART) {
    pass_on(s);
    return;
  }
  switch (f->kind) {
    case AGENT_PING: {
      struct timespec now;
      clock_gettime(CLOCK_MONOTONIC, &now);
      agent_put_u64(&w, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
      send_answer(s, &w);
      return;
    }
    case AGENT_SENSORS: {
      static char text[AGENT_MAX_TEXT];
      agent_sensors(text, sizeof(text));
      agent_put_text(&w, text);
      send_answer(s, &w);
      return;
    }
    case AGENT_HAVE:
      have(s);
      return;
    case AGENT_PUT:
      put_begin(s);
      if (s->upload) put_part(s, NULL, 0);
      return;
    case AGENT_PUT | AGENT_PART:
      if (s->upload && f->id == s->upload_id)
        put_part(s, f->payload, f->bytes);
      else if (f->id != s->ignored_id)
        send_violation(s, "a part belongs to no upload");
      return;
    case AGENT_CANCEL:
      cancel(s);
      return;
    case AGENT_RESET:
      s->current.cancelled = true;
      lose_session(s, true);
      send_answer(s, &w);
      return;
    default:
      send_violation(s, "requests have no such kind");
  }
}

static int time_left(const supervisor* s) {
  const uint64_t now = now_ms();
  uint64_t until = s->silent_since_ms + (uint64_t)s->wait_ms;
  if (s->current.kind && s->current.deadline_ms < until) until = s->current.deadline_ms;
  return until > now ? (int)(until - now) : 0;
}

static void serve(supervisor* s) {
  const char* wrong;
  while (!s->over) {
    struct pollfd both[2] = {{.fd = s->in, .events = POLLIN},
                             {.fd = s->session ? s->channel : -1, .events = POLLIN}};
    const int ready = poll(both, 2, time_left(s));
    if (ready < 0 && errno != EINTR) return;
    if (ready > 0 && both[1].revents) pass_back(s);
    if (ready > 0 && both[0].revents && !s->over) {
      const int got = agent_read_frame(s->in, s->wait_ms, &s->frame, &wrong);
      if (got == 0) return;
      s->silent_since_ms = now_ms();
      if (got < 0)
        send_violation(s, wrong);
      else
        answer_request(s);
    }
    const uint64_t now = now_ms();
    if (s->current.kind && now >= s->current.deadline_ms) end_late_request(s);
    if (now >= s->silent_since_ms + (uint64_t)s->wait_ms) return;
  }
}

int agent_supervise(int in, int out, const agent_options* options) {
  static supervisor s;
  s = (supervisor){.in = in, .out = out, .lock = -1, .channel = -1, .options = options};
  s.wait_ms = GREETING_MS;
  s.silent_since_ms = now_ms();
  // A host that stalls, or reads nothing, must not block this process.
  fcntl(in, F_SETFL, O_NONBLOCK);
  fcntl(out, F_SETFL, O_NONBLOCK);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);
  s.frame.payload = malloc(AGENT_MAX_PAYLOAD);
  s.reply.payload = malloc(AGENT_MAX_PAYLOAD);
  s.shared =
      mmap(NULL, sizeof(agent_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (!s.frame.payload || !s.reply.payload || s.shared == MAP_FAILED) {
    fprintf(stderr, "tvmflow agent: there is no memory.\n");
    return 1;
  }
  const int code = agent_store_open(&s.store, options->folder, options->limit_bytes);
  if (code) {
    fprintf(stderr, "tvmflow agent: the folder %s cannot be used: %s\n", options->folder,
            strerror(code));
    return 2;
  }
  serve(&s);
  end_session(&s, true);
  agent_upload_end(s.upload);
  if (s.greeted) remove_work(&s);
  if (s.lock >= 0) close(s.lock);
  munmap(s.shared, sizeof(agent_shared));
  free(s.store.used);
  free(s.frame.payload);
  free(s.reply.payload);
  return 0;
}
