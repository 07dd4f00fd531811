// Declarations of the OpenCL C functions that generated kernels use, for PoCL.
#pragma once

#include <string>

namespace tvmflow::opencl {

// Option that makes Clang's header of all OpenCL C functions empty.
constexpr const char* kNoDeclarations = "-D_OPENCL_H_";

// Returns declarations, equal to Clang's, of the functions that `source` may call; a program
// that calls others does not compile with them.  Without this, Clang reads 18,000 declarations
// twice for every program of PoCL, which takes longer than most kernels.
std::string DeclarationsFor(const std::string& source);

}  // namespace tvmflow::opencl
