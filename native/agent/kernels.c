// Programs, memory and launches in the session: what a tuning candidate needs.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../core/commands.h"
#include "../core/compile.h"
#include "../core/errors.h"
#include "../core/library_names.h"
#include "../core/recording.h"
#include "../core/text.h"
#include "session.h"

enum {
  MAX_QUEUES = 8,
  MAX_SOURCE = 16 << 20,
  MAX_EVENTS = 65536,
  MAX_ROUNDS = 1000000,
  MAX_VALUE = 128,
  MAX_KERNEL_NAME = 1024,
  TRIED_BYTES = 8192,
  DIMENSIONS = 3,
  RECORDED = 1,  // a flag of LAUNCH
};

// A device with a context and a queue, which live as long as the session.
typedef struct queue {
  char library[256];  // as the host named it
  uint32_t index;
  tf_device device;
  cl_context context;
  cl_command_queue commands;
} queue;

typedef struct program {
  queue* on;
  cl_program handle;
} program;

typedef struct memory {
  queue* on;
  cl_mem handle;
  size_t bytes;
  size_t size[DIMENSIONS];  // in texels; zeros: a buffer
  size_t texel_bytes;
} memory;

// A kernel's name in the request, without an end.
typedef struct kernel_name {
  const char* text;
  int length;
} kernel_name;

typedef struct sequence {
  tf_step* steps;
  kernel_name* names;  // for each step
  uint32_t count;
  tf_recording* recording;  // NULL: launches are enqueued one by one
} sequence;

// Everything that LAUNCH takes from its request.
typedef struct launches {
  queue* on;
  sequence* sequences;
  uint32_t count;
  uint32_t flags;
  uint32_t warmup;
  uint32_t repeats;
  uint32_t rounds;
  cl_event* events;
} launches;

static void fail_driver(agent_call* call, cl_int code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail_driver(agent_call* call, cl_int code, const char* format, ...) {
  char attempt[MAX_KERNEL_NAME + 64];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(attempt, sizeof(attempt), format, arguments);
  va_end(arguments);
  const char* hint;
  const char* const name = tf_error_name(code, &hint);
  agent_fail(call, AGENT_DEVICE, (uint32_t)code, "", "%s failed with %s (%d)%s%s.", attempt, name,
             code, *hint ? ": " : "", hint);
}

static bool open_queue(agent_call* call, queue* q) {
  static char tried[TRIED_BYTES];
  static tf_devices found;
  const char* const only = *q->library ? q->library : NULL;
  const char* name;
  *tried = 0;
  found.count = 0;
  for (unsigned i = 0; !found.count && (name = tf_library_name(only, i)) != NULL; ++i) {
    found.count = found.platforms = 0;
    tf_append(tried, sizeof(tried), "\n  %s: ", name);
    tf_devices_add(&found, name, tried, sizeof(tried));
  }
  if (q->index >= found.count) {
    if (found.count)
      agent_fail(call, AGENT_ARGUMENT, 0, "Choose one of those.",
                 "There is no OpenCL device %u, but %u in all:%s", q->index, found.count, tried);
    else
      agent_fail(call, AGENT_DEVICE, (uint32_t)CL_DEVICE_NOT_FOUND,
                 "Install the device's driver, or name its library.",
                 "There is no OpenCL device. Libraries tried:%s", tried);
    return false;
  }
  q->device = found.all[q->index];
  const tf_opencl* const api = &q->device.api;
  const intptr_t properties[] = {CL_CONTEXT_PLATFORM, (intptr_t)q->device.platform, 0};
  cl_int code;
  q->context = api->clCreateContext(properties, 1, &q->device.id, NULL, NULL, &code);
  if (code != CL_SUCCESS) {
    fail_driver(call, code, "Creating a context");
    return false;
  }
  q->commands =
      api->clCreateCommandQueue(q->context, q->device.id, CL_QUEUE_PROFILING_ENABLE, &code);
  // A driver that cannot measure kernels can still run them.
  if (code == CL_INVALID_QUEUE_PROPERTIES || code == CL_INVALID_VALUE)
    q->commands = api->clCreateCommandQueue(q->context, q->device.id, 0, &code);
  if (code == CL_SUCCESS) return true;
  api->clReleaseContext(q->context);
  fail_driver(call, code, "Creating a queue");
  return false;
}

// Returns the queue of the device that the request names; NULL if the call has failed.
static queue* queue_of(agent_call* call) {
  static queue queues[MAX_QUEUES];
  static unsigned count;
  queue wanted = {.index = agent_get_u32(&call->in)};
  agent_get_text(&call->in, wanted.library, sizeof(wanted.library));
  if (call->in.bad) {
    agent_check_fields(call);
    return NULL;
  }
  for (unsigned i = 0; i < count; ++i)
    if (queues[i].index == wanted.index && !strcmp(queues[i].library, wanted.library))
      return &queues[i];
  if (count == MAX_QUEUES) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "A session uses at most %d devices.", MAX_QUEUES);
    return NULL;
  }
  if (!open_queue(call, &wanted)) return NULL;
  queues[count] = wanted;
  return &queues[count++];
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// -- programs -----------------------------------------------------------------------------------

