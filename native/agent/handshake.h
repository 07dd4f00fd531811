// The farm's handshake on a TCP connection: both sides prove that they know a secret.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AGENT_SHORTEST_SECRET = 16, AGENT_LONGEST_SECRET = 4096 };

typedef struct agent_secret {
  uint8_t value[AGENT_LONGEST_SECRET + 1];
  size_t bytes;  // 0: no secret is asked for
} agent_secret;

// Reads a secret from a file that only its owner can access, without surrounding white space.
// Returns NULL, or what is wrong.
const char* agent_secret_read(agent_secret* secret, const char* path);

// Asks the host for the secret, on a connection that does not block, and proves to know it.
bool agent_handshake(int connection, const agent_secret* secret);
