#pragma once
#include <sys/types.h>

struct timespec {
  time_t tv_sec;
  long tv_nsec;
};

#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 1
#define CLOCK_BOOTTIME 7

time_t time(time_t* now);
int clock_gettime(clockid_t clock, struct timespec* time);
int nanosleep(const struct timespec* time, struct timespec* left);
