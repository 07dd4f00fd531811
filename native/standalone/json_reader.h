// Reader of JSON that consists of objects, arrays and strings.  It reads in one pass, allocates
// nothing and does not recurse.
#ifndef TVMFLOW_STANDALONE_JSON_READER_H
#define TVMFLOW_STANDALONE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tf_json {
  const char* begin;
  const char* at;
  const char* end;
  char wrong[192];  // the first failure with its line and column; "" before any
} tf_json;

tf_json tf_json_begin(const char* text, size_t bytes);

// After a failure all of these return false, so that loops over elements end.

// Returns whether the next value begins with this character.
bool tf_json_is(tf_json* json, char begin);
// Reads '[' or '{'.
bool tf_json_open(tf_json* json, char bracket);
// Returns whether an element follows the `count` ones that were read, and counts it; else the
// closing bracket was read.
bool tf_json_more(tf_json* json, char bracket, unsigned* count);
// Reads a string into `text`, which takes `bytes` bytes with the zero byte.
bool tf_json_string(tf_json* json, char* text, size_t bytes);
// Reads the key of a member.
bool tf_json_key(tf_json* json, char* text, size_t bytes);
// Checks that only white space follows.
bool tf_json_end(tf_json* json);

// Sets the failure, unless there was one, and returns false.
bool tf_json_fail(tf_json* json, const char* format, ...) __attribute__((format(printf, 2, 3)));

#endif
