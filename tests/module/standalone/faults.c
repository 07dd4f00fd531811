// Lets every OpenCL call, allocation or file operation of a whole life of an instance fail in
// turn.  Linked with the runtime and a plan; the OpenCL library is the fake one.
//
//   faults LIBRARY FOLDER opencl|memory|files [cache] [recording] [beside] [always]
//
// FOLDER has input.bin and expected.bin of the network's only input and output, as float32, and
// weights.bin, which is used with "beside".
// A second run only enqueues.  After each failure: an error with a sentence, or right results; no
// object and no memory is left; and an instance of which a later call failed once is good again.
// Prints how many failures there were; a line and exit status 1 where something was wrong.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"
#include "tvmflow.h"

// ---- Allocations and file operations of the runtime, by the linker's --wrap -----------------

static atomic_ulong attempts, fail_at;  // 0: none
static atomic_bool fail_always, counting;

static bool fails(bool memory, bool wanted_memory) {
  if (!atomic_load(&counting) || memory != wanted_memory) return false;
  const unsigned long n = atomic_fetch_add(&attempts, 1) + 1, at = atomic_load(&fail_at);
  return at && (n == at || (atomic_load(&fail_always) && n > at));
}
static bool fail_memory, fail_files;

#define WRAP(result, name, parameters, arguments, memory, failure)                                 \
  result __real_##name parameters;                                                                 \
  result __wrap_##name parameters;                                                                 \
  result __wrap_##name parameters {                                                                \
    if ((memory) ? fail_memory && fails(true, true) : fail_files && fails(false, false)) {         \
      errno = (memory) ? ENOMEM : EIO;                                                             \
      return failure;                                                                              \
    }                                                                                              \
    return __real_##name arguments;                                                                \
  }
WRAP(void*, malloc, (size_t n), (n), true, NULL)
WRAP(void*, calloc, (size_t n, size_t m), (n, m), true, NULL)
WRAP(void*, realloc, (void* p, size_t n), (p, n), true, NULL)
WRAP(int, posix_memalign, (void** p, size_t a, size_t n), (p, a, n), true, ENOMEM)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t* a, void* (*f)(void*), void* p),
     (t, a, f, p), true, EAGAIN)
WRAP(ssize_t, read, (int f, void* p, size_t n), (f, p, n), false, -1)
WRAP(ssize_t, write, (int f, const void* p, size_t n), (f, p, n), false, -1)
WRAP(int, rename, (const char* a, const char* b), (a, b), false, -1)
WRAP(int, mkdir, (const char* a, mode_t m), (a, m), false, -1)
WRAP(int, fstat, (int f, struct stat* s), (f, s), false, -1)
WRAP(int, stat, (const char* f, struct stat* s), (f, s), false, -1)
WRAP(void*, mmap, (void* a, size_t n, int p, int f, int d, off_t o), (a, n, p, f, d, o), false,
     MAP_FAILED)
int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  if (fail_files && fails(false, false)) {
    errno = ENOSPC;
    return -1;
  }
  va_list list;
  va_start(list, flags);
  const int mode = flags & O_CREAT ? va_arg(list, int) : 0;
  va_end(list);
  return __real_open(path, flags, mode);
}

// ---- One life -------------------------------------------------------------------------------

static struct {
  void (*set)(const char*, const char*);
  void (*fail)(const char*, uint64_t, int32_t, bool);
  uint64_t (*count)(const char*);
  const char* (*failed)(void);
  const char* (*violations)(void);
  uint64_t (*live)(void);
  const char* (*live_text)(void);
  uint64_t (*memory)(void);
  void (*reset)(void);
} fake;

static const char* library;
static char cache_folder[4096], weights_path[4096];
static float *input, *expected, *found;
static size_t input_bytes, output_bytes;
static bool with_cache, beside, wrong;
static unsigned long round_number;
static char where[128];

static void complain(const char* what, const char* detail) {
  printf("failure %lu (%s): %s%s%s\n", round_number, where, what, *detail ? ": " : "", detail);
  wrong = true;
}

