// The numbers of the agent's protocol; docs/agent-protocol.md describes it.
#pragma once

// Version of the protocol; both sides state the range that they know.
enum { AGENT_VERSION = 1 };

// Optional parts of the protocol, as bits.
enum { AGENT_FEATURES = 0 };

// Kinds of requests.  An answer has its request's kind with AGENT_ANSWER set, or is AGENT_ERROR;
// parts of either, which precede it, have AGENT_PART set.
enum {
  AGENT_HELLO = 1,
  AGENT_PING = 2,
  AGENT_SENSORS = 3,
  AGENT_HAVE = 4,
  AGENT_PUT = 5,
  AGENT_CANCEL = 6,
  AGENT_RESET = 7,
  // Those from here on are answered by the session, a child process.
  AGENT_FACTS = 16,
  AGENT_OPEN = 17,
  AGENT_CLOSE = 18,
  AGENT_RUN = 19,
  AGENT_TIME = 20,
  AGENT_PROFILE = 21,
  AGENT_SELF_TEST = 22,
  AGENT_DESCRIBE = 23,
  AGENT_BINARIES = 24,
  AGENT_TUNE = 25,
  AGENT_BUILD = 32,
  AGENT_ALLOCATE = 33,
  AGENT_WRITE = 34,
  AGENT_FILL = 35,
  AGENT_READ = 36,
  AGENT_LAUNCH = 37,
  AGENT_FREE = 38,

  AGENT_FIRST_OF_SESSION = AGENT_FACTS,
  AGENT_PART = 0x4000,
  AGENT_ANSWER = 0x8000,
  AGENT_ERROR = 0xffff,
};

// Codes of AGENT_ERROR.
enum {
  AGENT_PROTOCOL = 1,  // a frame or its fields are damaged: the connection ends
  AGENT_VERSIONS = 2,  // no common version
  AGENT_BUSY = 3,      // another host uses the agent's folder, or a request is in progress
  AGENT_ARGUMENT = 4,  // a value is outside its limits
  AGENT_MISSING = 5,   // no blob or object of this name
  AGENT_STORE = 6,     // the folder or its disk is full, or cannot be written
  AGENT_LIBRARY = 7,   // a library was refused; detail: its tvmflow_status, 0 for the loader
  AGENT_DEVICE = 8,    // the driver failed; detail: OpenCL's code
  AGENT_MEMORY = 9,    // the host's memory ran out
  AGENT_LOST = 10,     // the session ended; detail: its signal, or 256 + its exit status
  AGENT_TIMEOUT = 11,  // the request took longer than its limit, and the session was ended
  AGENT_CANCELLED = 12,
};

// Limits.
enum {
  AGENT_HEADER_BYTES = 24,
  AGENT_MAX_PAYLOAD = 4 << 20,
  AGENT_PART_BYTES = 256 << 10,  // of data in a part that the agent sends
  AGENT_MAX_TEXT = 64 << 10,     // of names, options and messages
  AGENT_MAX_ITEMS = 4096,        // inputs, outputs, files, arguments, launches, handles
  AGENT_DEFAULT_LIMIT_MS = 60000,
  AGENT_MAX_LIMIT_MS = 3600000,
};
