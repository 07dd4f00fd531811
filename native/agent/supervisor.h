// The main process of a connection: it reads the host's requests, stores blobs, and watches the
// session.
#pragma once

#include <stdint.h>

typedef struct agent_options {
  const char* folder;
  uint64_t limit_bytes;  // of all blobs
} agent_options;

// Serves one connection until it ends.  Returns the process's exit status.
int agent_supervise(int in, int out, const agent_options* options);
