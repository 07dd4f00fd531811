// Launches of a CPU's kernels, gathered and launched as one.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernel.h"

namespace tvmflow::opencl {

// Between two kernels, drivers for CPUs send their threads to sleep and wake them up again: of a
// small network that is half of the time.  Here launches are only noted, as steps, and one kernel
// runs them all, one after the other, when something else is queued or waited for.  Its
// work-groups, as many as there are compute units, share the groups of each step
// (chain_source.cc).
//
// A step's arguments are addresses.  So buffers are in shared virtual memory of the fine-grained
// kind (OpenCL 2.0, 3.3.3), which CPUs have, as they have no other memory than the host's.  They
// are not told which of it a chain reads (clSetKernelExecInfo): all is there at any time.
class Chain {
 public:
  explicit Chain(Device& device) : device_(device) {}
  Chain(const Chain&) = delete;

  // Notes a launch of a member of `driver`, the kernel kChainKernel of a program.  Returns false
  // where an argument has no address.  `driver` must stay until Flush().
  bool Add(Kernel& driver, int member, size_t groups, const Argument* arguments, size_t count);
  // Launches what is noted; throws a DriverError when the driver refuses.
  void Flush();
  // Whether nothing is noted that is not in the queue yet.
  bool is_empty() const { return count_.load(std::memory_order_acquire) == 0; }

 private:
  void FlushLocked();
  // Shared memory of so many bytes that no chain that may still run reads.
  char* Reserve(size_t bytes);

  Device& device_;
  // Launching asks for the queue, which launches what is noted.
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
