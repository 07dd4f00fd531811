// The processor this process runs on.
#pragma once

#include <string>

namespace tvmflow::opencl {

// Tells apart processors with different instruction sets, on which the same machine
// code may not run; the text has no other meaning.
std::string HostProcessorIdentity();

// Whether it has vpdpbusd on vectors of 512 bits.  Drivers that compile for an older processor
// do not tell kernels so.
bool HostHasVectorDotProducts();

}  // namespace tvmflow::opencl
