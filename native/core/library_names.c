#include "library_names.h"

#include <stddef.h>
#include <stdlib.h>

#include "opencl.h"

#if defined(__LP64__)
#define LIB "lib64"
#else
#define LIB "lib"
#endif

// Names are found if the system or, on Android, the application's manifest (uses-native-library)
// makes them visible; the paths are those of vendors of Android devices.
static const char* const names[] = {
    TF_IN_PROCESS,
    "libOpenCL.so.1",
    "libOpenCL.so",
    "libOpenCL-pixel.so",
    "libOpenCL-car.so",
    "/system/vendor/" LIB "/libOpenCL.so",
    "/vendor/" LIB "/libOpenCL.so",
    "/system/" LIB "/libOpenCL.so",
    "/vendor/" LIB "/egl/libGLES_mali.so",
    "/system/vendor/" LIB "/egl/libGLES_mali.so",
    "/system/" LIB "/egl/libGLES_mali.so",
    "/vendor/" LIB "/libPVROCL.so",
    "/system/vendor/" LIB "/libPVROCL.so",
    "libnvidia-opencl.so.1",
    NULL,
};

const char* tf_library_name(const char* only, unsigned index) {
  const char* const chosen = only ? only : getenv("TVMFLOW_OPENCL_LIBRARY");
  if (chosen && *chosen) return index == 0 ? chosen : NULL;
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : NULL;
}
