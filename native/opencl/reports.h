// What the runtime tells other programs, as JSON.
#pragma once

#include <string>
#include <vector>

#include "profiler.h"

namespace tvmflow::opencl {

// A list with one object for each device, in the order of their indices.
std::string DescribeDevices();

// A list of {"kernel", "start_us", "us", "global", "local"} in launch order; extents in work-items.
std::string DescribeTimes(const std::vector<KernelTime>& times);

// {"hits", "misses", "rebuilt", "stored"}: see program_cache.h.
std::string DescribeCache();

}  // namespace tvmflow::opencl
