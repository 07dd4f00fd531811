// One program of many kernels, as functions that one kernel calls.
#pragma once

#include <string>
#include <vector>

#include "program_text.h"

namespace tvmflow::opencl {

// The name of the kernel that runs a chain; see chain.h.
inline constexpr const char* kChainKernel = "tvmflow_chain";

// Words of a step before those of its arguments.
inline constexpr size_t kStepHeader = 3;
// Counters of a step are so many `int` apart: each has a cache line of its own.
inline constexpr size_t kCounterStride = 16;

struct ChainSource {
  std::string text;  // empty where no kernel can be part of a chain
  // By kernel: the number by which a step names it, or -1 where it is launched by itself.
  std::vector<int> members;
};

// Kernels whose work-groups are one item along one axis become functions of the group's number.
ChainSource MakeChainSource(const std::vector<KernelSource>& kernels);

}  // namespace tvmflow::opencl
