#include "json_reader.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../core/text.h"

tf_json tf_json_begin(const char* text, size_t bytes) {
  return (tf_json){.begin = text, .at = text, .end = text + bytes};
}

bool tf_json_fail(tf_json* j, const char* format, ...) {
  if (*j->wrong) return false;
  unsigned line = 1, column = 1;
  for (const char* at = j->begin; at < j->at; ++at) {
    ++column;
    if (*at != '\n') continue;
    ++line;
    column = 1;
  }
  tf_append(j->wrong, sizeof(j->wrong), "line %u, column %u: ", line, column);
  const size_t used = strlen(j->wrong);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(j->wrong + used, sizeof(j->wrong) - used, format, arguments);
  va_end(arguments);
  return false;
}

// Skips white space and returns the next byte; 0: the text has ended, or reading has failed.
static char next(tf_json* j) {
  if (*j->wrong) return 0;
  while (j->at < j->end && *j->at && strchr(" \t\r\n", *j->at)) ++j->at;
  return j->at < j->end ? *j->at : 0;
}

static bool expected(tf_json* j, const char* what) {
  const char found = next(j);
  if (!found && j->at == j->end) return tf_json_fail(j, "expected %s, found the end", what);
  if (found <= ' ' || found > '~')
    return tf_json_fail(j, "expected %s, found byte 0x%02x", what, (unsigned char)found);
  return tf_json_fail(j, "expected %s, found '%c'", what, found);
}

static bool take(tf_json* j, char wanted) {
  if (next(j) == wanted) {
    ++j->at;
    return true;
  }
  const char what[] = {'\'', wanted, '\'', 0};
  return expected(j, what);
}

bool tf_json_is(tf_json* j, char begin) { return next(j) == begin; }

bool tf_json_open(tf_json* j, char bracket) { return take(j, bracket); }

bool tf_json_more(tf_json* j, char bracket, unsigned* count) {
  if (next(j) == bracket) {
    ++j->at;
    return false;
  }
  if (*count && next(j) != ',') {
    const char what[] = {'\'', ',', '\'', ' ', 'o', 'r', ' ', '\'', bracket, '\'', 0};
    return expected(j, what);
  }
  if ((*count)++) ++j->at;
  return !*j->wrong;
}

// Reads a byte without white space before it.  Returns false if another one is there.
static bool take_byte(tf_json* j, char wanted) {
  if (j->at == j->end || *j->at != wanted) return false;
  ++j->at;
  return true;
}

// Reads four hexadecimal digits.  Returns false if they are not there.
static bool read_hex(tf_json* j, uint32_t* number) {
  *number = 0;
  for (int i = 0; i < 4; ++i, ++j->at) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char* const digit = j->at < j->end && *j->at ? strchr(digits, *j->at) : NULL;
    if (!digit) return false;
    *number = *number << 4 | ((uint32_t)(digit - digits) & 15);
  }
  return true;
}

// Reads the rest of an escape after the backslash, as UTF-8.  Returns its bytes; 0: it is wrong.
static size_t read_escape(tf_json* j, char utf8[4]) {
  static const char names[] = "\"\\/bfnrt";
  static const char values[] = "\"\\/\b\f\n\r\t";
  const char* const name = j->at < j->end && *j->at ? strchr(names, *j->at) : NULL;
  if (name) {
    ++j->at;
    utf8[0] = values[name - names];
    return 1;
  }
  uint32_t code = 0, low = 0;
  if (!take_byte(j, 'u') || !read_hex(j, &code) || !code) return 0;
  if (code >= 0xDC00 && code < 0xE000) return 0;
  if (code >= 0xD800 && code < 0xDC00) {
    if (!take_byte(j, '\\') || !take_byte(j, 'u') || !read_hex(j, &low)) return 0;
    if (low < 0xDC00 || low >= 0xE000) return 0;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  const size_t bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = bytes; i-- > 1; code >>= 6) utf8[i] = (char)(0x80 | (code & 0x3F));
  utf8[0] = (char)(leads[bytes] | code);
  return bytes;
}

// Returns the length of the UTF-8 character at the position; 0: it is a control character, or none.
static size_t character(const tf_json* j) {
  const uint8_t lead = (uint8_t)*j->at;
  if (lead < 0x80) return lead >= 0x20;
  const size_t bytes = lead >= 0xC2 && lead < 0xE0 ? 2 : lead < 0xE0 ? 0 : lead < 0xF0 ? 3 : 4;
  if (!bytes || lead > 0xF4 || bytes > (size_t)(j->end - j->at)) return 0;
  const uint8_t second = (uint8_t)j->at[1];
  // Overlong forms, surrogates, and codes beyond the last one.
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
    return 0;
  for (size_t i = 1; i < bytes; ++i)
    if (((uint8_t)j->at[i] & 0xC0) != 0x80) return 0;
  return bytes;
}

bool tf_json_string(tf_json* j, char* text, size_t bytes) {
  *text = 0;
  if (next(j) != '"') return expected(j, "a string");
  const char* const start = j->at++;
  size_t used = 0;
  while (j->at < j->end && *j->at != '"') {
    char escaped[4];
    const char* from = j->at;
    size_t count;
    if (*j->at == '\\') {
      ++j->at;
      count = read_escape(j, escaped);
      if (!count) {
        j->at = from;
        return tf_json_fail(j, "an escape that JSON does not have");
      }
      from = escaped;
    } else {
      count = character(j);
      if (!count) return tf_json_fail(j, "a control character, or bytes that are not UTF-8");
      j->at += count;
    }
    if (count >= bytes - used) {
      j->at = start;
      return tf_json_fail(j, "a string of more than %zu bytes", bytes - 1);
    }
    memcpy(text + used, from, count);
    used += count;
    text[used] = 0;
  }
  return take(j, '"');
}

bool tf_json_key(tf_json* j, char* text, size_t bytes) {
  return tf_json_string(j, text, bytes) && take(j, ':');
}

bool tf_json_end(tf_json* j) {
  return (!next(j) && j->at == j->end && !*j->wrong) || expected(j, "the end");
}
