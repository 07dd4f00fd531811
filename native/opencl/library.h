// Loading of OpenCL at run time: a loader (libOpenCL) or a driver's own library.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api_table.h"

namespace tvmflow::opencl {

// One OpenCL platform and its entry points.
struct Platform {
  cl_platform_id id;
  std::shared_ptr<const Api> api;
  bool has_tables;      // objects begin with the driver's dispatch table (cl_khr_icd)
  std::string library;  // path of its shared library
  std::string name;
  std::string vendor;
  std::string version;
};

// Returns libraries that may provide OpenCL, in the order in which to try them.
std::vector<std::string> CandidateLibraries();

// Opens `library` and returns its platforms.  Sets `outcome` to a clause for error messages: the
// platforms found, or why there are none.
std::vector<Platform> OpenLibrary(const std::string& library, std::string* outcome);

}  // namespace tvmflow::opencl
