// What a user may choose about the runtime, from the environment and from the host program.
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
  // Folders where package managers put drivers: site-packages folders and the
  // environment's lib folder.
  std::vector<std::string> search_folders;
  // Options for the driver's compiler, appended to the runtime's own (TVMFLOW_OPENCL_OPTIONS).
  std::string build_options;
  // Whether built programs are kept on disk (TVMFLOW_CACHE=0 says no).
  bool cache_enabled = true;
  // Whether PoCL compiles a program with the declarations that it needs instead of all of
  // OpenCL C's (TVMFLOW_FEW_DECLARATIONS=1): for who builds many programs of one kernel.
  bool few_declarations = false;
  // Whether kernels of a CPU are launched together (TVMFLOW_CHAINS=0 says no); see chain.h.
  bool chains = true;
  // Programs that stay built after their modules are gone (TVMFLOW_KEPT_PROGRAMS).
  size_t kept_programs = 8;
  // Folder of the built programs; empty when no folder can be named.
  std::string cache_folder;
  // The cache's files are trimmed, oldest first, beyond this size.
  uint64_t cache_limit_bytes = uint64_t{1} << 30;
};

// The process's settings, read from the environment at the first call.
Settings CurrentSettings();

// Replaces them.  The library, the device and the folders have an effect before the
// first device is used, the others on programs that are built afterwards.
void ChangeSettings(const Settings& settings);

}  // namespace tvmflow::opencl
