// Inflates the streams of a file, each in memory of its exact size, so that sanitizers notice an
// access outside of it.
//
//   inflate_streams FILE   each stream follows two 32-bit numbers: its bytes and those of its text.
//                          The output has a byte for each stream, 1 before its text and 0 where
//                          the stream was refused.
#include <stdio.h>
#include <stdlib.h>

#include "plan.h"

int main(int count, char** arguments) {
  FILE* const file = count > 1 ? fopen(arguments[1], "rb") : NULL;
  if (!file) return 2;
  uint32_t bytes[2];
  while (fread(bytes, sizeof(bytes), 1, file) == 1) {
    uint8_t* const packed = malloc(bytes[0]);
    char* const text = malloc(bytes[1]);
    if (fread(packed, 1, bytes[0], file) != bytes[0]) return 1;
    const bool taken = tf_inflate(packed, bytes[0], text, bytes[1]);
    putchar(taken);
    if (taken) fwrite(text, 1, bytes[1], stdout);
    free(packed);
    free(text);
  }
  fclose(file);
  return 0;
}
