// The agent: runs on a phone or board, and opens libraries and OpenCL there for tvmflow on another
// machine (docs/agent-protocol.md).
#define _GNU_SOURCE  // accept4

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "handshake.h"
#include "supervisor.h"

enum { DEFAULT_LIMIT_MB = 2048, LARGEST_LIMIT_MB = 1 << 20 };

static const char usage[] =
    "usage: agent --folder FOLDER [--limit-mb N] [--listen ADDRESS:PORT [--secret-file FILE]]\n"
    "Serves tvmflow on standard input and output, or at an address.\n";

static int fail(const char* attempt, const char* reason) {
  fprintf(stderr, "tvmflow agent: %s: %s\n", attempt, reason);
  return 2;
}

// Opens a socket that listens at "ADDRESS:PORT", an IPv4 address in numbers; -1: `wrong` is set.
static int listen_at(const char* text, bool has_secret, const char** wrong) {
  char address[INET_ADDRSTRLEN];
  struct sockaddr_in at = {.sin_family = AF_INET};
  const char* const colon = strrchr(text, ':');
  char* end = NULL;
  const unsigned long port = colon ? strtoul(colon + 1, &end, 10) : 0;
  *wrong = "ADDRESS:PORT was expected, such as 127.0.0.1:9191";
  if (!colon || (size_t)(colon - text) >= sizeof(address) || end == colon + 1 || *end ||
      port > 65535)
    return -1;
  memcpy(address, text, (size_t)(colon - text));
  address[colon - text] = 0;
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) return -1;
  *wrong = "other machines can reach this address: name a --secret-file";
  if (!has_secret && (ntohl(at.sin_addr.s_addr) >> 24) != 127) return -1;
  at.sin_port = htons((uint16_t)port);
  const int one = 1;
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = sizeof(at);
  if (listening < 0 || setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
      bind(listening, (struct sockaddr*)&at, sizeof(at)) || listen(listening, 16) ||
      getsockname(listening, (struct sockaddr*)&at, &bytes)) {
    *wrong = strerror(errno);
    if (listening >= 0) close(listening);
    return -1;
  }
  // The port was chosen by the system if 0 was given.
  printf("listening at %s:%u\n", address, (unsigned)ntohs(at.sin_port));
  fflush(stdout);
  return listening;
}

static int serve_connections(int listening, const agent_secret* secret,
                             const agent_options* options) {
  // Processes of connections need not be waited for.
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    const int connection = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection < 0) {
      // A client that is gone already, or too many open files.
      if (errno != EINTR && errno != ECONNABORTED) usleep(100000);
      continue;
    }
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) {
      const int one = 1;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) return 1;
      close(listening);
      setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      if (secret->bytes && !agent_handshake(connection, secret))
        return fail("a connection was refused", "it did not prove the secret");
      return agent_supervise(connection, connection, options);
    }
    close(connection);
  }
}

// Moves standard input and output to other descriptors: drivers print to standard output, which
// must not be the connection.
static int serve_standard(const agent_options* options) {
  const int in = fcntl(0, F_DUPFD_CLOEXEC, 3);
  const int out = fcntl(1, F_DUPFD_CLOEXEC, 3);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (in < 0 || out < 0 || nothing < 0 || dup2(nothing, 0) < 0 || dup2(2, 1) < 0)
    return fail("standard input and output cannot be used", strerror(errno));
  return agent_supervise(in, out, options);
}

int main(int count, char** words) {
  agent_options options = {.limit_bytes = (uint64_t)DEFAULT_LIMIT_MB << 20};
  static agent_secret secret;
  const char* address = NULL;
  const char* secret_file = NULL;
  const char* wrong;
  for (int i = 1; i < count; ++i) {
    const char* const value = i + 1 < count ? words[i + 1] : NULL;
    const char* const name = words[i];
    char* end = NULL;
    if (!strcmp(name, "--help")) return printf("%s", usage) < 0;
    if (!value) return fail(usage, name);
    ++i;
    if (!strcmp(name, "--folder")) {
      options.folder = value;
    } else if (!strcmp(name, "--listen")) {
      address = value;
    } else if (!strcmp(name, "--secret-file")) {
      secret_file = value;
    } else if (!strcmp(name, "--limit-mb")) {
      const unsigned long megabytes = strtoul(value, &end, 10);
      if (*end || megabytes == 0 || megabytes > LARGEST_LIMIT_MB)
        return fail("--limit-mb", "a number from 1 to 1048576 was expected");
      options.limit_bytes = (uint64_t)megabytes << 20;
    } else {
      return fail(usage, name);
    }
  }
  if (!options.folder || (secret_file && !address)) return fail(usage, "--folder is needed");
  if (secret_file && (wrong = agent_secret_read(&secret, secret_file)) != NULL)
    return fail(secret_file, wrong);
  if (!address) return serve_standard(&options);
  const int listening = listen_at(address, secret.bytes > 0, &wrong);
  if (listening < 0) return fail(address, wrong);
  return serve_connections(listening, &secret, &options);
}
