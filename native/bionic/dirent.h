#pragma once
#include <sys/types.h>

struct dirent {
  uint64_t d_ino;
  int64_t d_off;
  uint16_t d_reclen;
  uint8_t d_type;
  char d_name[256];
};
typedef struct DIR DIR;

DIR* opendir(const char* path);
struct dirent* readdir(DIR* folder);
int closedir(DIR* folder);
int dirfd(DIR* folder);