// Adds the compiler's messages, cut to the longest text, between two characters.
static void put_log(agent_writer* writer, const char* log) {
  size_t length = log ? strlen(log) : 0;
  if (length > AGENT_MAX_TEXT) {
    length = AGENT_MAX_TEXT;
    while (length && ((unsigned char)log[length] & 0xC0) == 0x80) --length;
  }
  agent_put_u32(writer, (uint32_t)length);
  agent_put_bytes(writer, log, length);
}

static void build(agent_call* call, queue* on, const char* options, const char* source,
                  size_t bytes) {
  cl_int code;
  const uint64_t began = now_ns();
  const cl_program handle = tf_compile(&on->device, on->context, source, bytes, options, &code);
  const uint64_t ns = now_ns() - began;
  char* const log = tf_build_log(&on->device, handle);
  if (code != CL_SUCCESS) {
    const char* hint;
    agent_fail(call, AGENT_DEVICE, (uint32_t)code, "",
               "Building a program failed with %s (%d).\n%s", tf_error_name(code, &hint), code,
               log ? log : "");
  }
  program* const p = call->failed ? NULL : malloc(sizeof(program));
  if (p) {
    *p = (program){on, handle};
    agent_put_u32(&call->answer, agent_add_object(call, AGENT_PROGRAM, p));
    agent_put_u64(&call->answer, ns);
    put_log(&call->answer, log);
  } else {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for a program.");
  }
  if (handle && call->failed) {
    on->device.api.clReleaseProgram(handle);
    free(p);
  }
  free(log);
}

void agent_build(agent_call* call) {
  static char options[AGENT_MAX_TEXT + 1];
  size_t bytes = 0;
  queue* const on = queue_of(call);
  if (!on) return;
  agent_get_text(&call->in, options, sizeof(options));
  const uint8_t* const digest = agent_get_bytes(&call->in, AGENT_DIGEST_BYTES);
  if (!agent_check_fields(call)) return;
  const char* const source = agent_blob_map(call->store, digest, &bytes);
  if (!source)
    agent_fail(call, AGENT_MISSING, 0, "Send it first.", "The source's blob is not there.");
  else if (bytes == 0 || bytes > MAX_SOURCE)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "The source has %zu bytes, expected 1 to %d.", bytes,
               MAX_SOURCE);
  else
    build(call, on, options, source, bytes);
  agent_blob_unmap(source, bytes);
}

// -- memory -------------------------------------------------------------------------------------

// Returns the bytes of a texel of four channels; 0: an unknown type.
static size_t texel_bytes_of(cl_uint type) {
  if (type == CL_SIGNED_INT8 || type == CL_UNSIGNED_INT8 || type == CL_UNORM_INT8) return 4;
  if (type == CL_SIGNED_INT16 || type == CL_UNSIGNED_INT16 || type == CL_HALF_FLOAT) return 8;
  if (type == CL_SIGNED_INT32 || type == CL_UNSIGNED_INT32 || type == CL_FLOAT) return 16;
  return 0;
}

