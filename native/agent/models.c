// Standalone libraries in the session: opened from blobs, run and timed.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../bindings/tvmflow_library.h"
#include "../core/binaries.h"
#include "session.h"

enum { MAX_NAME = 200, MAX_FILE_NAME = 255, MAX_RUNS = 1000000 };
enum { REPORT_NS = 250000000, LEAST_SAMPLES = 6 };
enum { CACHE_NONE = 0, CACHE_SHARED = 1, CACHE_NEW = 2 };
enum { WITH_COPIES = 1 };
enum { SURE = 0, TIME_UP = 1, RUNS_DONE = 2 };
static const uint64_t max_output_bytes = 1u << 30;  // of all outputs of a run

// Data of an input or an output, as the host gave or wants it.
typedef struct tensor {
  uint32_t index;
  tvmflow_dtype dtype;
  void* data;
  size_t bytes;
} tensor;

typedef struct model {
  tvmflow_library library;
  tvmflow_model* handle;
  uint32_t flags;
  bool has_new_cache;
  char folder[AGENT_MAX_PATH - 208];  // with the library and its sidecars
  uint32_t shape;                     // of the tensors
  tensor* inputs;                     // by their index; NULL: none were given
  tensor* outputs;                    // in the order of the last RUN
  uint32_t input_count;
  uint32_t output_count;
} model;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void release_tensors(tensor** all, uint32_t* count) {
  for (uint32_t i = 0; i < *count; ++i) free((*all)[i].data);
  free(*all);
  *all = NULL;
  *count = 0;
}

// Ends the model, which stores its programs first, and unloads the library.
static void end_model(model* m) {
  if (m->handle) m->library.destroy(m->handle);
  m->handle = NULL;
  tvmflow_library_close(&m->library);
}

static void release(model* m) {
  end_model(m);
  release_tensors(&m->inputs, &m->input_count);
  release_tensors(&m->outputs, &m->output_count);
  if (*m->folder) agent_remove_folder(m->folder);
  free(m);
}

// Fails the call with the library's own message, which has the remedy.
static void fail_library(agent_call* call, const model* m, tvmflow_status status) {
  agent_fail(call, AGENT_LIBRARY, (uint32_t)status, "", "%s",
             m->handle ? m->library.message(m->handle) : "There is no memory for a model.");
}

// Returns whether a text can be a part of a file's name in the model's folder.
static bool is_name(const char* text) {
  static const char allowed[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
  return strlen(text) <= MAX_NAME && text[strspn(text, allowed)] == 0;
}

// Copies a blob to a new file.  Returns 0 or an errno.
static int copy_blob(const agent_store* store, const uint8_t* digest, const char* path) {
  size_t bytes;
  const uint8_t* const data = agent_blob_map(store, digest, &bytes);
  if (!data) return ENOMEM;
  const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
  int code = file < 0 ? errno : 0;
  for (size_t done = 0; !code && done < bytes;) {
    const ssize_t put = write(file, data + done, bytes - done);
    if (put > 0)
      done += (size_t)put;
    else if (put == 0 || errno != EINTR)
      code = put == 0 ? ENOSPC : errno;
  }
  if (file >= 0 && close(file) && !code) code = errno;
  agent_blob_unmap(data, bytes);
  return code;
}

// Places a blob in the model's folder.  Returns false if the call has failed.
static bool place_file(agent_call* call, const model* m, const char* name, const char* suffix,
                       const uint8_t* digest, bool is_copied) {
  char blob[AGENT_MAX_PATH];
  char path[AGENT_MAX_PATH];
  struct stat info;
  if (!is_name(suffix) || strlen(name) + strlen(suffix) > MAX_FILE_NAME) {
    agent_fail(call, AGENT_ARGUMENT, 0, "",
               "A suffix is too long, or has other characters than letters, digits and ._+-.");
    return false;
  }
  agent_blob_path(call->store, digest, blob);
  if (stat(blob, &info)) {
    agent_fail(call, AGENT_MISSING, 0, "Send it first.", "The blob of %s%s is not there.", name,
               suffix);
    return false;
  }
  int code = ENAMETOOLONG;
  if (snprintf(path, sizeof(path), "%s/%s%s", m->folder, name, suffix) < (int)sizeof(path)) {
    if (is_copied)
      code = copy_blob(call->store, digest, path);
    else
      code = symlink(blob, path) ? errno : 0;
  }
  // Two files have the same suffix.
  if (code == EEXIST)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "%s%s is given twice.", name, suffix);
  else if (code)
    agent_fail(call, code == ENOMEM ? AGENT_MEMORY : AGENT_STORE, (uint32_t)code, "",
               "Creating %s failed: %s.", path, strerror(code));
  return !code;
}

