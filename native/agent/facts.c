// Facts about the device: system, processor, and every OpenCL device.
#define _GNU_SOURCE  // dladdr

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../core/device.h"
#include "../core/library_names.h"
#include "../core/text.h"
#include "json.h"
#include "session.h"
#include "system_files.h"

enum { PROPERTY_BYTES = 92, MAX_CPUS = 256, MAX_EXTENSIONS = 512, TRIED_BYTES = 16384 };
// Flag of FACTS.
enum { WITHOUT_OPENCL = 1 };

// Further facts of devices (OpenCL 1.2, 4.2).
static const cl_uint CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE = 0x1020;
static const cl_uint CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
static const cl_uint CL_DEVICE_IMAGE_MAX_BUFFER_SIZE = 0x1040;
enum { LOCAL = 1, GLOBAL = 2 };

#if defined(__aarch64__)
static const char abi[] = "aarch64";
#elif defined(__x86_64__)
static const char abi[] = "x86_64";
#elif defined(__arm__)
static const char abi[] = "arm";
#else
static const char abi[] = "";
#endif

typedef int (*get_property)(const char* name, char* value);

static void add_property(agent_json* json, const char* name, get_property get, const char* property,
                         const char* more) {
  char value[2 * PROPERTY_BYTES + 1] = "";
  get(property, value);
  if (more) {
    const size_t used = strlen(value);
    const size_t space = used ? 1 : 0;
    if (get(more, value + used + space) > 0 && space) value[used] = ' ';
  }
  agent_json_text(json, name, value);
}

// Adds the value of a line such as `PRETTY_NAME="Debian"` of a file.
static void add_release(agent_json* json) {
  static const char key[] = "PRETTY_NAME=\"";
  char text[4096];
  const int file = open("/etc/os-release", O_RDONLY | O_CLOEXEC);
  const ssize_t got = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
  if (file >= 0) close(file);
  text[got > 0 ? got : 0] = 0;
  char* const found = strstr(text, key);
  if (!found) return;
  char* const value = found + sizeof(key) - 1;
  value[strcspn(value, "\"\n")] = 0;
  agent_json_text(json, "release", value);
}

// Adds the kernel's release, the third word of /proc/version: the file with the release alone is
// closed to Android's shell.
static void add_kernel(agent_json* json) {
  char text[256];
  char* rest = NULL;
  if (!agent_read_line(agent_proc(), "version", NULL, text, sizeof(text))) return;
  char* word = strtok_r(text, " ", &rest);
  for (int i = 0; word && i < 2; ++i) word = strtok_r(NULL, " ", &rest);
  agent_json_text(json, "kernel", word);
}

static void add_system(agent_json* json) {
  // bionic has it, and no other C library does.  The process itself is named by a handle, as 32-bit
  // Android has another RTLD_DEFAULT.
  void* const itself = dlopen(NULL, RTLD_LAZY);
  void* const symbol = itself ? dlsym(itself, "__system_property_get") : NULL;
  unsigned bits = 8 * sizeof(void*);
  char text[256];
  double value;
  agent_json_text(json, "system", symbol ? "android" : "linux");
  if (symbol) {
    get_property get;
    memcpy(&get, &symbol, sizeof(get));
    add_property(json, "model", get, "ro.product.manufacturer", "ro.product.model");
    add_property(json, "soc", get, "ro.soc.manufacturer", "ro.soc.model");
    add_property(json, "release", get, "ro.build.version.release", NULL);
    add_property(json, "api_level", get, "ro.build.version.sdk", NULL);
    add_property(json, "build", get, "ro.build.id", NULL);
    add_property(json, "abi", get, "ro.product.cpu.abilist", NULL);
    if (get("ro.product.cpu.abilist64", text) > 0) bits = 64;
  } else {
    add_release(json);
    agent_json_text(json, "abi", abi);
    if (agent_read_line(agent_proc(), "device-tree/model", NULL, text, sizeof(text)))
      agent_json_text(json, "model", text);
  }
  add_kernel(json);
  agent_json_number(json, "bits", bits);
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) {
    value = (double)pages * (double)page;
    agent_json_number(json, "memory_bytes", (uint64_t)value);
  }
}

// Finds a key of processor `cpu` in /proc/cpuinfo, which leaves out those that are switched off.
static bool cpu_value(const char* cpuinfo, const char* key, unsigned cpu, char* text,
                      size_t bytes) {
  unsigned long current = 0;
  for (const char* line = cpuinfo; line; line = strchr(line, '\n')) {
    if (*line == '\n') ++line;
    const size_t length = strcspn(line, "\t:\n");
    const char* const value = line + length + strspn(line + length, "\t :");
    if (length == 9 && strncmp(line, "processor", length) == 0) current = strtoul(value, NULL, 10);
    if (current != cpu || length != strlen(key) || strncmp(line, key, length) != 0) continue;
    snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
    return *text != 0;
  }
  return false;
}

