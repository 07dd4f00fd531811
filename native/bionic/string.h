#pragma once
#include <stddef.h>

void* memcpy(void* to, const void* from, size_t size);
void* memmove(void* to, const void* from, size_t size);
void* memset(void* to, int value, size_t size);
int memcmp(const void* a, const void* b, size_t size);
void* memchr(const void* memory, int value, size_t size);
void* memrchr(const void* memory, int value, size_t size);
size_t strlen(const char* text);
size_t strnlen(const char* text, size_t limit);
int strcmp(const char* a, const char* b);
int strncmp(const char* a, const char* b, size_t limit);
char* strcpy(char* to, const char* from);
char* strncpy(char* to, const char* from, size_t limit);
char* strcat(char* to, const char* from);
char* strchr(const char* text, int character);
char* strrchr(const char* text, int character);
char* strstr(const char* text, const char* part);
char* strcasestr(const char* text, const char* part);
char* strpbrk(const char* text, const char* characters);
size_t strspn(const char* text, const char* characters);
size_t strcspn(const char* text, const char* characters);
char* strtok_r(char* text, const char* separators, char** rest);
char* strdup(const char* text);
char* strndup(const char* text, size_t limit);
char* strerror(int number);
