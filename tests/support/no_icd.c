// A vendor's own OpenCL library that is no driver for loaders (cl_khr_icd): it exports few
// functions, and what its platform begins with is its own business.  FIRST is that word.
#include <stddef.h>
#include <stdint.h>

static int32_t refuse(void) { return -1; }
static void* const short_table[4] = {(void*)refuse, (void*)refuse, (void*)refuse, (void*)refuse};
static struct {
  const void* first;
  char rest[256];
} platform;

__attribute__((constructor)) static void begin(void) {
  const void* const words[] = {NULL, short_table, (const void*)0x4d414c49ul};
  platform.first = words[FIRST];
}

int32_t clGetPlatformIDs(uint32_t room, void** ids, uint32_t* count) {
  if (count) *count = 1;
  if (ids && room) *ids = &platform;
  return 0;
}

int32_t clGetPlatformInfo(void* of, uint32_t what, size_t room, void* to, size_t* needed) {
  (void)of, (void)what;
  if (needed) *needed = 1;
  if (to && room) *(char*)to = 0;
  return 0;
}

int32_t clGetDeviceIDs(void* of, uint64_t type, uint32_t room, void** ids, uint32_t* count) {
  (void)of, (void)type, (void)room, (void)ids;
  if (count) *count = 0;
  return -1;
}
