#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

// The name of a library that is in the process already: linked, preloaded, or opened globally by
// another part of the application.
static const char in_process[] = "(in the process)";

// The libraries to try.  Names are found if the system or, on Android, the application's manifest
// (uses-native-library) makes them visible; the paths are those of vendors of Android devices.
static const char* const names[] = {
    in_process,
    "libOpenCL.so.1",
    "libOpenCL.so",
    "libOpenCL-pixel.so",
    "libOpenCL-car.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/system/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/libPVROCL.so",
    "/system/vendor/lib64/libPVROCL.so",
    "libnvidia-opencl.so.1",
    NULL,
};

// C has no conversion from void* to function pointers, but POSIX guarantees that they fit.
typedef void (*function)(void);

static function symbol(void* handle, const char* name) {
  void* const address = dlsym(handle, name);
  function found;
  memcpy(&found, &address, sizeof(found));
  return found;
}

bool tf_has_word(const char* list, const char* word) {
  const size_t length = strlen(word);
  for (const char* at = list; (at = strstr(at, word)); at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0)) return true;
  return false;
}

const char* tf_library_name(const char* only, unsigned index) {
  const char* const chosen = only ? only : getenv("TVMFLOW_OPENCL_LIBRARY");
  if (chosen && *chosen) return index == 0 ? chosen : NULL;
  return index < sizeof(names) / sizeof(names[0]) ? names[index] : NULL;
}

// Opens a vendor's library, which is in another linker namespace than the application.  Android's
// own libraries use this function, which some devices let applications call.
static void* open_from_vendor(const char* name) {
  void* const ndk_support = dlopen("libvndksupport.so", RTLD_LAZY | RTLD_LOCAL);
  if (!ndk_support) return NULL;
  void* (*const load)(const char*, int) =
      (void* (*)(const char*, int))symbol(ndk_support, "android_load_sphal_library");
  return load ? load(name, RTLD_LAZY | RTLD_LOCAL) : NULL;
}

bool tf_library_open(tf_library* library, const char* name, char* text, size_t bytes) {
  // Bind lazily, because a driver may reference symbols that only its optional parts need.
  const bool inside = name == in_process;
  void* handle = dlopen(inside ? NULL : name, RTLD_LAZY | RTLD_LOCAL);
  if (!handle) {
    const char* const error = dlerror();
    tf_append(text, bytes, "%s", error ? error : "it cannot be opened");
    if (name[0] == '/') handle = open_from_vendor(strrchr(name, '/') + 1);
    if (!handle) return false;
  }
  library->handle = handle;
  function get_platforms = symbol(handle, "clGetPlatformIDs");
  library->exported = get_platforms != NULL;
  if (!get_platforms) get_platforms = symbol(handle, "clIcdGetPlatformIDsKHR");
  if (!get_platforms) {
    void* (*const address_of)(const char*) =
        (void* (*)(const char*))symbol(handle, "clGetExtensionFunctionAddress");
    void* const address = address_of ? address_of("clIcdGetPlatformIDsKHR") : NULL;
    memcpy(&get_platforms, &address, sizeof(get_platforms));
  }
  library->get_platforms = (cl_int (*)(cl_uint, cl_platform_id*, cl_uint*))get_platforms;
  if (get_platforms) return true;
  dlclose(handle);
  tf_append(text, bytes, "%s", inside ? "there is none" : "it is not an OpenCL library");
  return false;
}

// Returns whether the platform's objects begin with a table of functions, as loaders require.
static bool has_tables(const tf_opencl* api, cl_platform_id platform) {
  size_t bytes = 0;
  if (!api->clGetPlatformInfo ||
      api->clGetPlatformInfo(platform, CL_PLATFORM_EXTENSIONS, 0, NULL, &bytes) != CL_SUCCESS)
    return false;
  char* const list = calloc(bytes + 1, 1);
  const bool has =
      list &&
      api->clGetPlatformInfo(platform, CL_PLATFORM_EXTENSIONS, bytes, list, NULL) == CL_SUCCESS &&
      tf_has_word(list, "cl_khr_icd");
  free(list);
  return has;
}

const char* tf_opencl_resolve(tf_opencl* api, const tf_library* library, cl_platform_id platform) {
  const char* missing = NULL;
  memset(api, 0, sizeof(*api));
  api->library = library->handle;
  if (library->exported) {
    const function address = symbol(library->handle, "clGetPlatformInfo");
    memcpy(&api->clGetPlatformInfo, &address, sizeof(address));
  }
  api->has_tables = !library->exported || has_tables(api, platform);
#define TF_FROM_LIBRARY(name, index, result, parameters)                                           \
  if (library->exported) api->name = (result(*) parameters)symbol(library->handle, #name);
#define TF_FROM_TABLE(name, index, result, parameters)                                             \
  if (!api->name && api->has_tables && platform->dispatch)                                         \
    memcpy(&api->name, &platform->dispatch[index], sizeof(api->name));
#define TF_NEEDED(name, index, result, parameters)                                                 \
  TF_FROM_LIBRARY(name, index, result, parameters)                                                 \
  TF_FROM_TABLE(name, index, result, parameters)                                                   \
  if (!api->name && !missing) missing = #name;
  TVMFLOW_OPENCL_ENTRY_POINTS(TF_NEEDED)
  TF_MORE_ENTRY_POINTS(TF_NEEDED)
  // A driver's table may end before the optional entries, so they are read only if there is no
  // other way.
  TF_OPTIONAL_ENTRY_POINTS(TF_FROM_LIBRARY)
  if (!library->exported) {
    TF_OPTIONAL_ENTRY_POINTS(TF_FROM_TABLE)
  }
#undef TF_NEEDED
#undef TF_FROM_TABLE
#undef TF_FROM_LIBRARY
  return missing;
}

void* tf_opencl_extension(const tf_opencl* api, cl_platform_id platform, const char* name) {
  void* found = NULL;
  if (api->clGetExtensionFunctionAddressForPlatform)
    found = api->clGetExtensionFunctionAddressForPlatform(platform, name);
  // Qualcomm's drivers implement only one of these.
  if (!found && api->clGetExtensionFunctionAddress)
    found = api->clGetExtensionFunctionAddress(name);
  return found ? found : dlsym(api->library, name);
}
