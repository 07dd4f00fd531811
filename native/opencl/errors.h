// Errors of this runtime, with OpenCL's codes decoded.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "../core/cl_types.h"

namespace tvmflow::opencl {

// kind() is the name of the exception that a host language should raise:
// "DeviceError", "KernelBuildError" or "ValueError".
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string& message)
      : std::runtime_error(message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

// Thrown when a call of the driver returns an error code.
class DriverError : public Error {
 public:
  DriverError(cl_int code, const std::string& message)
      : Error("DeviceError", message), code_(code) {}
  cl_int code() const { return code_; }

 private:
  cl_int code_;
};

// Returns the name of `code` in OpenCL's specification, e.g. "CL_OUT_OF_RESOURCES".
std::string ErrorName(cl_int code);

// Throws a DriverError: "<attempt> failed with <name> (<code>)<hint>".
[[noreturn]] void ThrowDriverError(cl_int code, const std::string& attempt);

// Throws a DriverError unless `code` is CL_SUCCESS.  `attempt` is a callable that returns the
// description; it runs only on failure, so that successful calls cost only the comparison.
template <typename Attempt>
inline void Check(cl_int code, Attempt&& attempt) {
  if (code != CL_SUCCESS) [[unlikely]]
    ThrowDriverError(code, attempt());
}

}  // namespace tvmflow::opencl