// Places the blobs in a new folder.  Returns false if the call has failed.
static bool place_files(agent_call* call, model* m, const char* name) {
  static char suffix[AGENT_MAX_TEXT + 1];
  static unsigned models;
  agent_reader* const in = &call->in;
  const uint32_t count = agent_get_count(in, AGENT_MAX_ITEMS);
  bool has_library = false;
  snprintf(m->folder, sizeof(m->folder), "%s/work/model-%d-%u", call->store->folder, (int)getpid(),
           models++);
  if (mkdir(m->folder, 0700)) {
    agent_fail(call, AGENT_STORE, (uint32_t)errno, "", "Creating %s failed: %s.", m->folder,
               strerror(errno));
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) {
    agent_get_text(in, suffix, sizeof(suffix));
    const uint8_t* const digest = agent_get_bytes(in, AGENT_DIGEST_BYTES);
    if (!digest) break;
    has_library = has_library || !*suffix;
    // Android's `dladdr` follows links, and the library looks for its sidecars next to the path
    // that it returns: a link would have it look among the blobs.
    if (!place_file(call, m, name, suffix, digest, !*suffix && count > 1)) return false;
  }
  if (!in->bad && !has_library)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "None of the files is the library itself.");
  return !call->failed;
}

// Writes the path of the folder for a new cache, whose name no file of the library can have.
static void new_cache_path(const model* m, char path[AGENT_MAX_PATH]) {
  snprintf(path, AGENT_MAX_PATH, "%s/.cache", m->folder);
}

static void open_model(agent_call* call, model* m) {
  agent_reader* const in = &call->in;
  static char given[AGENT_MAX_TEXT + 1];
  char name[MAX_NAME + 1];
  char opencl[AGENT_MAX_PATH];
  char path[AGENT_MAX_PATH];
  char cache[AGENT_MAX_PATH];
  agent_get_text(in, given, sizeof(given));
  if (in->bad) {
    agent_check_fields(call);
    return;
  }
  if (!is_name(given) || !*given || *given == '.') {
    agent_fail(call, AGENT_ARGUMENT, 0, "Rename the file.",
               "A library's name has 1 to %d letters, digits and ._+-, and begins with no dot.",
               MAX_NAME);
    return;
  }
  strcpy(name, given);
  if (!place_files(call, m, name)) return;
  tvmflow_options options = {.struct_size = sizeof(options)};
  options.backend = agent_get_u32(in);
  options.device_index = agent_get_u32(in);
  options.flags = m->flags = agent_get_u32(in);
  options.cpu_threads = agent_get_u32(in);
  options.priority = agent_get_u32(in);
  agent_get_text(in, opencl, sizeof(opencl));
  const uint32_t cached = agent_get_u32(in);
  if (!agent_check_fields(call)) return;
  if (cached > CACHE_NEW) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "The cache is %u, expected 0, 1 or 2.", cached);
    return;
  }
  m->has_new_cache = cached == CACHE_NEW;
  if (m->has_new_cache)
    new_cache_path(m, cache);
  else
    snprintf(cache, sizeof(cache), "%s/cache", call->store->folder);
  if (*opencl) options.opencl_library = opencl;
  if (cached != CACHE_NONE) options.cache_folder = cache;
  snprintf(path, sizeof(path), "%s/%s", m->folder, name);
  const char* const refused = tvmflow_library_open(&m->library, path);
  if (refused) {
    agent_fail(call, AGENT_LIBRARY, 0, "", "%s was not opened: %s.", name, refused);
    return;
  }
  const uint64_t began = now_ns();
  const tvmflow_status status = m->library.create(&options, &m->handle);
  const uint64_t ns = now_ns() - began;
  if (status) {
    fail_library(call, m, status);
    return;
  }
  m->shape = m->library.shape(m->handle);
  const uint32_t handle = agent_add_object(call, AGENT_MODEL, m);
  agent_put_u32(&call->answer, handle);
  agent_put_u64(&call->answer, ns);
  agent_put_text(&call->answer, m->library.describe(m->handle));
}

void agent_open(agent_call* call) {
  model* const m = calloc(1, sizeof(model));
  if (m)
    open_model(call, m);
  else
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for a model.");
  if (m && call->failed) release(m);
}

