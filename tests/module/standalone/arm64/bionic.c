// Stands for Android's C library on Linux with glibc: what differs between the two.  Numbers of
// `sysconf` as Android has them become glibc's; all else has the same layout on 64-bit processors.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

int* __errno(void);
int* __errno(void) { return &errno; }

long sysconf(int name) {
  enum { ANDROID_PAGE_SIZE = 0x27, ANDROID_PROCESSORS = 0x61, ANDROID_PAGES = 0x62 };
  static long (*real)(int);
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  if (name == ANDROID_PAGE_SIZE) return real(_SC_PAGESIZE);
  if (name == ANDROID_PAGES) return real(_SC_PHYS_PAGES);
  return real(name == ANDROID_PROCESSORS ? _SC_NPROCESSORS_ONLN : name);
}
