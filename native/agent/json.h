// Writes JSON into memory of a fixed size; what does not fit is cut, and `bad` is set.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct agent_json {
  char* text;
  size_t bytes;
  size_t used;
  bool bad;
  bool has_items;  // in the open object or list
} agent_json;

void agent_json_begin(agent_json* json, char* text, size_t bytes);
// Each of these has the name of its member; NULL in lists.
void agent_json_open(agent_json* json, const char* name, char bracket);
void agent_json_close(agent_json* json, char bracket);
void agent_json_number(agent_json* json, const char* name, uint64_t value);
void agent_json_real(agent_json* json, const char* name, double value);
void agent_json_bool(agent_json* json, const char* name, bool value);
// Escapes the text, and replaces what is not UTF-8.  NULL and "" are left out if they have a name.
void agent_json_text(agent_json* json, const char* name, const char* text);