// Returns the model of the handle at the request's beginning; NULL if the call has failed.
static model* model_of(agent_call* call, uint32_t* handle) {
  *handle = agent_get_u32(&call->in);
  if (!call->in.bad) return agent_find_object(call, AGENT_MODEL, *handle);
  agent_check_fields(call);
  return NULL;
}

// Returns the model, for a request that consists of a handle.
static model* only_model(agent_call* call, uint32_t* handle) {
  model* const m = model_of(call, handle);
  return m && agent_check_fields(call) ? m : NULL;
}

void agent_close(agent_call* call) {
  uint32_t handle;
  model* const m = only_model(call, &handle);
  if (!m) return;
  agent_take_object(AGENT_MODEL, handle);
  release(m);
}

static bool succeeded(agent_call* call, const model* m, tvmflow_status status) {
  if (status) fail_library(call, m, status);
  return !status;
}

// Chooses the shape for the calls that follow; tensors of another one are forgotten.
static bool choose_shape(agent_call* call, model* m, uint32_t shape) {
  if (m->library.shape(m->handle) != shape &&
      !succeeded(call, m, m->library.choose_shape(m->handle, shape)))
    return false;
  if (m->shape != shape) {
    release_tensors(&m->inputs, &m->input_count);
    release_tensors(&m->outputs, &m->output_count);
  }
  m->shape = shape;
  return true;
}

// Makes a list of tensors without data in place of another one; false if the call has failed.
static bool renew(agent_call* call, tensor** all, uint32_t* count, uint32_t wanted) {
  release_tensors(all, count);
  *all = calloc(wanted + 1, sizeof(tensor));
  if (*all)
    *count = wanted;
  else
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for %u tensors.", wanted);
  return *all != NULL;
}

static bool has_inputs(agent_call* call, model* m) {
  return m->inputs || renew(call, &m->inputs, &m->input_count, m->library.input_count(m->handle));
}

// Copies an input's data for this and later calls.
static bool keep_input(agent_call* call, tensor* t, uint32_t index, uint32_t dtype,
                       const uint8_t* digest) {
  size_t bytes = 0;
  const void* const data = agent_blob_map(call->store, digest, &bytes);
  void* const copy = data ? malloc(bytes + 1) : NULL;
  if (copy) memcpy(copy, data, bytes);
  agent_blob_unmap(data, bytes);
  if (!data)
    agent_fail(call, AGENT_MISSING, 0, "Send it first.", "The data of input %u is not there.",
               index);
  else if (!copy)
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the %zu bytes of input %u.",
               bytes, index);
  if (!copy) return false;
  free(t->data);
  *t = (tensor){index, (tvmflow_dtype)dtype, copy, bytes};
  return true;
}

// Takes the inputs of RUN from the request.
static bool read_inputs(agent_call* call, model* m) {
  agent_reader* const in = &call->in;
  const uint32_t given = agent_get_count(in, AGENT_MAX_ITEMS);
  if (!has_inputs(call, m)) return false;
  for (uint32_t i = 0; i < given; ++i) {
    const uint32_t index = agent_get_u32(in);
    const uint32_t dtype = agent_get_u32(in);
    const uint8_t* const digest = agent_get_bytes(in, AGENT_DIGEST_BYTES);
    if (!digest) break;
    if (index >= m->input_count) {
      agent_fail(call, AGENT_ARGUMENT, 0, "", "There is no input %u: the network has %u.", index,
                 m->input_count);
      return false;
    }
    if (!keep_input(call, &m->inputs[index], index, dtype, digest)) return false;
  }
  return true;
}

static bool set_inputs(agent_call* call, const model* m) {
  for (uint32_t i = 0; i < m->input_count; ++i) {
    const tensor* const t = &m->inputs[i];
    if (!succeeded(call, m, m->library.set_input(m->handle, i, t->dtype, t->data, t->bytes)))
      return false;
  }
  return true;
}

// Sets all inputs: those that were never given to zeros, because the library's memory may hold
// anything, or the self-test's inputs.
static bool prepare_inputs(agent_call* call, model* m) {
  if (!has_inputs(call, m)) return false;
  for (uint32_t i = 0; i < m->input_count; ++i) {
    tvmflow_tensor info;
    if (m->inputs[i].data) continue;
    if (!succeeded(call, m, m->library.input(m->handle, i, &info))) return false;
    void* const zeros = calloc(1, info.bytes + 1);
    if (!zeros) {
      agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the %zu bytes of input %u.",
                 info.bytes, i);
      return false;
    }
    m->inputs[i] = (tensor){i, info.dtype, zeros, info.bytes};
  }
  return set_inputs(call, m);
}

