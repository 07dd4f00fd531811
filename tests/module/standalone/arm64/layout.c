// What code for Android and the system must agree about: compiled with our own
// declarations for Android and with Linux's, which have the same numbers but where it says so.
#ifdef __ANDROID__
#define ON_ANDROID 1
#else
#define _GNU_SOURCE
#define ON_ANDROID 0
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SAME(value, number) _Static_assert((value) == (number), #value)
#define DIFFERENT(value, android, linux) SAME(value, ON_ANDROID ? (android) : (linux))

// A number for each processor: x86-64, 64-bit Arm, 32-bit Arm.
#if defined(__x86_64__)
#define EACH(x64, arm64, arm) (x64)
#elif defined(__LP64__)
#define EACH(x64, arm64, arm) (arm64)
#else
#define EACH(x64, arm64, arm) (arm)
#endif
#define WORDS(count) ((count) * sizeof(void*))

SAME(sizeof(struct stat), EACH(144, 128, 104));
SAME(offsetof(struct stat, st_mode), EACH(24, 16, 16));
SAME(offsetof(struct stat, st_nlink), EACH(16, 20, 20));
SAME(offsetof(struct stat, st_uid), EACH(28, 24, 24));
SAME(sizeof(((struct stat*)0)->st_nlink), EACH(8, 4, 4));
SAME(offsetof(struct stat, st_size), 48);
SAME(offsetof(struct stat, st_mtime), EACH(88, 88, 80));
SAME(sizeof(struct timespec), WORDS(2));
SAME(offsetof(struct timespec, tv_nsec), WORDS(1));
SAME(offsetof(struct dirent, d_type), 18);
SAME(offsetof(struct dirent, d_name), 19);
SAME(sizeof(Dl_info), WORDS(4));
SAME(offsetof(Dl_info, dli_fbase), WORDS(1));
SAME(sizeof(Elf64_Ehdr), 64);
SAME(offsetof(Elf64_Ehdr, e_phoff), 32);
SAME(offsetof(Elf64_Ehdr, e_phnum), 56);
SAME(sizeof(Elf64_Phdr), 56);
SAME(offsetof(Elf64_Phdr, p_filesz), 32);
// Android has other functions for files of any size there.
DIFFERENT(sizeof(off_t), WORDS(1), 8);
SAME(sizeof(mode_t), 4);
SAME(sizeof(pid_t), 4);
SAME(sizeof(cpu_set_t), 128);
SAME(SYS_futex, EACH(202, 98, 240));
SAME(FUTEX_WAIT_PRIVATE, 128);
SAME(FUTEX_WAKE_PRIVATE, 129);
SAME(AT_HWCAP, 16);
SAME(sizeof(pthread_once_t), 4);
SAME(sizeof(pthread_key_t), 4);
SAME(sizeof(pthread_t), WORDS(1));
// Android's own are of 40 and 48 bytes, on 32-bit Arm smaller.
_Static_assert(!ON_ANDROID || sizeof(pthread_mutex_t) >= 40, "mutex");
_Static_assert(!ON_ANDROID || sizeof(pthread_cond_t) >= 48, "condition");

SAME(EI_CLASS, 4);
SAME(ELFCLASS64, 2);
SAME(PT_LOAD, 1);
SAME(ENOENT, 2);
SAME(EINTR, 4);
SAME(EACCES, 13);
SAME(EEXIST, 17);
SAME(ENOSPC, 28);
SAME(ENOTEMPTY, 39);
SAME(EOVERFLOW, 75);
SAME(O_CREAT | O_EXCL | O_TRUNC | O_APPEND, 03300);
SAME(O_DIRECTORY, EACH(0200000, 040000, 040000));
SAME(O_NOFOLLOW, EACH(0400000, 0100000, 0100000));
SAME(O_CLOEXEC, 02000000);
SAME(AT_SYMLINK_NOFOLLOW, 0x100);
SAME(AT_FDCWD, -100);
SAME(S_IFMT, 0170000);
SAME(S_IWGRP | S_IWOTH, 022);
SAME(PROT_READ | PROT_WRITE, 3);
SAME(MAP_PRIVATE, 2);
SAME(MAP_ANONYMOUS, 0x20);
SAME(MADV_DONTNEED, 4);
SAME(MADV_WILLNEED, 3);
SAME(LOCK_EX | LOCK_NB | LOCK_UN | LOCK_SH, 15);
SAME(CLOCK_MONOTONIC, 1);
SAME(RTLD_NOW, 2);
SAME(RTLD_NOLOAD, 4);
SAME(RTLD_LOCAL, 0);
SAME(SEEK_END, 2);
DIFFERENT(_SC_PAGESIZE, 0x27, 30);
DIFFERENT(_SC_NPROCESSORS_ONLN, 0x61, 84);
DIFFERENT(_SC_PHYS_PAGES, 0x62, 85);