static bool fits(const memory* m) {
  const tf_device* const d = &m->on->device;
  for (int i = 0; i < DIMENSIONS; ++i)
    if (m->texel_bytes && (m->size[i] == 0 || m->size[i] > d->largest_image[i])) return false;
  return m->bytes > 0 && m->bytes <= d->largest_allocation;
}

void agent_allocate(agent_call* call) {
  memory made = {.on = queue_of(call)};
  if (!made.on) return;
  const uint32_t is_image = agent_get_u32(&call->in);
  const uint64_t bytes = agent_get_u64(&call->in);
  const uint32_t type = agent_get_u32(&call->in);
  uint32_t size[DIMENSIONS];
  for (int i = 0; i < DIMENSIONS; ++i) size[i] = agent_get_u32(&call->in);
  if (!agent_check_fields(call)) return;
  made.bytes = bytes <= SIZE_MAX / 2 ? (size_t)bytes : 0;
  if (is_image) {
    made.texel_bytes = texel_bytes_of(type);
    for (int i = 0; i < DIMENSIONS; ++i) made.size[i] = size[i];
    // At most 2^20 each, so that the product fits.
    const uint64_t texels = size[0] <= 1 << 20 && size[1] <= 1 << 20 && size[2] <= 1 << 16
                                ? (uint64_t)size[0] * size[1] * size[2]
                                : 0;
    made.bytes = texels <= (SIZE_MAX / 2) / 16 ? (size_t)texels * made.texel_bytes : 0;
  }
  const tf_device* const d = &made.on->device;
  if (is_image > 1 || !fits(&made)) {
    agent_fail(
        call, AGENT_ARGUMENT, 0, "",
        "Memory of kind %u, %zu bytes, %ux%ux%u texels of type 0x%x, does not fit the device: at "
        "most %llu bytes, %zux%zux%zu texels.",
        is_image, made.bytes, size[0], size[1], size[2], type,
        (unsigned long long)d->largest_allocation, d->largest_image[0], d->largest_image[1],
        d->largest_image[2]);
    return;
  }
  cl_int code;
  made.handle =
      is_image
          ? tf_create_image(d, made.on->context, CL_MEM_READ_WRITE, type, made.size, NULL, &code)
          : d->api.clCreateBuffer(made.on->context, CL_MEM_READ_WRITE, made.bytes, NULL, &code);
  if (code != CL_SUCCESS) {
    fail_driver(call, code, "Allocating memory");
    return;
  }
  memory* const m = malloc(sizeof(memory));
  if (m) {
    *m = made;
    agent_put_u32(&call->answer, agent_add_object(call, AGENT_MEMORY_OBJECT, m));
  } else {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for an object.");
  }
  if (!call->failed) return;
  d->api.clReleaseMemObject(made.handle);
  free(m);
}

// A part of a memory object, as WRITE and READ name it.
typedef struct part {
  memory* of;
  tf_box box;
  uint64_t offset;  // may exceed the addresses of this process until it is checked, as `bytes`
  uint64_t bytes;
} part;

static bool read_box(agent_call* call, part* p) {
  p->of = agent_find_object(call, AGENT_MEMORY_OBJECT, agent_get_u32(&call->in));
  for (int i = 0; i < DIMENSIONS; ++i) p->box.origin[i] = agent_get_u32(&call->in);
  for (int i = 0; i < DIMENSIONS; ++i) p->box.size[i] = agent_get_u32(&call->in);
  p->offset = agent_get_u64(&call->in);
  return p->of != NULL;
}

