// Source of chains: many kernels of a program as functions that one kernel calls.
#pragma once

#include <string>
#include <vector>

#include "program_text.h"

namespace tvmflow::opencl {

// Name of the kernel that runs a chain; see chain.h.
inline constexpr const char* kChainKernel = "tvmflow_chain";

// Number of words in a step before its arguments.
inline constexpr size_t kStepHeader = 3;
// Distance between the counters of a step, in `int`: each has its own cache line.
inline constexpr size_t kCounterStride = 16;

struct ChainSource {
  std::string text;  // empty if no kernel can be part of a chain
  // By kernel: its number in steps, or -1 if it must be launched separately.
  std::vector<int> members;
};

// Turns kernels whose work-groups are one item along one axis into functions of the group's number.
ChainSource MakeChainSource(const std::vector<KernelSource>& kernels);

}  // namespace tvmflow::opencl