static void add_cpus(agent_json* json) {
  static char cpuinfo[1 << 18];
  char path[AGENT_MAX_PATH];
  snprintf(path, sizeof(path), "%s/cpuinfo", agent_proc());
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  size_t used = 0;
  ssize_t got;
  while (file >= 0 && used < sizeof(cpuinfo) - 1 &&
         (got = read(file, cpuinfo + used, sizeof(cpuinfo) - 1 - used)) > 0)
    used += (size_t)got;
  if (file >= 0) close(file);
  cpuinfo[used] = 0;
  agent_json_open(json, "cpus", '[');
  for (unsigned i = 0; i < MAX_CPUS; ++i) {
    char name[96];
    char text[128];
    double khz;
    const bool is_known = cpu_value(cpuinfo, "CPU part", i, text, sizeof(text)) ||
                          cpu_value(cpuinfo, "model name", i, text, sizeof(text));
    snprintf(path, sizeof(path), "%s/devices/system/cpu/cpu%u", agent_sys(), i);
    if (!is_known && access(path, F_OK)) break;
    agent_json_open(json, NULL, '{');
    if (is_known) agent_json_text(json, "part", text);
    // Numbers of parts are the implementer's own.
    if (cpu_value(cpuinfo, "CPU implementer", i, text, sizeof(text)))
      agent_json_text(json, "implementer", text);
    snprintf(name, sizeof(name), "devices/system/cpu/cpu%u/cpufreq", i);
    if (agent_read_number(agent_sys(), name, "cpuinfo_min_freq", &khz))
      agent_json_real(json, "min_khz", khz);
    if (agent_read_number(agent_sys(), name, "cpuinfo_max_freq", &khz))
      agent_json_real(json, "max_khz", khz);
    agent_json_close(json, '}');
  }
  agent_json_close(json, ']');
  char features[4096];
  if (cpu_value(cpuinfo, "Features", 0, features, sizeof(features)) ||
      cpu_value(cpuinfo, "flags", 0, features, sizeof(features)))
    agent_json_text(json, "features", features);
}

// Adds a text that clGetDeviceInfo or clGetPlatformInfo answers, without spaces at its end.
static void add_text_of(agent_json* json, const char* name,
                        cl_int (*ask)(ClObject*, cl_uint, size_t, void*, size_t*), ClObject* object,
                        cl_uint what) {
  char* const text = tf_query_text(ask, object, what);
  for (size_t length = text ? strlen(text) : 0; length && text[length - 1] == ' ';)
    text[--length] = 0;
  agent_json_text(json, name, text);
  free(text);
}

// Adds the version of the compiler, which Qualcomm's drivers name after their own.
static void add_compiler(agent_json* json, const tf_device* d) {
  static const char key[] = "Compiler ";
  char* const driver = tf_query_text(d->api.clGetDeviceInfo, d->id, CL_DRIVER_VERSION);
  char* const found = driver ? strstr(driver, key) : NULL;
  char* const version = found ? found + sizeof(key) - 1 : driver;
  if (found) version[strcspn(version, " ")] = 0;
  agent_json_text(json, "compiler_version", version);
  free(driver);
}

// Adds the path of the library that has the functions.
static void add_library(agent_json* json, const tf_device* d) {
  void* code;
  Dl_info file;
  memcpy(&code, &d->api.clGetPlatformInfo, sizeof(code));
  const bool found = dladdr(code, &file) && file.dli_fname;
  agent_json_text(json, "library", found ? file.dli_fname : d->library);
}

static uint64_t number_of(const tf_device* d, cl_uint what, size_t bytes) {
  uint64_t value = 0;
  // Little-endian: a shorter number fills the beginning.
  (void)d->api.clGetDeviceInfo(d->id, what, bytes, &value, NULL);
  return value;
}

static int compare_words(const void* a, const void* b) {
  return strcmp(*(const char* const*)a, *(const char* const*)b);
}

static void add_extensions(agent_json* json, const tf_device* d) {
  const char* words[MAX_EXTENSIONS];
  size_t count = 0;
  char* const list = tf_query_text(d->api.clGetDeviceInfo, d->id, CL_DEVICE_EXTENSIONS);
  char* rest = NULL;
  for (char* word = list ? strtok_r(list, " ", &rest) : NULL; word && count < MAX_EXTENSIONS;
       word = strtok_r(NULL, " ", &rest))
    words[count++] = word;
  qsort(words, count, sizeof(words[0]), compare_words);
  agent_json_open(json, "extensions", '[');
  for (size_t i = 0; i < count; ++i) agent_json_text(json, NULL, words[i]);
  agent_json_close(json, ']');
  free(list);
}