// Checks that the part lies in its memory.
static bool check_part(agent_call* call, const part* p) {
  const memory* const m = p->of;
  bool good = p->bytes > 0;
  if (m->texel_bytes) {
    size_t expected = m->texel_bytes;
    for (int i = 0; i < DIMENSIONS; ++i) {
      good = good && p->box.size[i] > 0 && p->box.origin[i] <= m->size[i] &&
             p->box.size[i] <= m->size[i] - p->box.origin[i];
      expected *= good ? p->box.size[i] : 1;
    }
    good = good && expected == p->bytes;
  } else {
    good = good && p->offset <= m->bytes && p->bytes <= m->bytes - p->offset;
  }
  if (!good)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "%llu bytes are no part of memory of %zu bytes.",
               (unsigned long long)p->bytes, m->bytes);
  return good;
}

static const tf_box* box_of(const part* p) { return p->of->texel_bytes ? &p->box : NULL; }

static void write_part(agent_call* call, const part* p, const void* data) {
  const queue* const on = p->of->on;
  const cl_int code = tf_write(&on->device, on->commands, p->of->handle, box_of(p),
                               (size_t)p->offset, (size_t)p->bytes, data);
  if (code != CL_SUCCESS) fail_driver(call, code, "Writing memory");
}

void agent_write(agent_call* call) {
  part p;
  size_t bytes = 0;
  if (!read_box(call, &p)) return;
  const uint8_t* const digest = agent_get_bytes(&call->in, AGENT_DIGEST_BYTES);
  const uint64_t begin = agent_get_u64(&call->in);
  p.bytes = agent_get_u64(&call->in);
  if (!agent_check_fields(call) || !check_part(call, &p)) return;
  const uint8_t* const data = agent_blob_map(call->store, digest, &bytes);
  if (!data)
    agent_fail(call, AGENT_MISSING, 0, "Send it first.", "The data's blob is not there.");
  else if (begin > bytes || p.bytes > bytes - begin)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "%llu bytes at %llu are no part of a blob of %zu.",
               (unsigned long long)p.bytes, (unsigned long long)begin, bytes);
  else
    write_part(call, &p, data + begin);
  agent_blob_unmap(data, bytes);
}

void agent_fill(agent_call* call) {
  part p = {.of = agent_find_object(call, AGENT_MEMORY_OBJECT, agent_get_u32(&call->in))};
  if (!p.of) return;
  const uint32_t count = agent_get_count(&call->in, 16);
  const uint8_t* const pattern = agent_get_bytes(&call->in, count);
  if (!agent_check_fields(call)) return;
  if (count == 0 || (count & (count - 1)) != 0) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "A pattern has %u bytes, expected 1, 2, 4, 8 or 16.",
               count);
    return;
  }
  const size_t bytes = p.of->bytes;
  if ((p.of->texel_bytes ? p.of->texel_bytes : bytes) % count != 0) {
    agent_fail(call, AGENT_ARGUMENT, 0, "",
               "A pattern of %u bytes does not divide memory of %zu bytes, texels of %zu.", count,
               bytes, p.of->texel_bytes);
    return;
  }
  p.bytes = bytes;
  memcpy(p.box.size, p.of->size, sizeof(p.box.size));
  uint8_t* const data = malloc(bytes);
  if (!data) {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for %zu bytes.", bytes);
    return;
  }
  for (size_t i = 0; i < bytes; ++i) data[i] = pattern[i & (count - 1)];
  write_part(call, &p, data);
  free(data);
}

void agent_read(agent_call* call) {
  part p;
  if (!read_box(call, &p)) return;
  p.bytes = agent_get_u64(&call->in);
  if (!agent_check_fields(call) || !check_part(call, &p)) return;
  const queue* const on = p.of->on;
  const size_t bytes = (size_t)p.bytes;
  void* const data = malloc(bytes);
  if (!data) {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for %zu bytes.", bytes);
    return;
  }
  const cl_int code =
      tf_read(&on->device, on->commands, p.of->handle, box_of(&p), (size_t)p.offset, bytes, data);
  if (code == CL_SUCCESS)
    agent_send_data(call, NULL, NULL, data, bytes);
  else
    fail_driver(call, code, "Reading memory");
  free(data);
}

static void release_memory(memory* m) {
  m->on->device.api.clReleaseMemObject(m->handle);
  free(m);
}