// Allocates memory for an output.
static bool want_output(agent_call* call, tensor* t, uint32_t index, uint32_t dtype,
                        uint64_t bytes) {
  void* const data = malloc((size_t)bytes + 1);
  if (!data) {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the %llu bytes of output %u.",
               (unsigned long long)bytes, index);
    return false;
  }
  *t = (tensor){index, (tvmflow_dtype)dtype, data, (size_t)bytes};
  return true;
}

// Takes the wanted outputs of RUN from the request.
static bool read_outputs(agent_call* call, model* m) {
  agent_reader* const in = &call->in;
  const uint32_t there = m->library.output_count(m->handle);
  uint64_t left = max_output_bytes;
  if (!renew(call, &m->outputs, &m->output_count, agent_get_count(in, AGENT_MAX_ITEMS)))
    return false;
  for (uint32_t i = 0; i < m->output_count; ++i) {
    const uint32_t index = agent_get_u32(in);
    const uint32_t dtype = agent_get_u32(in);
    const uint64_t bytes = agent_get_u64(in);
    if (in->bad) break;
    if (index >= there || bytes > left) {
      agent_fail(call, AGENT_ARGUMENT, 0, "",
                 "Output %u with %llu bytes is outside the limits: %u outputs, 1 GiB in all.",
                 index, (unsigned long long)bytes, there);
      return false;
    }
    left -= bytes;
    if (!want_output(call, &m->outputs[i], index, dtype, bytes)) return false;
  }
  return agent_check_fields(call);
}

// Wants all outputs in their own dtype.
static bool want_all(agent_call* call, model* m) {
  if (!renew(call, &m->outputs, &m->output_count, m->library.output_count(m->handle))) return false;
  for (uint32_t i = 0; i < m->output_count; ++i) {
    tvmflow_tensor info;
    if (!succeeded(call, m, m->library.output(m->handle, i, &info)) ||
        !want_output(call, &m->outputs[i], i, info.dtype, info.bytes))
      return false;
  }
  return true;
}

static bool get_output(agent_call* call, const model* m, const tensor* t) {
  return succeeded(call, m,
                   m->library.get_output(m->handle, t->index, t->dtype, t->data, t->bytes));
}

static void put_position(agent_writer* writer, const void* position) {
  agent_put_u32(writer, *(const uint32_t*)position);
}

static void run(agent_call* call, model* m) {
  const uint32_t shape = agent_get_u32(&call->in);
  if (call->in.bad) {
    agent_check_fields(call);
    return;
  }
  if (!choose_shape(call, m, shape) || !read_inputs(call, m) || !read_outputs(call, m) ||
      !prepare_inputs(call, m))
    return;
  const uint64_t began = now_ns();
  if (!succeeded(call, m, m->library.run(m->handle))) return;
  const uint64_t ns = now_ns() - began;
  for (uint32_t i = 0; i < m->output_count; ++i) {
    const tensor* const t = &m->outputs[i];
    if (agent_is_cancelled(call) || !get_output(call, m, t) ||
        !agent_send_data(call, put_position, &i, t->data, t->bytes))
      return;
  }
  agent_put_u64(&call->answer, ns);
}

void agent_run(agent_call* call) {
  uint32_t handle;
  model* const m = model_of(call, &handle);
  if (!m) return;
  run(call, m);
  // TIME would use outputs that the library has refused.
  if (call->failed) release_tensors(&m->outputs, &m->output_count);
}

// -- times --------------------------------------------------------------------------------------

// Times of runs, sorted, to find the interval that contains the median.
typedef struct samples {
  uint64_t* ns;
  uint32_t count;
  uint32_t room;
} samples;

static bool add_sample(samples* s, uint64_t ns) {
  if (s->count == s->room) {
    const uint32_t room = s->room ? 2 * s->room : 256;
    uint64_t* const more = realloc(s->ns, room * sizeof(uint64_t));
    if (!more) return false;
    s->ns = more;
    s->room = room;
  }
  uint32_t low = 0;
  for (uint32_t high = s->count; low < high;) {
    const uint32_t middle = low + (high - low) / 2;
    if (s->ns[middle] < ns)
      low = middle + 1;
    else
      high = middle;
  }
  memmove(s->ns + low + 1, s->ns + low, (s->count - low) * sizeof(uint64_t));
  s->ns[low] = ns;
  ++s->count;
  return true;
}

