// Chains: several launches of a CPU's kernels, run as one launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernel.h"

namespace tvmflow::opencl {

// Between two kernels, drivers for CPUs send their threads to sleep and wake them up again, which
// takes half of a small network's time.  A chain only records launches, as steps; one kernel runs
// all steps in order as soon as something else is queued or waited for.  Its work-groups, one for
// each compute unit, share the groups of each step (chain_source.cc).
//
// A step's arguments are addresses, so buffers are in fine-grained shared virtual memory (OpenCL
// 2.0, 3.3.3).  CPUs have it, as their only memory is the host's.  clSetKernelExecInfo is not
// called, because this memory is always accessible.
class Chain {
 public:
  explicit Chain(Device& device) : device_(device) {}
  Chain(const Chain&) = delete;

  // Records a launch of a member of `driver`, the kernel kChainKernel of a program.  Returns false
  // if an argument has no address.  `driver` must live until Flush().
  bool Add(Kernel& driver, int member, size_t groups, const Argument* arguments, size_t count);
  // Launches the recorded steps; throws a DriverError if the driver refuses.
  void Flush();
  // Returns whether all recorded steps are in the queue.
  bool is_empty() const { return count_.load(std::memory_order_acquire) == 0; }

 private:
  void FlushLocked();
  // Returns `bytes` of shared memory that no running chain reads.
  char* Reserve(size_t bytes);

  Device& device_;
  // Recursive, because launching calls Device::queue(), which flushes the chain.
  std::recursive_mutex mutex_;
  bool launching_ = false;
  std::atomic<uint32_t> count_{0};
  Kernel* driver_ = nullptr;
  size_t most_groups_ = 0;
  std::vector<uint64_t> steps_;
  char* arena_ = nullptr;
  size_t arena_bytes_ = 0;
  size_t used_bytes_ = 0;
};

}  // namespace tvmflow::opencl
