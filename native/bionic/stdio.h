#pragma once
#include <stdarg.h>
#include <sys/types.h>

typedef struct __sFILE FILE;
extern FILE* stdout;
extern FILE* stderr;

#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#define EOF (-1)

int snprintf(char* to, size_t size, const char* format, ...) __attribute__((format(printf, 3, 4)));
int vsnprintf(char* to, size_t size, const char* format, va_list arguments)
    __attribute__((format(printf, 3, 0)));
int printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
int fprintf(FILE* file, const char* format, ...) __attribute__((format(printf, 2, 3)));
int sscanf(const char* text, const char* format, ...) __attribute__((format(scanf, 2, 3)));
FILE* fopen(const char* path, const char* mode);
FILE* fdopen(int file, const char* mode);
int fclose(FILE* file);
int fflush(FILE* file);
int ferror(FILE* file);
int feof(FILE* file);
int fileno(FILE* file);
size_t fread(void* to, size_t size, size_t count, FILE* file);
size_t fwrite(const void* from, size_t size, size_t count, FILE* file);
char* fgets(char* to, int size, FILE* file);
int fseeko(FILE* file, off_t offset, int whence);
off_t ftello(FILE* file);
int fseek(FILE* file, long offset, int whence);
long ftell(FILE* file);
int remove(const char* path);
int rename(const char* from, const char* to);
