#pragma once
#include <sys/types.h>

#define F_OK 0
#define X_OK 1
#define W_OK 2
#define R_OK 4
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#define _SC_PAGESIZE 0x27
#define _SC_PAGE_SIZE 0x28
#define _SC_NPROCESSORS_ONLN 0x61
#define _SC_PHYS_PAGES 0x62

ssize_t read(int file, void* to, size_t size);
ssize_t write(int file, const void* from, size_t size);
ssize_t pread(int file, void* to, size_t size, off_t offset);
ssize_t pwrite(int file, const void* from, size_t size, off_t offset);
off_t lseek(int file, off_t offset, int whence);
int close(int file);
long syscall(long number, ...);
int fsync(int file);
int ftruncate(int file, off_t size);
int access(const char* path, int mode);
unsigned alarm(unsigned seconds);
int unlink(const char* path);
int unlinkat(int folder, const char* path, int flags);
int rmdir(const char* path);
ssize_t readlink(const char* path, char* to, size_t size);
pid_t fork(void);
pid_t getpid(void);
pid_t getppid(void);
int setpgid(pid_t process, pid_t group);
void _exit(int status) __attribute__((noreturn));
int dup2(int file, int other);
int symlink(const char* target, const char* path);
pid_t gettid(void);
uid_t getuid(void);
uid_t geteuid(void);
long sysconf(int name);
int usleep(uint32_t us);