static void add_device(agent_json* json, const tf_device* d, unsigned index) {
  const tf_opencl* const api = &d->api;
  const uint64_t local_type = number_of(d, CL_DEVICE_LOCAL_MEM_TYPE, 4);
  agent_json_open(json, NULL, '{');
  agent_json_text(json, "kind", "opencl");
  agent_json_number(json, "index", index);
  add_text_of(json, "name", api->clGetDeviceInfo, d->id, CL_DEVICE_NAME);
  add_text_of(json, "vendor", api->clGetDeviceInfo, d->id, CL_DEVICE_VENDOR);
  add_text_of(json, "version", api->clGetDeviceInfo, d->id, CL_DEVICE_VERSION);
  add_text_of(json, "driver", api->clGetDeviceInfo, d->id, CL_DRIVER_VERSION);
  add_compiler(json, d);
  add_text_of(json, "opencl_c_version", api->clGetDeviceInfo, d->id, CL_DEVICE_OPENCL_C_VERSION);
  agent_json_text(json, "device_type", tf_device_type(d));
  add_text_of(json, "platform", api->clGetPlatformInfo, d->platform, CL_PLATFORM_NAME);
  add_text_of(json, "platform_version", api->clGetPlatformInfo, d->platform, CL_PLATFORM_VERSION);
  add_library(json, d);
  agent_json_number(json, "compute_units", number_of(d, CL_DEVICE_MAX_COMPUTE_UNITS, 4));
  agent_json_number(json, "clock_mhz", number_of(d, CL_DEVICE_MAX_CLOCK_FREQUENCY, 4));
  agent_json_number(json, "max_work_group_size", d->largest_group);
  agent_json_number(json, "local_memory_bytes", number_of(d, CL_DEVICE_LOCAL_MEM_SIZE, 8));
  if (local_type == LOCAL || local_type == GLOBAL)
    agent_json_text(json, "local_memory_type", local_type == LOCAL ? "local" : "global");
  agent_json_number(json, "max_constant_bytes",
                    number_of(d, CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE, 8));
  agent_json_number(json, "global_cache_bytes", number_of(d, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 8));
  agent_json_number(json, "global_memory_bytes", d->memory_bytes);
  agent_json_number(json, "max_allocation_bytes", d->largest_allocation);
  agent_json_number(json, "native_vector_width_float",
                    number_of(d, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, 4));
  agent_json_bool(json, "fp16", tf_device_has(d, "cl_khr_fp16"));
  agent_json_bool(json, "images", d->largest_image[0] != 0);
  agent_json_number(json, "image2d_max_width", d->largest_image[0]);
  agent_json_number(json, "image2d_max_height", d->largest_image[1]);
  agent_json_number(json, "image_max_array_size", d->largest_image[2]);
  agent_json_number(json, "image_max_buffer_size",
                    number_of(d, CL_DEVICE_IMAGE_MAX_BUFFER_SIZE, sizeof(size_t)));
  agent_json_bool(json, "image2d_from_buffer", tf_device_has(d, "cl_khr_image2d_from_buffer"));
  add_extensions(json, d);
  agent_json_close(json, '}');
}

// Adds the devices of the first library that has any, as standalone libraries number them; if
// libraries may not be opened, there are none.
static void add_opencl(agent_json* json, tf_devices* found, bool opens) {
  static char tried[TRIED_BYTES];
  const char* name;
  *tried = 0;
  found->count = 0;
  for (unsigned i = 0; opens && !found->count && (name = tf_library_name(NULL, i)) != NULL; ++i) {
    found->count = found->platforms = 0;
    tf_append(tried, sizeof(tried), "%s%s: ", i ? "\n" : "", name);
    tf_devices_add(found, name, tried, sizeof(tried));
  }
  agent_json_open(json, "opencl", '[');
  for (unsigned i = 0; i < found->count; ++i) add_device(json, &found->all[i], i);
  agent_json_close(json, ']');
  agent_json_text(json, "opencl_tried", tried);
}

void agent_facts(agent_call* call) {
  const uint32_t flags = agent_get_u32(&call->in);
  if (!agent_check_fields(call)) return;
  char* const text = malloc(AGENT_MAX_TEXT);
  tf_devices* const found = malloc(sizeof(tf_devices));
  if (text && found) {
    agent_json json;
    agent_json_begin(&json, text, AGENT_MAX_TEXT);
    agent_json_open(&json, NULL, '{');
    add_system(&json);
    add_cpus(&json);
    add_opencl(&json, found, !(flags & WITHOUT_OPENCL));
    agent_json_close(&json, '}');
    if (json.bad)
      agent_fail(call, AGENT_MEMORY, 0, "", "The facts are longer than 64 KiB.");
    else
      agent_put_text(&call->answer, text);
  } else {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the facts.");
  }
  free(text);
  free(found);
}
