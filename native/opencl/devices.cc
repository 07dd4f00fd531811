#include "devices.h"

#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "settings.h"

namespace tvmflow::opencl {
namespace {

// Set in a forked child, which lacks the driver's threads: its first wait would never end.
std::atomic<bool> forked{false};

std::vector<std::string> Glob(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// Returns libraries that may provide OpenCL, in the order in which to try them.
std::vector<std::string> CandidateLibraries() {
  const Settings settings = CurrentSettings();
  if (!settings.library.empty()) return {settings.library};
  std::vector<std::string> candidates = {TF_IN_PROCESS, "libOpenCL.so.1", "libOpenCL.so"};
  for (const std::string& folder : settings.search_folders) {
    const std::string path = folder + "/libintelocl.so";
    if (std::filesystem::is_regular_file(path) &&
        std::find(candidates.begin(), candidates.end(), path) == candidates.end())
      candidates.push_back(path);
  }
  candidates.emplace_back("libnvidia-opencl.so.1");
  return candidates;
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

// Makes PoCL compile each kernel once for any work-group size, instead of once for each size that
// is launched.  Must be called before any OpenCL library is opened.  A program's binary must
// contain that variant, so a program can be cached without compiling every kernel twice; no kernel
// was measurably slower.
void PreparePocl() {
  constexpr int kKeepUsersChoice = 0;
  setenv("POCL_WORK_GROUP_SPECIALIZATION", "0", kKeepUsersChoice);
}

}  // namespace

Devices& Devices::Global() {
  // Never destroyed, because at exit drivers may be unloaded before static objects.
  static Devices* devices = new Devices();
  return *devices;
}

void Devices::Discover() {
  PreparePocl();
  const std::string wanted = CurrentSettings().device;
  const auto found = std::make_unique<tf_devices>();
  tf_device* first = nullptr;
  bool satisfied = false;
  std::string tried;
  for (const std::string& library : CandidateLibraries()) {
    if (const size_t slash = library.rfind('/');
        slash != std::string::npos && library.find("libintelocl", slash) != std::string::npos)
      PreloadIntelDependencies(library.substr(0, slash));
    char outcome[4096] = "";
    tf_devices_add(found.get(), library.c_str(), outcome, sizeof(outcome));
    tried += "\n  " + library + ": " + outcome;
    first = std::find_if(found->all, found->all + found->count, [&](const tf_device& device) {
      return wanted.empty() || tf_device_matches(&device, wanted.c_str());
    });
    satisfied = first != found->all + found->count;
    if (satisfied) break;
  }
  if (!satisfied) {
    failure_ =
        found->count == 0
            ? "No OpenCL device was found.\nRemedy: Install a driver (python -m pip install "
              "intel-opencl-rt gives an OpenCL device on any x86-64 CPU), or set "
              "TVMFLOW_OPENCL_LIBRARY to the OpenCL library of one."
            : "No OpenCL device matches TVMFLOW_OPENCL_DEVICE='" + wanted +
                  "' (platform:device, indices or parts of names).\nRemedy: Choose one of the "
                  "devices below, or unset TVMFLOW_OPENCL_DEVICE.";
    failure_ += "\nLibraries tried:" + tried;
    return;
  }
  std::rotate(found->all, first, first + 1);
  for (unsigned i = 0; i < found->count; ++i) {
    devices_.push_back(std::make_unique<Device>(found->all[i]));
    devices_.back()->set_index(static_cast<int>(i));
  }
}

void Devices::DiscoverOnce() {
  std::call_once(once_, [this] {
    Discover();
    pthread_atfork(nullptr, nullptr, [] {
      forked.store(true, std::memory_order_relaxed);
      for (const auto& device : Global().devices_) device->Abandon();
    });
  });
}

size_t Devices::Count() {
  DiscoverOnce();
  return devices_.size();
}

bool Devices::Exists(int index) { return index >= 0 && static_cast<size_t>(index) < Count(); }

const std::string& Devices::Failure() {
  DiscoverOnce();
  return failure_;
}

Device& Devices::Get(int index) {
  if (!Exists(index) || forked.load(std::memory_order_relaxed)) [[unlikely]]
    ThrowMissing(index);
  return *devices_[static_cast<size_t>(index)];
}

void Devices::ThrowMissing(int index) {
  if (!failure_.empty()) throw Error("DeviceError", failure_);
  if (Exists(index))
    throw Error("DeviceError",
                "An OpenCL device was used in a process forked from one that had used it.\n"
                "Remedy: Start worker processes with multiprocessing's 'spawn' method.");
  std::string names;
  for (const auto& device : devices_) names += "\n  " + device->Describe();
  throw Error("DeviceError", "There is no device opencl:" + std::to_string(index) +
                                 ".\nRemedy: Choose one of these devices." + names);
}

}  // namespace tvmflow::opencl
