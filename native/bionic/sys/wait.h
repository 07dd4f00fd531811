#pragma once
#include <sys/types.h>

#define WNOHANG 1
#define WTERMSIG(status) ((status) & 0x7f)
#define WEXITSTATUS(status) (((status) >> 8) & 0xff)
#define WIFSIGNALED(status) (WTERMSIG((status) + 1) >= 2)

pid_t waitpid(pid_t process, int* status, int options);
