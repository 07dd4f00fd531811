// Facts about PoCL, the portable OpenCL for CPUs.
#pragma once

#include <string>

#include "library.h"

namespace tvmflow::opencl {

bool IsPocl(const Platform& platform);

// Whether a version of PoCL works, from CL_DRIVER_VERSION: 3.1 or newer.  An older one whose LLVM
// does not know the processor asks its compiler for "generic", and the compiler refuses every
// kernel: "unknown target CPU 'generic'".  Since 3.1, PoCL names an older processor with the same
// vector instructions, and the user may name one (POCL_LLVM_CPU_NAME).
bool PoclWorks(const std::string& version);

// To be called before any OpenCL library is opened: has PoCL compile one variant of each
// kernel, for any work-group size, instead of one for each size that is launched.  That
// variant is also what a program's binary must contain, so a program can be cached
// without compiling every kernel twice; no kernel was measurably slower for it.
void PreparePocl();

}  // namespace tvmflow::opencl