// An error needs a sentence, and a good call none; gives whether it was good.
static bool check(const tvmflow_model* model, const char* call, tvmflow_status status) {
  snprintf(where, sizeof(where), "%s, %s", call, fake.failed());
  if (status < TVMFLOW_OK || status > TVMFLOW_ERROR_WRONG) complain("no such status", call);
  if (status == TVMFLOW_OK) return true;
  const char* message = tvmflow_message(model);
  // A picture that failed leaves an input that is not used.
  if (strstr(message, "has not been set since the device failed")) return false;
  if (status == TVMFLOW_ERROR_ARGUMENT || status == TVMFLOW_ERROR_BUSY)
    complain("it is not the application's fault", message);
  if (strlen(message) < 20) complain("no sentence", message);
  // What the driver answered, but where it was only asked about its devices.
  if (fake.failed()[0] && strncmp(fake.failed(), "clGet", 5) && !strstr(message, "CL_") &&
      !strstr(message, "the last run failed"))
    complain("it does not name the error", message);
  return false;
}

static bool right(void) {
  for (size_t i = 0; i < output_bytes / sizeof(float); ++i)
    if (!(fabsf(found[i] - expected[i]) <= 1e-5f + 2e-3f * fabsf(expected[i]))) return false;
  return true;
}

// What only creating an instance does: allocations, and calls that make or set something.
static uint64_t preparations(void) {
  static const char* const calls[] = {"clSetKernelArg", "clCreateKernel",
                                      "clCreateBuffer", "clCreateImage",
                                      "clBuildProgram", "clCreateCommandBufferKHR"};
  uint64_t sum = atomic_load(&attempts);
  for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) sum += fake.count(calls[i]);
  return sum;
}

// On the CPU a run that is started has one.
#ifdef ON_CPU
static const bool has_thread = true;
#else
static const bool has_thread = false;
#endif

// The input: with PICTURE four rows of four pixels, of which it has the levels.
static tvmflow_status set(tvmflow_model* model) {
#ifdef PICTURE
  static uint8_t pixels[4][4][4];
  for (unsigned i = 0; i < 48; ++i) pixels[i / 4 % 4][i % 4][i / 16] = (uint8_t)input[i];
  const tvmflow_image image = {
      .struct_size = sizeof(image), .width = 4, .height = 4, .planes = {pixels}};
  return tvmflow_set_image(model, 0, &image);
#else
  return tvmflow_set_input(model, 0, TVMFLOW_FLOAT32, input, input_bytes);
#endif
}

#ifdef ON_CPU
static atomic_int notes;
static void note(void* model, tvmflow_status status) {
  (void)model, (void)status;
  ++notes;
}
#endif

// Everything that can be done with an instance; whether all of it was good.
static bool use(tvmflow_model* model, bool profiled) {
  bool good = true;
  memset(found, 0xFF, output_bytes);
  good &= check(model, "set", set(model));
  if (good) good &= check(model, "warm_up", tvmflow_warm_up(model));
  if (good) good &= check(model, "run", tvmflow_run(model));
  // Wrong results are only to be expected after an error.
  const bool ran = good;
  const bool got = check(model, "get_output",
                         tvmflow_get_output(model, 0, TVMFLOW_FLOAT32, found, output_bytes));
  if (ran && got && !right()) complain("wrong results without an error", "");
  good &= got;
  // Waits for the thread that keeps binaries.
  (void)tvmflow_describe(model);
  const uint64_t before = preparations();
  good &= check(model, "start", tvmflow_start(model));
  good &= check(model, "wait", tvmflow_wait(model));
  if (good && !has_thread && preparations() != before) complain("a run does more than enqueue", "");
#ifdef ON_CPU
  // Told once of each run that was started, and of no other.
  const tvmflow_run_options told = {sizeof(told), .done = note, .user = model};
  notes = 0;
  const bool begun = check(model, "run_async", tvmflow_run_async(model, &told));
  const bool ended = check(model, "wait", tvmflow_wait(model));
  if (notes != begun) complain("told of another run", "");
  good &= begun && ended;
#endif
  const tvmflow_kernel* kernels = NULL;
  uint32_t count = 0;
  if (profiled) {
    good &= check(model, "profile", tvmflow_profile(model, &kernels, &count));
    for (uint32_t i = 0; good && i < count; ++i)
      if (kernels[i].end_ns <= kernels[i].start_ns) complain("no time", kernels[i].name);
  }
  good &= check(model, "self_test", tvmflow_self_test(model, NULL));
  return good;
}

