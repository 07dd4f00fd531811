// Settings of the runtime, from the environment and from the host program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tvmflow::opencl {

struct Settings {
  // Path or soname of the only OpenCL library to try (TVMFLOW_OPENCL_LIBRARY).
  std::string library;
  // "platform:device" that becomes device 0 (TVMFLOW_OPENCL_DEVICE); see devices.h.
  std::string device;
  // Folders in which package managers install drivers: site-packages folders and the
  // environment's lib folder.
  std::vector<std::string> search_folders;
  // Options for the driver's compiler, appended to the runtime's own (TVMFLOW_OPENCL_OPTIONS).
  std::string build_options;
  // Whether built programs are kept on disk (disabled by TVMFLOW_CACHE=0).
  bool cache_enabled = true;
  // Whether PoCL compiles a program with only the declarations that it needs, instead of all of
  // OpenCL C's (enabled by TVMFLOW_FEW_DECLARATIONS=1); useful for many programs of one kernel.
  bool few_declarations = false;
  // Whether launches on a CPU are combined into chains (disabled by TVMFLOW_CHAINS=0); see chain.h.
  bool chains = true;
  // Number of programs that stay built after their modules are released (TVMFLOW_KEPT_PROGRAMS).
  size_t kept_programs = 8;
  // Folder of the built programs; empty if there is none.
  std::string cache_folder;
  // Size beyond which the cache's files are removed, oldest first.
  uint64_t cache_limit_bytes = uint64_t{1} << 30;
};

// Returns the process's settings, read from the environment at the first call.
Settings CurrentSettings();

// Replaces the process's settings.  The library, the device and the folders have an effect
// only before the first device is used; the others affect programs that are built later.
void ChangeSettings(const Settings& settings);

}  // namespace tvmflow::opencl
