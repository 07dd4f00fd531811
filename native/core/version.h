// Versions as OpenCL writes them.
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Returns whether "<major>.<minor><anything>" is this version or a newer one.  Both parts are
// compared as numbers: 10.0 is newer than 1.2, and so is 1.10.
static inline bool IsNumberAtLeast(const char* text, unsigned long major, unsigned long minor) {
  char* end;
  const unsigned long found = strtoul(text, &end, 10);
  if (found != major || *end != '.') return found > major;
  const char* const rest = end + 1;
  return strtoul(rest, &end, 10) >= minor;
}

// Returns the same for a text of the specified form "OpenCL <major>.<minor> <anything>".
static inline bool IsAtLeast(const char* text, unsigned long major, unsigned long minor) {
  static const char prefix[] = "OpenCL ";
  return strncmp(text, prefix, sizeof(prefix) - 1) == 0 &&
         IsNumberAtLeast(text + sizeof(prefix) - 1, major, minor);
}
