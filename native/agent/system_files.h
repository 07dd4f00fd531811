// Files of /sys and /proc; the environment variables TVMFLOW_AGENT_SYS and TVMFLOW_AGENT_PROC name
// other folders, for tests.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Returns the folder of /sys or /proc.
const char* agent_sys(void);
const char* agent_proc(void);
// Reads the first line of FOLDER/NAME, or of FOLDER/NAME/MORE.  Returns false, and "", if there is
// no such file or it is empty.
bool agent_read_line(const char* folder, const char* name, const char* more, char* text,
                     size_t bytes);
// Does the same for a number; returns false if it is none, or not finite.
bool agent_read_number(const char* folder, const char* name, const char* more, double* value);
