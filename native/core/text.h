// Texts in memory of a fixed size.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Appends to a text of at most `bytes` bytes, cut if it is too long.
void tf_append(char* text, size_t bytes, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Returns whether a word is in a list separated by spaces.
bool tf_has_word(const char* list, const char* word);

#ifdef __cplusplus
}
#endif
