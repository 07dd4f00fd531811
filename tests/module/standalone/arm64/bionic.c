// Stands for Android's C library on Linux with glibc: what differs between the two.  Numbers of
// `sysconf` as Android has them become glibc's; all else has the same layout on 64-bit processors.
// On 32-bit ones, Android's structures of files are those that glibc has under other names.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int* __errno(void);
int* __errno(void) { return &errno; }

// Calls main with what the kernel has put on the stack.
void __libc_init(long* stack, void (*at_exit)(void), int (*run)(int, char**, char**),
                 const void* functions);
void __libc_init(long* stack, void (*at_exit)(void), int (*run)(int, char**, char**),
                 const void* functions) {
  (void)at_exit;
  (void)functions;
  exit(run((int)stack[0], (char**)(stack + 1), environ));
}

long sysconf(int name) {
  enum { ANDROID_PAGE_SIZE = 0x27, ANDROID_PROCESSORS = 0x61, ANDROID_PAGES = 0x62 };
  static long (*real)(int);
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  if (name == ANDROID_PAGE_SIZE) return real(_SC_PAGESIZE);
  if (name == ANDROID_PAGES) return real(_SC_PHYS_PAGES);
  return real(name == ANDROID_PROCESSORS ? _SC_NPROCESSORS_ONLN : name);
}

#ifdef __arm__
int android_stat(const char* path, struct stat64* info) __asm__("stat");
int android_stat(const char* path, struct stat64* info) { return stat64(path, info); }
int android_lstat(const char* path, struct stat64* info) __asm__("lstat");
int android_lstat(const char* path, struct stat64* info) { return lstat64(path, info); }
int android_fstat(int file, struct stat64* info) __asm__("fstat");
int android_fstat(int file, struct stat64* info) { return fstat64(file, info); }
int android_fstatat(int folder, const char* path, struct stat64* info, int flags)
    __asm__("fstatat");
int android_fstatat(int folder, const char* path, struct stat64* info, int flags) {
  return fstatat64(folder, path, info, flags);
}
struct dirent64* android_readdir(DIR* folder) __asm__("readdir");
struct dirent64* android_readdir(DIR* folder) { return readdir64(folder); }
#endif
