#pragma once
#include <sys/types.h>

#define SIGKILL 9
#define SIGPIPE 13
#define SIGCHLD 17
#define SIG_DFL ((void (*)(int))0)
#define SIG_IGN ((void (*)(int))1)

void (*signal(int number, void (*handler)(int)))(int);
int kill(pid_t process, int number);