static void release_program(program* p) {
  p->on->device.api.clReleaseProgram(p->handle);
  free(p);
}

void agent_free(agent_call* call) {
  const uint32_t count = agent_get_count(&call->in, AGENT_MAX_ITEMS);
  agent_reader handles = call->in;
  agent_get_bytes(&call->in, count * sizeof(uint32_t));
  if (!agent_check_fields(call)) return;
  // Those after one that is missing are released as well.
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t handle = agent_get_u32(&handles);
    memory* const m = agent_take_object(AGENT_MEMORY_OBJECT, handle);
    program* const p = m ? NULL : agent_take_object(AGENT_PROGRAM, handle);
    if (m)
      release_memory(m);
    else if (p)
      release_program(p);
    else
      agent_fail(call, AGENT_MISSING, 0, "", "Handle %u names no memory and no program.", handle);
  }
}

// -- launches -----------------------------------------------------------------------------------

static void release_launches(launches* all) {
  for (uint32_t s = 0; all->sequences && s < all->count; ++s) {
    const sequence* const one = &all->sequences[s];
    tf_recording_end(one->recording);
    for (uint32_t i = 0; one->steps && i < one->count; ++i)
      if (one->steps[i].kernel) all->on->device.api.clReleaseKernel(one->steps[i].kernel);
    free(one->steps);
    free(one->names);
  }
  free(all->sequences);
  free(all->events);
}

// Sets an argument from the request.
static void read_argument(agent_call* call, const launches* all, cl_kernel kernel, kernel_name name,
                          uint32_t number) {
  agent_reader* const in = &call->in;
  const uint32_t kind = agent_get_u32(in);
  size_t bytes = sizeof(cl_mem);
  const void* value = NULL;
  if (kind == 0) {
    const memory* const m = agent_find_object(call, AGENT_MEMORY_OBJECT, agent_get_u32(in));
    if (!m) return;
    if (m->on != all->on) {
      agent_fail(call, AGENT_ARGUMENT, 0, "", "Argument %u is another device's.", number);
      return;
    }
    value = &m->handle;
  } else if (kind == 1) {
    bytes = agent_get_count(in, MAX_VALUE);
    value = agent_get_bytes(in, bytes);
  } else if (kind == 2) {
    bytes = agent_get_u32(in);
  } else {
    in->bad = true;
  }
  if (in->bad) {
    agent_check_fields(call);
    return;
  }
  const cl_int code = all->on->device.api.clSetKernelArg(kernel, number, bytes, value);
  if (code != CL_SUCCESS)
    fail_driver(call, code, "Setting argument %u of kernel '%.*s'", number, name.length, name.text);
}

static void check_sizes(agent_call* call, const tf_device* d, const tf_step* s, const char* name) {
  size_t group = 1;
  bool is_open = true;
  // Zeros, in all dimensions, leave the size to the driver.
  for (cl_uint i = 0; i < s->dimensions; ++i) is_open = is_open && s->local[i] == 0;
  for (cl_uint i = 0; i < s->dimensions; ++i) {
    const size_t local = s->local[i];
    if (s->global[i] == 0 ||
        (!is_open && (local == 0 || s->global[i] % local != 0 || local > d->largest_local[i] ||
                      local > d->largest_group / group))) {
      agent_fail(call, AGENT_ARGUMENT, 0, "",
                 "Kernel '%s' has %zu work-items in groups of %zu along axis %u, which is not "
                 "possible: the device has groups of at most %zu.",
                 name, s->global[i], local, i, d->largest_group);
      return;
    }
    group *= is_open ? 1 : local;
  }
}

