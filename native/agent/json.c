#include "json.h"

#include <stdio.h>
#include <string.h>

static void add(agent_json* json, const char* text, size_t bytes) {
  // A byte stays for the end of the text.
  if (bytes >= json->bytes - json->used) {
    json->bad = true;
    return;
  }
  memcpy(json->text + json->used, text, bytes);
  json->used += bytes;
  json->text[json->used] = 0;
}

static void add_text(agent_json* json, const char* text) { add(json, text, strlen(text)); }

// Returns the length of the UTF-8 sequence at the text's beginning; 0: it is none.
static size_t sequence(const unsigned char* at) {
  const size_t length = at[0] < 0x80                    ? 1
                        : at[0] >= 0xC2 && at[0] < 0xE0 ? 2
                        : at[0] >= 0xE0 && at[0] < 0xF0 ? 3
                        : at[0] >= 0xF0 && at[0] < 0xF5 ? 4
                                                        : 0;
  for (size_t i = 1; i < length; ++i)
    if ((at[i] & 0xC0) != 0x80) return 0;
  // Overlong forms, halves of pairs, and numbers beyond the last character.
  if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) ||
      (at[0] == 0xF0 && at[1] < 0x90) || (at[0] == 0xF4 && at[1] > 0x8F))
    return 0;
  return length;
}

static void add_string(agent_json* json, const char* text) {
  add(json, "\"", 1);
  for (const unsigned char* at = (const unsigned char*)text; *at;) {
    char escaped[8];
    const size_t length = sequence(at);
    if (*at < 0x20 || *at == '"' || *at == '\\') {
      snprintf(escaped, sizeof(escaped), "\\u%04x", *at);
      add_text(json, escaped);
    } else if (length) {
      add(json, (const char*)at, length);
    } else {
      add(json, "?", 1);
    }
    at += length ? length : 1;
  }
  add(json, "\"", 1);
}

static void begin_member(agent_json* json, const char* name) {
  if (json->has_items) add(json, ",", 1);
  json->has_items = true;
  if (!name) return;
  add_string(json, name);
  add(json, ":", 1);
}

void agent_json_begin(agent_json* json, char* text, size_t bytes) {
  *json = (agent_json){text, bytes, 0, false, false};
  *text = 0;
}

void agent_json_open(agent_json* json, const char* name, char bracket) {
  begin_member(json, name);
  add(json, &bracket, 1);
  json->has_items = false;
}

void agent_json_close(agent_json* json, char bracket) {
  add(json, &bracket, 1);
  json->has_items = true;
}

void agent_json_number(agent_json* json, const char* name, uint64_t value) {
  char text[24];
  begin_member(json, name);
  snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
  add_text(json, text);
}

void agent_json_real(agent_json* json, const char* name, double value) {
  char text[40];
  begin_member(json, name);
  snprintf(text, sizeof(text), "%.10g", value);
  add_text(json, text);
}

void agent_json_bool(agent_json* json, const char* name, bool value) {
  begin_member(json, name);
  add_text(json, value ? "true" : "false");
}

void agent_json_text(agent_json* json, const char* name, const char* text) {
  if (name && (!text || !*text)) return;
  begin_member(json, name);
  add_string(json, text ? text : "");
}
