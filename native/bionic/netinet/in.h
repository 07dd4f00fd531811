#pragma once
#include <stdint.h>

#define IPPROTO_TCP 6
#define INET_ADDRSTRLEN 16

struct in_addr {
  uint32_t s_addr;
};
struct sockaddr_in {
  uint16_t sin_family;
  uint16_t sin_port;
  struct in_addr sin_addr;
  uint8_t padding[8];
};
