// What the fake device has and can.
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fake.h"

// Names and defaults; the environment's variables have FAKE_OPENCL_ in front.
static struct {
  const char* name;
  const char* fallback;
  char* value;
} settings[] = {
    {"PLATFORMS", "1", NULL},
    {"DEVICES", "gpu", NULL},  // of the platform: gpu, cpu or accelerator, with commas; none: ""
    {"NAME", "Fake GPU", NULL},
    {"PLATFORM_NAME", "Fake platform", NULL},
    {"DRIVER", "1.0", NULL},
    {"VERSION", "OpenCL 1.2 fake", NULL},  // of platform and device
    {"EXTENSIONS", "cl_khr_fp16", NULL},
    {"IMAGES", "1", NULL},
    {"IMAGE_WIDTH", "16384", NULL},
    {"IMAGE_HEIGHT", "16384", NULL},
    {"IMAGE_LAYERS", "2048", NULL},
    {"BUFFER_BYTES", "1073741824", NULL},  // of one allocation
    {"MEMORY_BYTES", "4294967296", NULL},  // of all; more than that is out of memory
    {"GROUP_SIZE", "1024", NULL},
    {"BUILD", "ok", NULL},       // fail: no program builds, and there is a log
    {"BINARIES", "yes", NULL},   // none; refuse: not taken back; late: whole after a launch only
    {"WRONG", "", NULL},         // what computes wrong: all, replay, binary, "kernel NAME", or
                                 // programs that are built without this option
    {"WRONG_RATE", "1", NULL},   // of what computes wrong, one launch in so many does
    {"DOT8", "signed", NULL},    // the first factor of Qualcomm's dot product; or unsigned
    {"SLOW", "", NULL},          // microseconds of kernels: "NAME=US,NAME=US"
    {"RECORDABLE", "64", NULL},  // launches that one of Qualcomm's recordings takes
    {"STUB", "0", NULL},         // 1: transfers and launches return at once and do nothing
};
enum { kSettings = sizeof(settings) / sizeof(settings[0]) };

bool fake_stub;

__attribute__((constructor)) static void read_environment(void) {
  char name[64] = "FAKE_OPENCL_";
  for (int i = 0; i < kSettings; ++i) {
    strcpy(name + 12, settings[i].name);
    fake_set(settings[i].name, getenv(name));
  }
}

__attribute__((destructor)) static void free_settings(void) {
  for (int i = 0; i < kSettings; ++i) free(settings[i].value);
}

void fake_set(const char* name, const char* value) {
  for (int i = 0; i < kSettings; ++i) {
    if (strcmp(settings[i].name, name) != 0) continue;
    free(settings[i].value);
    settings[i].value = value ? strdup(value) : NULL;
    fake_stub = fake_number("STUB") != 0;
    return;
  }
  fake_wrong("fake_set", 0, "no setting %s", name);
}

const char* fake_text(const char* name) {
  for (int i = 0; i < kSettings; ++i)
    if (strcmp(settings[i].name, name) == 0)
      return settings[i].value ? settings[i].value : settings[i].fallback;
  return "";
}

uint64_t fake_number(const char* name) { return strtoull(fake_text(name), NULL, 10); }

bool fake_is(const char* name, const char* value) { return strcmp(fake_text(name), value) == 0; }

bool fake_has_extension(const char* name) {
  const size_t length = strlen(name);
  const char* text = fake_text("EXTENSIONS");
  while ((text = strstr(text, name)) != NULL) {
    if (text[length] == '\0' || text[length] == ' ') return true;
    text += length;
  }
  return false;
}
