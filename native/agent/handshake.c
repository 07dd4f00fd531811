#include "handshake.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/sha256_state.h"

enum { CHALLENGE = 32, PROOF = 32, BLOCK = 64, WAIT_MS = 5000 };

static const uint8_t greeting[8] = {'t', 'v', 'm', 'f', 'l', 'o', 'w', 1};

const char* agent_secret_read(agent_secret* secret, const char* path) {
  struct stat info;
  const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return strerror(errno);
  const char* wrong = NULL;
  ssize_t got = 0;
  if (fstat(file, &info) || !S_ISREG(info.st_mode))
    wrong = "it is no regular file";
  else if (info.st_mode & 077)
    wrong = "other users have access to it (chmod 600)";
  else
    got = read(file, secret->value, sizeof(secret->value));
  close(file);
  if (wrong) return wrong;
  if (got < 0) return strerror(errno);
  size_t begin = 0;
  size_t end = (size_t)got;
  while (begin < end && isspace(secret->value[begin])) ++begin;
  while (end > begin && isspace(secret->value[end - 1])) --end;
  memmove(secret->value, secret->value + begin, end - begin);
  secret->bytes = end - begin;
  if (secret->bytes < AGENT_SHORTEST_SECRET) return "it has less than 16 bytes";
  if (secret->bytes > AGENT_LONGEST_SECRET) return "it has more than 4096 bytes";
  return NULL;
}

// HMAC-SHA256 (RFC 2104) of "client" or "server" and both challenges.
static void prove(const agent_secret* secret, const char side[6], const uint8_t* agents,
                  const uint8_t* hosts, uint8_t proof[PROOF]) {
  uint8_t key[BLOCK] = {0};
  uint8_t inner[BLOCK];
  uint8_t outer[BLOCK];
  Sha256State hash;
  if (secret->bytes > BLOCK)
    Sha256Digest(secret->value, secret->bytes, key);
  else
    memcpy(key, secret->value, secret->bytes);
  for (int i = 0; i < BLOCK; ++i) {
    inner[i] = key[i] ^ 0x36;
    outer[i] = key[i] ^ 0x5c;
  }
  Sha256Begin(&hash);
  Sha256Add(&hash, inner, sizeof(inner));
  Sha256Add(&hash, side, 6);
  Sha256Add(&hash, agents, CHALLENGE);
  Sha256Add(&hash, hosts, CHALLENGE);
  Sha256End(&hash, proof);
  Sha256Begin(&hash);
  Sha256Add(&hash, outer, sizeof(outer));
  Sha256Add(&hash, proof, PROOF);
  Sha256End(&hash, proof);
}

static bool receive(int connection, uint8_t* to, size_t bytes) {
  while (bytes > 0) {
    struct pollfd one = {.fd = connection, .events = POLLIN};
    const ssize_t got = read(connection, to, bytes);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0 && poll(&one, 1, WAIT_MS) == 0) return false;
    if (got < 0) continue;
    to += got;
    bytes -= (size_t)got;
  }
  return true;
}

bool agent_handshake(int connection, const agent_secret* secret) {
  uint8_t hello[sizeof(greeting) + CHALLENGE];
  uint8_t answer[CHALLENGE + PROOF];
  uint8_t proof[PROOF];
  uint8_t* const ours = hello + sizeof(greeting);
  memcpy(hello, greeting, sizeof(greeting));
  const int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool filled = random >= 0 && receive(random, ours, CHALLENGE);
  if (random >= 0) close(random);
  // These few bytes fit into the connection's buffer.
  if (!filled || write(connection, hello, sizeof(hello)) != (ssize_t)sizeof(hello) ||
      !receive(connection, answer, sizeof(answer)))
    return false;
  prove(secret, "client", ours, answer, proof);
  uint8_t different = 0;
  // In a time that does not depend on the first difference.
  for (int i = 0; i < PROOF; ++i) different |= proof[i] ^ answer[CHALLENGE + i];
  if (different) return false;
  prove(secret, "server", ours, answer, proof);
  return write(connection, proof, sizeof(proof)) == (ssize_t)sizeof(proof);
}
