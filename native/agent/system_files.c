#include "system_files.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store.h"

static const char* folder_of(const char* variable, const char* usual) {
  const char* const other = getenv(variable);
  return other && *other ? other : usual;
}

const char* agent_sys(void) { return folder_of("TVMFLOW_AGENT_SYS", "/sys"); }
const char* agent_proc(void) { return folder_of("TVMFLOW_AGENT_PROC", "/proc"); }

bool agent_read_line(const char* folder, const char* name, const char* more, char* text,
                     size_t bytes) {
  char path[AGENT_MAX_PATH];
  *text = 0;
  if (snprintf(path, sizeof(path), "%s/%s%s%s", folder, name, more ? "/" : "", more ? more : "") >=
      (int)sizeof(path))
    return false;
  const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const ssize_t got = file < 0 ? -1 : read(file, text, bytes - 1);
  if (file >= 0) close(file);
  text[got > 0 ? got : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  return *text != 0;
}

bool agent_read_number(const char* folder, const char* name, const char* more, double* value) {
  char text[64];
  char* end;
  if (!agent_read_line(folder, name, more, text, sizeof(text))) return false;
  *value = strtod(text, &end);
  // JSON has no infinity, nor what is no number.
  return end != text && isfinite(*value);
}
