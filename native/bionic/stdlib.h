#pragma once
#include <stddef.h>

void* malloc(size_t size) __attribute__((malloc));
void* calloc(size_t count, size_t size) __attribute__((malloc));
void* realloc(void* memory, size_t size);
void free(void* memory);
int posix_memalign(void** memory, size_t alignment, size_t size);
char* getenv(const char* name);
long strtol(const char* text, char** end, int base);
unsigned long strtoul(const char* text, char** end, int base);
long long strtoll(const char* text, char** end, int base);
unsigned long long strtoull(const char* text, char** end, int base);
double strtod(const char* text, char** end);
int atoi(const char* text);
int abs(int value);
void qsort(void* base, size_t count, size_t size, int (*compare)(const void*, const void*));
void* bsearch(const void* key, const void* base, size_t count, size_t size,
              int (*compare)(const void*, const void*));
char* realpath(const char* path, char* resolved);
int mkstemp(char* pattern);
