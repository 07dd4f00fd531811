// Whether a phone is hot, as Android reports it (AThermal, since version 11).
#include <dlfcn.h>

#include "tune.h"

// ATHERMAL_STATUS_MODERATE of android/thermal.h: clocks are limited, and that is noticed.
enum { MODERATE = 2 };

bool tf_is_hot(void) {
  // It is part of the system, and an application has it open already.
  void* const library = dlopen("libandroid.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  void* (*const acquire)(void) = (void* (*)(void))dlsym(library, "AThermal_acquireManager");
  int (*const status)(void*) = (int (*)(void*))dlsym(library, "AThermal_getCurrentThermalStatus");
  void (*const release)(void*) = (void (*)(void*))dlsym(library, "AThermal_releaseManager");
  bool hot = false;
  if (acquire && status && release) {
    void* const manager = acquire();
    hot = manager && status(manager) >= MODERATE;
    if (manager) release(manager);
  }
  dlclose(library);
  return hot;
}
