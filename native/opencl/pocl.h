// Facts about PoCL, the portable OpenCL for CPUs.
#pragma once

#include <string>

#include "library.h"

namespace tvmflow::opencl {

bool IsPocl(const Platform& platform);

// Returns whether PoCL, by its CL_DRIVER_VERSION, is 3.1 or newer.  Older versions do not work on a
// processor that their LLVM does not know: they compile for "generic", and the compiler rejects
// every kernel ("unknown target CPU 'generic'").  Since 3.1, PoCL chooses an older processor with
// the same vector instructions, and the user may name one (POCL_LLVM_CPU_NAME).
bool PoclWorks(const std::string& version);

// Makes PoCL compile each kernel once for any work-group size, instead of once for each
// size that is launched.  Must be called before any OpenCL library is opened.  A program's
// binary must contain that variant, so a program can be cached without compiling every kernel
// twice; no kernel was measurably slower.
void PreparePocl();

}  // namespace tvmflow::opencl
