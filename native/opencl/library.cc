#include "library.h"

#include <dlfcn.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <type_traits>

#include "errors.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

// Stands for an OpenCL library whose symbols are already global in the process: one that
// was preloaded (as the oclgrind command does) or linked to the program.
constexpr const char* kLoaded = "(loaded before)";

using GetPlatformIds = cl_int (*)(cl_uint, cl_platform_id*, cl_uint*);
using GetExtensionAddress = void* (*)(const char*);

std::vector<std::string> Glob(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

bool IsFile(const std::string& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Opens libraries that Intel's CPU runtime needs from `folder`.  The runtime opens its code
// generator and vector math libraries by bare name, which only works on the loader's path,
// unless libraries of these names are already loaded.
void PreloadIntelDependencies(const std::string& folder) {
  for (const char* pattern :
       {"/libtbb.so.12", "/libtbbmalloc.so.2", "/libtcm.so.1", "/libimf.so", "/libsvml.so",
        "/libirng.so", "/libintlc.so.5", "/libcommon_clang.so", "/libocl_svml_*.so"}) {
    // The vector math libraries for different processors define the same symbols, so they
    // must not become global; the driver chooses one by its handle.
    for (const std::string& path : Glob(folder + pattern)) dlopen(path.c_str(), RTLD_LAZY);
  }
}

std::string PathOf(void* handle, const std::string& fallback) {
  // Any symbol identifies the file; a loader exports the first name, a driver the second.
  for (const char* symbol :
       {"clGetPlatformIDs", "clGetExtensionFunctionAddress", "clIcdGetPlatformIDsKHR"}) {
    Dl_info info{};
    void* address = dlsym(handle, symbol);
    if (address && dladdr(address, &info) && info.dli_fname) return info.dli_fname;
  }
  return fallback;
}

std::string PlatformText(const Api& api, cl_platform_id id, cl_uint what) {
  size_t size = 0;
  if (api.clGetPlatformInfo(id, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (api.clGetPlatformInfo(id, what, size, text.data(), nullptr) != CL_SUCCESS) return "";
  return text.c_str();
}

// Returns whether the platform's driver supports loaders, so that its objects begin with a
// dispatch table.  Other objects are opaque.
bool HasTables(void* handle, cl_platform_id platform) {
  Api api;
  api.clGetPlatformInfo =
      reinterpret_cast<decltype(api.clGetPlatformInfo)>(dlsym(handle, "clGetPlatformInfo"));
  if (!api.clGetPlatformInfo) return false;
  const std::string extensions = PlatformText(api, platform, CL_PLATFORM_EXTENSIONS);
  return (" " + extensions + " ").find(" cl_khr_icd ") != std::string::npos;
}

// Returns the entry points that the library exports, and the others from the platform's
// dispatch table.  Returns null if one is missing, and sets `missing` to its name.
std::shared_ptr<const Api> ResolveApi(void* handle, bool exported, bool has_tables,
                                      cl_platform_id platform, std::string* missing) {
  auto api = std::make_shared<Api>();
  const auto resolve = [&](auto& entry, const char* name, size_t index) {
    using Entry = std::remove_reference_t<decltype(entry)>;
    if (exported) entry = reinterpret_cast<Entry>(dlsym(handle, name));
    if (!entry && has_tables && platform->dispatch)
      entry = reinterpret_cast<Entry>(platform->dispatch[index]);
    return entry != nullptr;
  };
#define TVMFLOW_OPENCL_RESOLVE(name, index, result, parameters)                                    \
  if (!resolve(api->name, #name, index) && missing->empty()) *missing = #name;
  TVMFLOW_OPENCL_ENTRY_POINTS(TVMFLOW_OPENCL_RESOLVE)
#undef TVMFLOW_OPENCL_RESOLVE
  if (!missing->empty()) return nullptr;
  // The table of an older driver ends before these entry points.
  if (PlatformText(*api, platform, CL_PLATFORM_VERSION) < "OpenCL 2") return api;
#define TVMFLOW_OPENCL_RESOLVE(name, index, result, parameters) resolve(api->name, #name, index);
  TVMFLOW_OPENCL_2_ENTRY_POINTS(TVMFLOW_OPENCL_RESOLVE)
#undef TVMFLOW_OPENCL_RESOLVE
  return api;
}

}  // namespace

std::vector<std::string> CandidateLibraries() {
  const Settings settings = CurrentSettings();
  if (!settings.library.empty()) return {settings.library};
  std::vector<std::string> candidates = {kLoaded, "libOpenCL.so.1", "libOpenCL.so"};
  auto add = [&](const std::string& path) {
    if (std::find(candidates.begin(), candidates.end(), path) == candidates.end())
      candidates.push_back(path);
  };
  for (const std::string& folder : settings.search_folders) {
    if (IsFile(folder + "/libintelocl.so")) add(folder + "/libintelocl.so");
  }
  add("libnvidia-opencl.so.1");
  return candidates;
}

std::vector<Platform> OpenLibrary(const std::string& library, std::string* outcome) {
  if (size_t slash = library.rfind('/');
      slash != std::string::npos && library.find("libintelocl", slash) != std::string::npos)
    PreloadIntelDependencies(library.substr(0, slash));
  // Bind lazily, because optional parts of a driver may reference missing symbols.
  void* handle = library == kLoaded ? dlopen(nullptr, RTLD_LAZY)
                                    : dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle && library == kLoaded && !dlsym(handle, "clGetPlatformIDs")) {
    *outcome = "the process has not loaded an OpenCL library";
    return {};
  }
  if (!handle) {
    const char* reason = dlerror();
    *outcome = reason ? reason : "it cannot be opened";
    return {};
  }
  auto get_ids = reinterpret_cast<GetPlatformIds>(dlsym(handle, "clGetPlatformIDs"));
  const bool exported = get_ids != nullptr;
  if (!exported) {
    get_ids = reinterpret_cast<GetPlatformIds>(dlsym(handle, "clIcdGetPlatformIDsKHR"));
    auto get_address =
        reinterpret_cast<GetExtensionAddress>(dlsym(handle, "clGetExtensionFunctionAddress"));
    if (!get_ids && get_address)
      get_ids = reinterpret_cast<GetPlatformIds>(get_address("clIcdGetPlatformIDsKHR"));
  }
  if (!get_ids) {
    *outcome = "it is not an OpenCL library";
    return {};
  }
  cl_uint count = 0;
  cl_int code = get_ids(0, nullptr, &count);
  std::vector<cl_platform_id> ids(count);
  if (code == CL_SUCCESS && count > 0) code = get_ids(count, ids.data(), nullptr);
  if (code != CL_SUCCESS || count == 0) {
    *outcome = "it has no platform (" + ErrorName(code) + ")";
    return {};
  }
  const std::string path = PathOf(handle, library);
  std::vector<Platform> platforms;
  for (cl_platform_id id : ids) {
    std::string missing;
    const bool has_tables = !exported || HasTables(handle, id);
    std::shared_ptr<const Api> api = ResolveApi(handle, exported, has_tables, id, &missing);
    if (!api) {
      *outcome = "it lacks " + missing + " of OpenCL 1.2";
      continue;
    }
    platforms.push_back({id, api, has_tables, path, PlatformText(*api, id, CL_PLATFORM_NAME),
                         PlatformText(*api, id, CL_PLATFORM_VENDOR),
                         PlatformText(*api, id, CL_PLATFORM_VERSION)});
  }
  return platforms;
}

}  // namespace tvmflow::opencl
