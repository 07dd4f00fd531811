// Facts about the device: system, processor, and every OpenCL device.
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

enum { PROPERTY_BYTES = 92, MAX_CPUS = 256, TRIED_BYTES = 16384, FACTS_BYTES = 1 << 20 };

typedef int (*get_property)(const char* name, char* value);

static void add_property(agent_json* json, const char* name, get_property get, const char* property,
                         const char* more) {
  char value[2 * PROPERTY_BYTES + 1] = "";
  get(property, value);
  if (more) {
    const size_t used = strlen(value);
    if (used) value[used] = ' ';
    get(more, value + used + (used ? 1 : 0));
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

static void add_system(agent_json* json) {
  // bionic has it, and no other C library does.
  void* const symbol = dlsym(RTLD_DEFAULT, "__system_property_get");
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
  } else {
    add_release(json);
    if (agent_read_line(agent_proc(), "device-tree/model", NULL, text, sizeof(text)))
      agent_json_text(json, "model", text);
  }
  if (agent_read_line(agent_proc(), "sys/kernel/osrelease", NULL, text, sizeof(text)))
    agent_json_text(json, "kernel", text);
  agent_json_number(json, "bits", 8 * sizeof(void*));
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) {
    value = (double)pages * (double)page;
    agent_json_number(json, "memory_bytes", (uint64_t)value);
  }
}

// Finds the n-th value of a key in /proc/cpuinfo.
static bool cpu_value(const char* cpuinfo, const char* key, unsigned n, char* text, size_t bytes) {
  const char* at = cpuinfo;
  const size_t length = strlen(key);
  for (unsigned i = 0; (at = strstr(at, key)) != NULL; at += length) {
    if (at != cpuinfo && at[-1] != '\n') continue;
    if (i++ < n) continue;
    const char* value = at + length + strspn(at + length, "\t :");
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
  const long count = sysconf(_SC_NPROCESSORS_ONLN);
  for (unsigned i = 0; i < MAX_CPUS && (long)i < count; ++i) {
    char name[96];
    char text[128];
    double khz;
    agent_json_open(json, NULL, '{');
    if (cpu_value(cpuinfo, "CPU part", i, text, sizeof(text)) ||
        cpu_value(cpuinfo, "model name", i, text, sizeof(text)))
      agent_json_text(json, "part", text);
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

static void add_text_of(agent_json* json, const char* name, const tf_device* d, cl_uint what) {
  char* const text = tf_query_text(d->api.clGetDeviceInfo, d->id, what);
  agent_json_text(json, name, text);
  free(text);
}

static uint64_t number_of(const tf_device* d, cl_uint what, size_t bytes) {
  uint64_t value = 0;
  // Little-endian: a shorter number fills the beginning.
  (void)d->api.clGetDeviceInfo(d->id, what, bytes, &value, NULL);
  return value;
}

static void add_extensions(agent_json* json, const tf_device* d) {
  char* const list = tf_query_text(d->api.clGetDeviceInfo, d->id, CL_DEVICE_EXTENSIONS);
  char* rest = NULL;
  agent_json_open(json, "extensions", '[');
  for (char* word = list ? strtok_r(list, " ", &rest) : NULL; word;
       word = strtok_r(NULL, " ", &rest))
    agent_json_text(json, NULL, word);
  agent_json_close(json, ']');
  free(list);
}

static void add_device(agent_json* json, const tf_device* d, unsigned index) {
  agent_json_open(json, NULL, '{');
  agent_json_text(json, "kind", "opencl");
  agent_json_number(json, "index", index);
  add_text_of(json, "name", d, CL_DEVICE_NAME);
  add_text_of(json, "vendor", d, CL_DEVICE_VENDOR);
  add_text_of(json, "version", d, CL_DEVICE_VERSION);
  add_text_of(json, "driver", d, CL_DRIVER_VERSION);
  add_text_of(json, "opencl_c_version", d, CL_DEVICE_OPENCL_C_VERSION);
  agent_json_text(json, "device_type", tf_device_type(d));
  agent_json_text(json, "platform", d->platform_name);
  agent_json_text(json, "platform_version", d->platform_version);
  agent_json_text(json, "library", d->library);
  agent_json_number(json, "compute_units", number_of(d, CL_DEVICE_MAX_COMPUTE_UNITS, 4));
  agent_json_number(json, "clock_mhz", number_of(d, CL_DEVICE_MAX_CLOCK_FREQUENCY, 4));
  agent_json_number(json, "max_work_group_size", d->largest_group);
  agent_json_number(json, "local_memory_bytes", number_of(d, CL_DEVICE_LOCAL_MEM_SIZE, 8));
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
  agent_json_bool(json, "image2d_from_buffer", tf_device_has(d, "cl_khr_image2d_from_buffer"));
  add_extensions(json, d);
  agent_json_close(json, '}');
}

// Adds the devices of the first library that has any, as standalone libraries number them.
static void add_opencl(agent_json* json, tf_devices* found) {
  static char tried[TRIED_BYTES];
  const char* name;
  *tried = 0;
  found->count = 0;
  for (unsigned i = 0; !found->count && (name = tf_library_name(NULL, i)) != NULL; ++i) {
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
  if (!agent_check_fields(call)) return;
  char* const text = malloc(FACTS_BYTES);
  tf_devices* const found = malloc(sizeof(tf_devices));
  if (text && found) {
    agent_json json;
    agent_json_begin(&json, text, FACTS_BYTES);
    agent_json_open(&json, NULL, '{');
    add_system(&json);
    add_cpus(&json);
    add_opencl(&json, found);
    agent_json_close(&json, '}');
    if (json.bad)
      agent_fail(call, AGENT_MEMORY, 0, "", "The facts are longer than 1 MiB.");
    else
      agent_put_text(&call->answer, text);
  } else {
    agent_fail(call, AGENT_MEMORY, 0, "", "There is no memory for the facts.");
  }
  free(text);
  free(found);
}
