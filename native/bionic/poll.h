#pragma once

#define POLLIN 1
#define POLLOUT 4

struct pollfd {
  int fd;
  short events;
  short revents;
};

int poll(struct pollfd* files, unsigned int count, int wait_ms);