static bool live(bool always) {
  tvmflow_model* model = NULL;
  tvmflow_options options = {.struct_size = sizeof(options), .opencl_library = library};
  if (with_cache) options.cache_folder = cache_folder;
  if (beside) options.weights_path = weights_path;
  bool good = true;
  for (int profiled = 0; profiled < 2; ++profiled) {
    options.flags = profiled ? TVMFLOW_PROFILE : 0;
    const tvmflow_status status = tvmflow_create(&options, &model);
    if (!model) {
      good = false;
      if (status != TVMFLOW_ERROR_MEMORY) complain("no instance and no error", "");
      continue;
    }
    if (!check(model, "create", status)) {
      good = false;
      if (tvmflow_run(model) == TVMFLOW_OK) complain("an instance that failed runs", "");
    } else if (!use(model, profiled)) {
      good = false;
      // What failed once does not fail again.
      if (!always && !use(model, profiled)) complain("it stays bad", tvmflow_message(model));
    }
    tvmflow_destroy(model);
  }
  return good;
}

static void clear_cache(void) {
  char command[4200];
  snprintf(command, sizeof(command), "rm -rf '%s'", cache_folder);
  if (with_cache && system(command) != 0) complain("rm", command);
}

static void* read_file(const char* folder, const char* name, size_t* bytes) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE* file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void* data = malloc(*bytes);
  if (fread(data, 1, *bytes, file) != *bytes) exit(3);
  fclose(file);
  return data;
}

// Where the sanitizer is linked in.
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

int main(int count, char** arguments) {
  library = arguments[1];
  snprintf(cache_folder, sizeof(cache_folder), "%s/cache", arguments[2]);
  snprintf(weights_path, sizeof(weights_path), "%s/weights.bin", arguments[2]);
  bool opencl = false, recording = false, always = false;
  for (int i = 3; i < count; ++i) {
    opencl |= !strcmp(arguments[i], "opencl");
    fail_memory |= !strcmp(arguments[i], "memory");
    fail_files |= !strcmp(arguments[i], "files");
    with_cache |= !strcmp(arguments[i], "cache");
    recording |= !strcmp(arguments[i], "recording");
    beside |= !strcmp(arguments[i], "beside");
    always |= !strcmp(arguments[i], "always");
  }
  void* handle = dlopen(library, RTLD_NOW);
  if (!handle) return 3;
#define FIND(name) *(void**)&fake.name = dlsym(handle, "fake_" #name)
  FIND(set), FIND(fail), FIND(count), FIND(failed), FIND(violations), FIND(live), FIND(live_text);
  FIND(memory), FIND(reset);
  if (recording) fake.set("EXTENSIONS", "cl_khr_command_buffer");
  input = read_file(arguments[2], "input.bin", &input_bytes);
  expected = read_file(arguments[2], "expected.bin", &output_bytes);
  found = malloc(output_bytes);
  // Drivers keep what they were given memory for at first: not a leak.
  if (!live(false)) complain("it does not even work without failures", "");

  unsigned long failures = 0, noticed = 0;
  for (round_number = 1;; ++round_number) {
    // With a full cache every other time, so that both ways of making programs fail.
    if (with_cache && round_number % 2) clear_cache();
    fake.reset();
    atomic_store(&attempts, 0);
    atomic_store(&fail_at, opencl ? 0 : round_number);
    atomic_store(&fail_always, always);
    if (opencl) fake.fail(NULL, round_number, round_number % 3 ? -5 : -4, always);
    atomic_store(&counting, true);
    noticed += !live(always);
    atomic_store(&counting, false);
    const bool failed = opencl ? *fake.failed() : atomic_load(&attempts) >= round_number;
    if (*fake.violations()) complain("wrong arguments", fake.violations());
    if (fake.live()) {
      complain("objects are left", fake.live_text());
      break;
    }
    if (fake.memory()) complain("device memory is left", "");
    if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
      complain("memory is left", "");
    if (wrong || !failed) break;
    ++failures;
  }
  printf("%lu failures, %lu of them errors\n", failures, noticed);
  free(input);
  free(expected);
  free(found);
  return wrong;
}
