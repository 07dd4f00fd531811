// Reports of the runtime for other programs, as JSON.
#pragma once

#include <string>
#include <vector>

#include "profiler.h"

namespace tvmflow::opencl {

// Returns a list with one object for each device, in the order of their indices.
std::string DescribeDevices();

// Returns a list of {"kernel", "start_us", "us", "global", "local"} in launch order; extents are in
// work-items.
std::string DescribeTimes(const std::vector<KernelTime>& times);

// Returns {"hits", "misses", "rebuilt", "stored"}: see program_cache.h.
std::string DescribeCache();

}  // namespace tvmflow::opencl