// Returns whether half of the 95 % interval of the median, from order statistics, is at most
// `share` of the median.
static bool is_sure(const samples* s, double share) {
  if (s->count < LEAST_SAMPLES || share <= 0) return false;
  const double half = 0.98 * sqrt(s->count);
  const double centre = (s->count - 1) / 2.0;
  const uint32_t low = centre > half ? (uint32_t)(centre - half) : 0;
  const uint32_t high = s->count - 1 - low;
  return (double)(s->ns[high] - s->ns[low]) <= 2 * share * (double)s->ns[s->count / 2];
}

// Runs once, with the copies of inputs and outputs if they are asked for.
static bool run_once(agent_call* call, const model* m, bool copies, uint64_t* ns) {
  const uint64_t began = now_ns();
  if (copies && !set_inputs(call, m)) return false;
  if (!succeeded(call, m, m->library.run(m->handle))) return false;
  for (uint32_t i = 0; copies && i < m->output_count; ++i)
    if (!get_output(call, m, &m->outputs[i])) return false;
  *ns = now_ns() - began;
  return true;
}

// Returns whether a number of runs is within the limit; fails the call if not.
static bool check_runs(agent_call* call, uint32_t runs) {
  if (runs > MAX_RUNS)
    agent_fail(call, AGENT_ARGUMENT, 0, "", "%u runs are more than the limit, %d.", runs, MAX_RUNS);
  return runs <= MAX_RUNS;
}

void agent_time(agent_call* call) {
  agent_reader* const in = &call->in;
  uint32_t handle;
  model* const m = model_of(call, &handle);
  if (!m) return;
  const uint32_t shape = agent_get_u32(in);
  const uint32_t flags = agent_get_u32(in);
  const uint32_t warmup = agent_get_u32(in);
  const uint32_t most = agent_get_u32(in);
  const uint64_t most_ns = agent_get_u64(in);
  const double share = agent_get_f64(in);
  const bool copies = flags & WITH_COPIES;
  if (!agent_check_fields(call) || !check_runs(call, warmup) || !check_runs(call, most) ||
      !choose_shape(call, m, shape) || !prepare_inputs(call, m))
    return;
  if (copies && !m->output_count && !want_all(call, m)) return;
  uint64_t ns;
  for (uint32_t i = 0; i < warmup; ++i)
    if (agent_is_cancelled(call) || !run_once(call, m, copies, &ns)) return;
  samples found = {0};
  uint32_t reason = RUNS_DONE;
  uint64_t reported = now_ns();
  const uint64_t ends = most_ns < UINT64_MAX - reported ? reported + most_ns : UINT64_MAX;
  while (found.count < most && !agent_is_cancelled(call) && run_once(call, m, copies, &ns)) {
    if (!add_sample(&found, ns)) {
      agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the times.");
      break;
    }
    agent_put_u64(&call->answer, ns);
    const uint64_t now = now_ns();
    const bool sure = is_sure(&found, share);
    if (sure || now >= ends) {
      reason = sure ? SURE : TIME_UP;
      break;
    }
    if (now - reported < REPORT_NS && call->answer.used < AGENT_PART_BYTES) continue;
    reported = now;
    if (!agent_send_part(call)) break;
  }
  free(found.ns);
  if (call->answer.used) agent_send_part(call);
  agent_put_u32(&call->answer, reason);
}

void agent_profile(agent_call* call) {
  uint32_t handle;
  model* const m = model_of(call, &handle);
  if (!m) return;
  const uint32_t shape = agent_get_u32(&call->in);
  const uint32_t runs = agent_get_u32(&call->in);
  if (!agent_check_fields(call) || !check_runs(call, runs)) return;
  if (!(m->flags & TVMFLOW_PROFILE)) {
    agent_fail(call, AGENT_ARGUMENT, 0, "Open it with this flag.",
               "The model was opened without the flag for profiles.");
    return;
  }
  if (!choose_shape(call, m, shape) || !prepare_inputs(call, m)) return;
  for (uint32_t run = 0; run < runs && !agent_is_cancelled(call); ++run) {
    const tvmflow_kernel* kernels;
    uint32_t count;
    if (!succeeded(call, m, m->library.profile(m->handle, &kernels, &count))) return;
    agent_put_u32(&call->answer, count);
    for (uint32_t i = 0; i < count; ++i) {
      agent_put_u64(&call->answer, kernels[i].start_ns);
      agent_put_u64(&call->answer, kernels[i].end_ns);
      agent_put_text(&call->answer, kernels[i].name);
    }
    if (!agent_send_part(call)) return;
  }
}

