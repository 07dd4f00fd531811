#pragma once
#include <sys/types.h>

#define AF_UNIX 1
#define AF_INET 2
#define SOCK_STREAM 1
#define SOCK_NONBLOCK 04000
#define SOCK_CLOEXEC 02000000
#define SOL_SOCKET 1
#define SO_REUSEADDR 2

typedef uint32_t socklen_t;
struct sockaddr;

int socket(int family, int type, int protocol);
int socketpair(int family, int type, int protocol, int files[2]);
int bind(int file, const struct sockaddr* address, socklen_t bytes);
int listen(int file, int backlog);
int accept4(int file, struct sockaddr* address, socklen_t* bytes, int flags);
int getsockname(int file, struct sockaddr* address, socklen_t* bytes);
int setsockopt(int file, int level, int option, const void* value, socklen_t bytes);
