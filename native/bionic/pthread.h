// At least as large and as strictly aligned as Android's own.
#pragma once
#include <sys/types.h>
#include <time.h>

typedef struct {
  int32_t value[10];
} __attribute__((aligned(16))) pthread_mutex_t;
typedef struct {
  int32_t value[12];
} __attribute__((aligned(16))) pthread_cond_t;
typedef struct {
  int64_t value[7];
} __attribute__((aligned(16))) pthread_attr_t;
typedef long pthread_mutexattr_t;
typedef long pthread_condattr_t;
typedef int32_t pthread_once_t;
typedef int32_t pthread_key_t;
typedef long pthread_t;

#define PTHREAD_MUTEX_INITIALIZER {{0}}
#define PTHREAD_COND_INITIALIZER {{0}}
#define PTHREAD_ONCE_INIT 0

int pthread_mutex_init(pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes);
int pthread_mutex_destroy(pthread_mutex_t* mutex);
int pthread_mutex_lock(pthread_mutex_t* mutex);
int pthread_mutex_trylock(pthread_mutex_t* mutex);
int pthread_mutex_unlock(pthread_mutex_t* mutex);
int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes);
int pthread_cond_destroy(pthread_cond_t* condition);
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex);
int pthread_cond_signal(pthread_cond_t* condition);
int pthread_cond_broadcast(pthread_cond_t* condition);
int pthread_once(pthread_once_t* once, void (*function)(void));
int pthread_key_create(pthread_key_t* key, void (*destroy)(void*));
void* pthread_getspecific(pthread_key_t key);
int pthread_setspecific(pthread_key_t key, const void* value);
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument);
int pthread_join(pthread_t thread, void** result);
int pthread_detach(pthread_t thread);
pthread_t pthread_self(void);
