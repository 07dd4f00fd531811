// Sensors as Linux and Android show them in /sys: temperatures, clocks, throttling, battery.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "session.h"
#include "system_files.h"

// Temperatures outside of this range are a sensor's way to say that it is off.
static const double coldest = -40;
static const double hottest = 200;

static void add_temperatures(agent_json* json, const char* thermal) {
  DIR* const folder = opendir(thermal);
  agent_json_open(json, "temperatures", '{');
  for (const struct dirent* item; folder && (item = readdir(folder)) != NULL;) {
    char type[64];
    char name[96];
    double value;
    if (strncmp(item->d_name, "thermal_zone", 12) != 0 ||
        !agent_read_number(thermal, item->d_name, "temp", &value) ||
        !agent_read_line(thermal, item->d_name, "type", type, sizeof(type)))
      continue;
    // Kernels report thousandths; some old drivers whole degrees.
    if (value > 1000 || value < -1000) value /= 1000;
    if (value <= coldest || value >= hottest) continue;
    // Several zones may have the same type.
    snprintf(name, sizeof(name), "%s (%.16s)", type, item->d_name + 12);
    agent_json_real(json, name, value);
  }
  if (folder) closedir(folder);
  agent_json_close(json, '}');
}

static void add_throttling(agent_json* json, const char* thermal) {
  DIR* const folder = opendir(thermal);
  if (!folder) return;
  agent_json_open(json, "throttled", '[');
  for (const struct dirent* item; (item = readdir(folder)) != NULL;) {
    char type[64];
    double state;
    if (strncmp(item->d_name, "cooling_device", 14) != 0 ||
        !agent_read_number(thermal, item->d_name, "cur_state", &state) || state <= 0 ||
        !agent_read_line(thermal, item->d_name, "type", type, sizeof(type)))
      continue;
    // Fans cool without throttling.
    if (strstr(type, "fan") || strstr(type, "Fan")) continue;
    agent_json_text(json, NULL, type);
  }
  closedir(folder);
  agent_json_close(json, ']');
}

static void add_cpu_clocks(agent_json* json) {
  agent_json_open(json, "cpu_khz", '[');
  for (unsigned i = 0; i < 256; ++i) {
    char path[AGENT_MAX_PATH];
    char name[96];
    double khz;
    snprintf(name, sizeof(name), "devices/system/cpu/cpu%u", i);
    if (!agent_read_number(agent_sys(), name, "cpufreq/scaling_cur_freq", &khz)) {
      snprintf(path, sizeof(path), "%s/%s", agent_sys(), name);
      if (access(path, F_OK)) break;
      // Processors that are switched off keep their place in the list.
      khz = 0;
    }
    agent_json_real(json, NULL, khz);
  }
  agent_json_close(json, ']');
}

static bool gpu_hz(double* hz) {
  char path[AGENT_MAX_PATH];
  if (agent_read_number(agent_sys(), "class/kgsl/kgsl-3d0", "gpuclk", hz) ||
      agent_read_number(agent_sys(), "class/kgsl/kgsl-3d0", "devfreq/cur_freq", hz))
    return true;
  bool found = false;
  snprintf(path, sizeof(path), "%s/class/devfreq", agent_sys());
  DIR* const folder = opendir(path);
  for (const struct dirent* item; folder && !found && (item = readdir(folder)) != NULL;)
    // "gpubw" is the clock of a bus.
    found = (strstr(item->d_name, "gpu") || strstr(item->d_name, "mali")) &&
            !strstr(item->d_name, "bw") && agent_read_number(path, item->d_name, "cur_freq", hz);
  if (folder) closedir(folder);
  return found;
}

static void add_battery(agent_json* json) {
  char path[AGENT_MAX_PATH];
  bool found = false;
  snprintf(path, sizeof(path), "%s/class/power_supply", agent_sys());
  DIR* const folder = opendir(path);
  for (const struct dirent* item; folder && !found && (item = readdir(folder)) != NULL;) {
    char text[64];
    double value;
    if (!agent_read_line(path, item->d_name, "type", text, sizeof(text)) ||
        strcmp(text, "Battery") != 0 ||
        // Those of a mouse or a keyboard.
        (agent_read_line(path, item->d_name, "scope", text, sizeof(text)) &&
         strcmp(text, "Device") == 0) ||
        !agent_read_number(path, item->d_name, "capacity", &value))
      continue;
    found = true;
    agent_json_open(json, "battery", '{');
    agent_json_real(json, "percent", value);
    if (agent_read_line(path, item->d_name, "status", text, sizeof(text)))
      agent_json_bool(json, "charging", !strcmp(text, "Charging") || !strcmp(text, "Full"));
    // Tenths of a degree.
    if (agent_read_number(path, item->d_name, "temp", &value))
      agent_json_real(json, "celsius", value / 10);
    agent_json_close(json, '}');
  }
  if (folder) closedir(folder);
}

static uint64_t ns_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void agent_sensors(char* text, size_t bytes) {
  agent_json json;
  char thermal[AGENT_MAX_PATH];
  double hz;
  agent_json_begin(&json, text, bytes);
  snprintf(thermal, sizeof(thermal), "%s/class/thermal", agent_sys());
  // Only the first clock stands still while the device sleeps; it is read first, so that the
  // difference is not negative.
  const uint64_t awake_ns = ns_of(CLOCK_MONOTONIC), all_ns = ns_of(CLOCK_BOOTTIME);
  agent_json_open(&json, NULL, '{');
  agent_json_number(&json, "time_ns", awake_ns);
  agent_json_number(&json, "slept_ns", all_ns - awake_ns);
  add_temperatures(&json, thermal);
  add_throttling(&json, thermal);
  add_cpu_clocks(&json);
  if (gpu_hz(&hz)) agent_json_real(&json, "gpu_khz", hz / 1000);
  add_battery(&json);
  agent_json_close(&json, '}');
  // Only with hundreds of sensors; the host reads an empty object as "nothing is known".
  if (json.bad) snprintf(text, bytes, "{}");
}
