// Types of Linux, which Android shares; those of 32 bits are its own.
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef long off_t;
typedef int64_t off64_t;
typedef long ssize_t;
typedef long time_t;
#if defined(__LP64__)
typedef int64_t blkcnt_t;
typedef uint64_t dev_t;
typedef uint64_t ino_t;
#else
typedef unsigned long blkcnt_t;
typedef uint32_t dev_t;
typedef unsigned long ino_t;
#endif
#if defined(__x86_64__)
typedef int64_t blksize_t;
typedef uint64_t nlink_t;
#else
typedef int32_t blksize_t;
typedef uint32_t nlink_t;
#endif
typedef int32_t pid_t;
typedef uint32_t uid_t;
typedef uint32_t gid_t;
typedef uint32_t mode_t;
typedef int32_t clockid_t;
