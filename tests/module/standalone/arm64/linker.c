// PoCL starts the system's linker.  That one is for Arm, and nothing runs such a program here when
// another one starts it: a script of this machine takes its place, which the environment names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char* instead(const char* path) {
  const char* const name = strrchr(path, '/');
  const char* const script = getenv("TVMFLOW_TEST_LINKER");
  return script && name && !strcmp(name, "/ld") ? script : path;
}

int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments,
                char* const* environment) {
  int (*const real)(pid_t*, const char*, const posix_spawn_file_actions_t*,
                    const posix_spawnattr_t*, char* const*, char* const*) =
      (__typeof__(&posix_spawn))dlsym(RTLD_NEXT, "posix_spawn");
  return real(process, instead(path), actions, attributes, arguments, environment);
}

int execve(const char* path, char* const* arguments, char* const* environment) {
  int (*const real)(const char*, char* const*, char* const*) =
      (__typeof__(&execve))dlsym(RTLD_NEXT, "execve");
  return real(instead(path), arguments, environment);
}

int execv(const char* path, char* const* arguments) { return execve(path, arguments, environ); }
