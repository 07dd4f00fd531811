#pragma once
#include <sys/types.h>

typedef struct {
  unsigned long bits[1024 / (8 * sizeof(unsigned long))];
} cpu_set_t;

#define CPU_WORD(cpu, set) ((set)->bits[(cpu) / (8 * sizeof(unsigned long))])
#define CPU_BIT(cpu) (1ul << ((cpu) % (8 * sizeof(unsigned long))))
#define CPU_ZERO(set) __builtin_memset(set, 0, sizeof(cpu_set_t))
#define CPU_SET(cpu, set) (CPU_WORD(cpu, set) |= CPU_BIT(cpu))
#define CPU_ISSET(cpu, set) ((CPU_WORD(cpu, set) & CPU_BIT(cpu)) != 0)

int sched_yield(void);
int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* set);
int sched_setaffinity(pid_t process, size_t bytes, const cpu_set_t* set);
