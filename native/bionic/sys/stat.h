#pragma once
#include <sys/types.h>
#include <time.h>

// The kernel's structure.
#if defined(__x86_64__)
struct stat {
  dev_t st_dev;
  ino_t st_ino;
  nlink_t st_nlink;
  mode_t st_mode;
  uid_t st_uid;
  gid_t st_gid;
  uint32_t padding_1;
  dev_t st_rdev;
  off_t st_size;
  blksize_t st_blksize;
  blkcnt_t st_blocks;
  struct timespec st_atim;
  struct timespec st_mtim;
  struct timespec st_ctim;
  int64_t padding_2[3];
};
#elif defined(__arm__)
struct stat {
  uint64_t st_dev;
  uint32_t padding_1[2];
  mode_t st_mode;
  nlink_t st_nlink;
  uid_t st_uid;
  gid_t st_gid;
  uint64_t st_rdev;
  uint32_t padding_2;
  int64_t st_size;
  unsigned long st_blksize;
  uint64_t st_blocks;
  struct timespec st_atim;
  struct timespec st_mtim;
  struct timespec st_ctim;
  uint64_t st_ino;
};
#else
struct stat {
  dev_t st_dev;
  ino_t st_ino;
  mode_t st_mode;
  nlink_t st_nlink;
  uid_t st_uid;
  gid_t st_gid;
  dev_t st_rdev;
  uint64_t padding_1;
  off_t st_size;
  blksize_t st_blksize;
  int32_t padding_2;
  blkcnt_t st_blocks;
  struct timespec st_atim;
  struct timespec st_mtim;
  struct timespec st_ctim;
  uint32_t padding_3[2];
};
#endif
#define st_atime st_atim.tv_sec
#define st_mtime st_mtim.tv_sec

#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFREG 0100000
#define S_IRUSR 0400
#define S_IWUSR 0200
#define S_IXUSR 0100
#define S_IRWXU 0700
#define S_IRGRP 0040
#define S_IWGRP 0020
#define S_IXGRP 0010
#define S_IROTH 0004
#define S_IWOTH 0002
#define S_IXOTH 0001
#define S_ISDIR(mode) (((mode) & S_IFMT) == S_IFDIR)
#define S_ISREG(mode) (((mode) & S_IFMT) == S_IFREG)

int stat(const char* path, struct stat* info);
int lstat(const char* path, struct stat* info);
int fstat(int file, struct stat* info);
int fstatat(int folder, const char* path, struct stat* info, int flags);
int futimens(int file, const struct timespec times[2]);
int mkdir(const char* path, mode_t mode);
int chmod(const char* path, mode_t mode);
mode_t umask(mode_t mask);
