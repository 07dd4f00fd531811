// Names of libraries that may have OpenCL.
#pragma once

// Returns the name of the `index`-th library to try; NULL after the last one.  If `only`, or else
// TVMFLOW_OPENCL_LIBRARY, names a library, it is the only one.
const char* tf_library_name(const char* only, unsigned index);
