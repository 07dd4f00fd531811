// Messages about kernels that the driver's compiler rejects.
#pragma once

#include <string>

namespace tvmflow::opencl {

// Returns one sentence with the kernel, device and error code, then the build options, the
// build log, and the source lines that the log names, with their neighbours and line
// numbers (the beginning of the source if the log names none).
std::string DescribeBuildFailure(const std::string& kernel, const std::string& device,
                                 const std::string& code, const std::string& options,
                                 const std::string& log, const std::string& source);

}  // namespace tvmflow::opencl