static void read_launch(agent_call* call, launches* all, tf_step* s, kernel_name* in_request) {
  agent_reader* const in = &call->in;
  char name[MAX_KERNEL_NAME];
  const program* const p = agent_find_object(call, AGENT_PROGRAM, agent_get_u32(in));
  if (!p) return;
  in_request->text = (const char*)in->at + sizeof(uint32_t);
  agent_get_text(in, name, sizeof(name));
  in_request->length = (int)strlen(name);
  s->dimensions = agent_get_count(in, DIMENSIONS);
  for (int i = 0; i < DIMENSIONS; ++i) s->global[i] = agent_get_u32(in);
  for (int i = 0; i < DIMENSIONS; ++i) s->local[i] = agent_get_u32(in);
  const uint32_t arguments = agent_get_count(in, AGENT_MAX_ITEMS);
  if (in->bad || s->dimensions == 0) {
    in->bad = true;
    agent_check_fields(call);
    return;
  }
  if (!all->on) all->on = p->on;
  if (all->on != p->on) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "A launch has programs of two devices.");
    return;
  }
  check_sizes(call, &p->on->device, s, name);
  if (call->failed) return;
  cl_int code;
  s->kernel = p->on->device.api.clCreateKernel(p->handle, name, &code);
  if (code != CL_SUCCESS) {
    s->kernel = NULL;
    fail_driver(call, code, "Creating kernel '%s'", name);
  }
  for (uint32_t i = 0; i < arguments && !call->failed; ++i)
    read_argument(call, all, s->kernel, *in_request, i);
}

static bool read_launches(agent_call* call, launches* all) {
  agent_reader* const in = &call->in;
  uint32_t most = 0;
  all->count = agent_get_count(in, AGENT_MAX_ITEMS);
  all->sequences = calloc(all->count + 1, sizeof(sequence));
  if (!all->sequences) agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for sequences.");
  for (uint32_t s = 0; s < all->count && !call->failed && !in->bad; ++s) {
    sequence* const one = &all->sequences[s];
    one->count = agent_get_count(in, AGENT_MAX_ITEMS);
    one->steps = calloc(one->count + 1, sizeof(tf_step));
    one->names = calloc(one->count + 1, sizeof(kernel_name));
    if (!one->steps || !one->names) {
      agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for launches.");
      break;
    }
    if (one->count > most) most = one->count;
    for (uint32_t i = 0; i < one->count && !call->failed && !in->bad; ++i)
      read_launch(call, all, &one->steps[i], &one->names[i]);
  }
  all->flags = agent_get_u32(in);
  all->warmup = agent_get_u32(in);
  all->repeats = agent_get_u32(in);
  all->rounds = agent_get_u32(in);
  if (call->failed || !agent_check_fields(call)) return false;
  if (all->warmup > MAX_ROUNDS || all->rounds > MAX_ROUNDS) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "%u warm-up runs and %u rounds, expected at most %d.",
               all->warmup, all->rounds, MAX_ROUNDS);
    return false;
  }
  if (!all->on || all->repeats == 0 || (uint64_t)most * all->repeats > MAX_EVENTS) {
    agent_fail(call, AGENT_ARGUMENT, 0, "",
               "%u launches in a row %u times are outside the limits: 1 to %d in all.", most,
               all->repeats, MAX_EVENTS);
    return false;
  }
  all->events = calloc((size_t)most * all->repeats + 1, sizeof(cl_event));
  if (!all->events) agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for events.");
  return !call->failed;
}

// Records each sequence.  The launches' kernels are their own, so that their arguments do not
// change any more.  Returns false if the call has failed.
static bool record(agent_call* call, launches* all) {
  for (uint32_t s = 0; s < all->count && !call->failed && !agent_is_cancelled(call); ++s) {
    sequence* const one = &all->sequences[s];
    cl_int code;
    one->recording = tf_recording_begin(&all->on->device, all->on->context, all->on->commands,
                                        one->steps, one->count, &code);
    if (one->recording) continue;
    if (code != CL_SUCCESS)
      fail_driver(call, code, "Recording launches");
    else
      agent_fail(call, AGENT_ARGUMENT, 0, "Launch kernels without recording them.",
                 "Recording launches needs cl_khr_command_buffer or cl_qcom_recordable_queues, and "
                 "device '%s' has neither.",
                 all->on->device.name);
  }
  return !call->failed;
}

