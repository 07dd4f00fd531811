#pragma once
#include <sys/types.h>

#define O_RDONLY 0
#define O_WRONLY 1
#define O_RDWR 2
#define O_CREAT 0100
#define O_EXCL 0200
#define O_NOCTTY 0400
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
// Arm has numbers of its own for the next two.
#if defined(__x86_64__)
#define O_DIRECTORY 0200000
#define O_NOFOLLOW 0400000
#else
#define O_DIRECTORY 040000
#define O_NOFOLLOW 0100000
#endif
#define O_CLOEXEC 02000000

#define F_SETFL 4
#define F_DUPFD_CLOEXEC 1030

#define AT_FDCWD (-100)
#define AT_SYMLINK_NOFOLLOW 0x100

int open(const char* path, int flags, ...);
int fcntl(int file, int command, ...);
