// The entry point on Android: compilers other than the NDK's lack the file that has it.
// bionic's dynamic linker has run the constructors already, so that the lists of functions stay
// empty; `__libc_init` calls main and exits.
#include <stddef.h>

int main(int count, char** words, char** environment);

// Arrays of functions, and in newer versions of bionic their lengths.
typedef struct structors {
  void* arrays[3];
  size_t counts[3];
} structors;

void __libc_init(void* stack, void (*at_exit)(void), int (*run)(int, char**, char**),
                 const structors* functions) __attribute__((noreturn));

__attribute__((used, noreturn)) void agent_start(void* stack) {
  static const structors none;
  __libc_init(stack, NULL, main, &none);
}

// The stack pointer at the entry points to the arguments.
#if defined(__aarch64__)
__asm__(".globl _start\n_start:\n  mov x0, sp\n  mov x29, #0\n  mov x30, #0\n  b agent_start\n");
#elif defined(__arm__)
__asm__(
    ".arm\n.globl _start\n.type _start, %function\n_start:\n  mov r0, sp\n  mov fp, #0\n"
    "  mov lr, #0\n  bl agent_start\n");
#elif defined(__x86_64__)
__asm__(
    ".globl _start\n_start:\n  xor %ebp, %ebp\n  mov %rsp, %rdi\n  and $-16, %rsp\n"
    "  call agent_start\n");
#endif