void agent_self_test(agent_call* call) {
  tvmflow_test result = {0};
  tvmflow_test_options options = {.struct_size = sizeof(options)};
  uint32_t handle;
  const model* const m = model_of(call, &handle);
  if (!m) return;
  options.runs = agent_get_u32(&call->in);
  options.pause_ms = agent_get_u32(&call->in);
  options.budget_ms = agent_get_u32(&call->in);
  options.flags = agent_get_u32(&call->in);
  if (!agent_check_fields(call)) return;
  const tvmflow_status status = m->library.self_test_with(m->handle, &options, &result);
  // A wrong result is an answer, too.
  if (status != TVMFLOW_ERROR_WRONG && !succeeded(call, m, status)) return;
  agent_put_text(&call->answer, status ? m->library.message(m->handle) : "");
  agent_put_text(&call->answer, m->library.test_report(m->handle));
  agent_put_f64(&call->answer, result.largest_error);
  agent_put_f64(&call->answer, result.tolerance_used);
  agent_put_u64(&call->answer, result.compared);
}

// Called in the tuning's thread, while the session's waits.
static void report_progress(void* user, double done) {
  agent_call* const call = user;
  agent_put_f64(&call->answer, done);
  agent_send_part(call);
}

void agent_tune(agent_call* call) {
  uint32_t handle;
  const model* const m = model_of(call, &handle);
  if (!m) return;
  const uint32_t budget_ms = agent_get_u32(&call->in);
  if (!agent_check_fields(call) ||
      !succeeded(call, m, m->library.tune(m->handle, budget_ms, report_progress, call)) ||
      !succeeded(call, m, m->library.tune_wait(m->handle)))
    return;
  agent_put_text(&call->answer, m->library.tune_report(m->handle));
}

void agent_describe(agent_call* call) {
  uint32_t handle;
  const model* const m = only_model(call, &handle);
  if (m) agent_put_text(&call->answer, m->library.describe(m->handle));
}

// -- binaries -----------------------------------------------------------------------------------

// A file on its way to the host.
typedef struct sent_file {
  const char* name;
  uint64_t bytes;
} sent_file;

static void put_file(agent_writer* writer, const void* context) {
  const sent_file* const file = context;
  agent_put_text(writer, file->name);
  agent_put_u64(writer, file->bytes);
}

static bool send_file(agent_call* call, const char* path, const char* name) {
  const char* wrong;
  size_t bytes = 0;
  const int file = tf_open_file(path, &bytes, &wrong);
  uint8_t* const data = file < 0 ? NULL : malloc(bytes + 1);
  const ssize_t got = data ? pread(file, data, bytes, 0) : -1;
  const sent_file sent = {name, bytes};
  if (file >= 0) close(file);
  if (data && got == (ssize_t)bytes)
    agent_send_data(call, put_file, &sent, data, bytes);
  else if (file >= 0 && !data)
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the %zu bytes of %s.", bytes,
               path);
  else
    agent_fail(call, AGENT_STORE, EIO, "", "Reading %s failed.", path);
  free(data);
  return !call->failed;
}

// Sends the regular files of a folder and of those in it; returns their number.
static uint32_t send_folder(agent_call* call, const char* path) {
  uint32_t count = 0;
  DIR* const folder = opendir(path);
  if (!folder) return 0;
  for (const struct dirent* item; !call->failed && (item = readdir(folder)) != NULL;) {
    char inner[AGENT_MAX_PATH];
    struct stat info;
    if (item->d_name[0] == '.' ||
        snprintf(inner, sizeof(inner), "%s/%s", path, item->d_name) >= (int)sizeof(inner) ||
        lstat(inner, &info))
      continue;
    if (S_ISDIR(info.st_mode))
      count += send_folder(call, inner);
    else if (S_ISREG(info.st_mode) && send_file(call, inner, item->d_name))
      ++count;
  }
  closedir(folder);
  return count;
}

void agent_binaries(agent_call* call) {
  uint32_t handle;
  char path[AGENT_MAX_PATH];
  model* const m = only_model(call, &handle);
  if (!m) return;
  if (!m->has_new_cache) {
    agent_fail(call, AGENT_ARGUMENT, 0, "", "The model was opened without a new cache.");
    return;
  }
  agent_take_object(AGENT_MODEL, handle);
  end_model(m);
  new_cache_path(m, path);
  const uint32_t count = send_folder(call, path);
  release(m);
  agent_put_u32(&call->answer, count);
}
