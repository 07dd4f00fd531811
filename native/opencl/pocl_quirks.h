// Works around a limit of PoCL 3.0 that would make its device useless on new processors.
#pragma once

#include <string>

#include "library.h"

namespace tvmflow::opencl {

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
