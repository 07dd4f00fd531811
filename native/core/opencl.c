#include "opencl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "version.h"

// C has no conversion from void* to function pointers, but POSIX guarantees that they fit.
typedef void (*function)(void);

static function symbol(void* handle, const char* name) {
  void* const address = dlsym(handle, name);
  function found;
  memcpy(&found, &address, sizeof(found));
  return found;
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
  const bool inside = strcmp(name, TF_IN_PROCESS) == 0;
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

char* tf_query_text(cl_int (*ask)(ClObject*, cl_uint, size_t, void*, size_t*), ClObject* object,
                    cl_uint what) {
  size_t bytes = 0;
  if (!ask || ask(object, what, 0, NULL, &bytes) != CL_SUCCESS) return NULL;
  char* const text = calloc(bytes + 1, 1);
  if (text && ask(object, what, bytes, text, NULL) == CL_SUCCESS) return text;
  free(text);
  return NULL;
}

// Returns whether the platform's objects begin with a table of functions, as loaders require.
static bool has_tables(const tf_opencl* api, cl_platform_id platform) {
  char* const list = tf_query_text(api->clGetPlatformInfo, platform, CL_PLATFORM_EXTENSIONS);
  const bool has = list && tf_has_word(list, "cl_khr_icd");
  free(list);
  return has;
}

static bool is_opencl_2(const tf_opencl* api, cl_platform_id platform) {
  char* const version = tf_query_text(api->clGetPlatformInfo, platform, CL_PLATFORM_VERSION);
  const bool is = version && IsAtLeast(version, 2, 0);
  free(version);
  return is;
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
  // A driver's table may end before the optional entries, so they are read only if there is no
  // other way, and those of OpenCL 2.0 only if the driver has that version.
  TVMFLOW_OPENCL_OPTIONAL_ENTRY_POINTS(TF_FROM_LIBRARY)
  TVMFLOW_OPENCL_2_ENTRY_POINTS(TF_FROM_LIBRARY)
  if (!library->exported) {
    TVMFLOW_OPENCL_OPTIONAL_ENTRY_POINTS(TF_FROM_TABLE)
  }
  if (!missing && is_opencl_2(api, platform)) {
    TVMFLOW_OPENCL_2_ENTRY_POINTS(TF_FROM_TABLE)
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
