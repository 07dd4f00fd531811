// Whoever unlinks or opens a temporary file of the cache finds a link there: to be preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int open(const char* path, int flags, ...) {
  int (*const next)(const char*, int, ...) =
      (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, "open");
  va_list arguments;
  va_start(arguments, flags);
  const int mode = va_arg(arguments, int);
  va_end(arguments);
  const char* const target = getenv("LINK_TO");
  // Only the first time: the cache goes on with the next file.
  static int done;
  if (target && strstr(path, "/tmp-") && flags & O_CREAT && !done) {
    done = 1;
    if (symlink(target, path)) abort();
    const int file = next(path, flags, mode);
    if (file >= 0) abort();
    (void)!write(2, "linked", 6);
    unlink(path);
    return next(path, flags, mode);
  }
  return next(path, flags, mode);
}
