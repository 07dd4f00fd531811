// The declarations of OpenCL C's functions that generated kernels use, for PoCL.
#pragma once

#include <string>

namespace tvmflow::opencl {

// With this option Clang's header of all functions of OpenCL C is empty.
constexpr const char* kNoDeclarations = "-D_OPENCL_H_";

// PoCL has Clang read 18,000 declarations of functions for every program, twice: more work
// than most kernels are.  Returns declarations, equal to Clang's, of those that `source` may
// call; a program that calls others does not compile with them.
std::string DeclarationsFor(const std::string& source);

}  // namespace tvmflow::opencl
