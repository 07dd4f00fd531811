// What has to be known about PoCL, the portable OpenCL for CPUs.
#pragma once

#include <string>

#include "library.h"

namespace tvmflow::opencl {

bool IsPocl(const Platform& platform);

// To be called before any OpenCL library is opened: has PoCL compile one variant of each
// kernel, for any work-group size, instead of one for each size that is launched.  That
// variant is also what a program's binary must contain, so a program can be cached
// without compiling every kernel twice; no kernel was measurably slower for it.
void PreparePocl();

// PoCL asks its built-in LLVM for the processor's name.  An LLVM older than the
// processor answers "generic", which PoCL 3.0 hands to its compiler, and the compiler
// refuses every kernel: "unknown target CPU 'generic'".  There is no option for it, so
// the name in PoCL's device object is replaced by that of an older processor whose
// instructions this one has.
//
// Does nothing for other drivers or when the name is known.  Returns the name now in
// use, empty when it was left alone.
std::string NameProcessor(const Platform& platform, cl_device_id device);

}  // namespace tvmflow::opencl