// Enqueues a sequence, launch by launch; `events` may be NULL.
static void enqueue(agent_call* call, const launches* all, const sequence* one, cl_event* events) {
  for (uint32_t i = 0; i < one->count && !call->failed; ++i) {
    const tf_step* const s = &one->steps[i];
    const cl_int code = all->on->device.api.clEnqueueNDRangeKernel(
        all->on->commands, s->kernel, s->dimensions, NULL, s->global, s->local[0] ? s->local : NULL,
        0, NULL, events ? &events[i] : NULL);
    if (code != CL_SUCCESS)
      fail_driver(call, code, "Launching kernel '%.*s'", one->names[i].length, one->names[i].text);
  }
}

// Enqueues a sequence `times` times and waits; `events` may be NULL.  Returns false if the call has
// failed.
static bool run_sequence(agent_call* call, const launches* all, const sequence* one, uint32_t times,
                         cl_event* events) {
  const tf_opencl* const api = &all->on->device.api;
  cl_int code;
  for (uint32_t t = 0; t < times && !call->failed && !agent_is_cancelled(call); ++t) {
    if (!one->recording) {
      enqueue(call, all, one, events ? events + (size_t)t * one->count : NULL);
      continue;
    }
    // A command buffer must not be enqueued while it runs.
    bool begun;
    code = t ? api->clFinish(all->on->commands) : CL_SUCCESS;
    if (code == CL_SUCCESS) code = tf_recording_enqueue(one->recording, &begun);
    if (code != CL_SUCCESS) fail_driver(call, code, "Replaying recorded launches");
  }
  code = api->clFinish(all->on->commands);
  if (code != CL_SUCCESS) fail_driver(call, code, "Running kernels");
  return !call->failed;
}

// Measures a sequence, and adds its three times to the answer.
static bool measure(agent_call* call, const launches* all, const sequence* one) {
  const tf_device* const d = &all->on->device;
  const size_t count = (size_t)one->count * all->repeats;
  memset(all->events, 0, count * sizeof(cl_event));
  const uint64_t began = now_ns();
  bool known = run_sequence(call, all, one, all->repeats, all->events);
  const uint64_t wall_ns = now_ns() - began;
  cl_ulong first = 0;
  cl_ulong last = 0;
  uint64_t kernels_ns = 0;
  for (size_t i = 0; i < count; ++i) {
    cl_ulong begin = 0;
    cl_ulong end = 0;
    if (!all->events[i]) continue;
    const cl_int code = known ? tf_event_times(d, all->events[i], &begin, &end) : CL_SUCCESS;
    // Some devices' events carry no times.
    if (code != CL_SUCCESS && code != CL_PROFILING_INFO_NOT_AVAILABLE)
      fail_driver(call, code, "Reading kernels' times");
    known = known && code == CL_SUCCESS && begin <= end;
    kernels_ns += end - begin;
    if (i == 0) first = begin;
    last = end;
    d->api.clReleaseEvent(all->events[i]);
  }
  if (call->failed) return false;
  agent_put_u64(&call->answer, known ? kernels_ns : 0);
  agent_put_u64(&call->answer, known ? last - first : 0);
  agent_put_u64(&call->answer, wall_ns);
  return true;
}

static void run_launches(agent_call* call, const launches* all) {
  const uint32_t unmeasured = all->rounds ? all->warmup : 1;
  for (uint32_t i = 0; i < unmeasured; ++i) {
    for (uint32_t s = 0; s < all->count; ++s)
      if (!run_sequence(call, all, &all->sequences[s], 1, NULL)) return;
  }
  for (uint32_t round = 0; round < all->rounds; ++round) {
    for (uint32_t s = 0; s < all->count; ++s)
      if (!measure(call, all, &all->sequences[s])) return;
    if (call->answer.used >= AGENT_PART_BYTES && !agent_send_part(call)) return;
  }
  if (call->answer.used) agent_send_part(call);
}

void agent_launch(agent_call* call) {
  launches all = {0};
  if (read_launches(call, &all) && (!(all.flags & RECORDED) || record(call, &all)))
    run_launches(call, &all);
  release_launches(&all);
}
