// The processor that this process runs on.
#pragma once

#include <string>

namespace tvmflow::opencl {

// Returns a text that differs between processors with different instruction sets, which may not
// run the same machine code; it has no other meaning.
std::string HostProcessorIdentity();

// Returns whether the processor has vpdpbusd on vectors of 512 bits.  Drivers that compile for an
// older processor do not define the macro for it in kernels.
bool HostHasVectorDotProducts();

}  // namespace tvmflow::opencl
