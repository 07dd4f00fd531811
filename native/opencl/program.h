// The kernels of one module, built for each device when they are first needed.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "built_programs.h"
#include "kernel.h"
#include "program_text.h"

namespace tvmflow::opencl {

// Builds all kernels as one OpenCL program, because a driver's compiler spends most of
// its time on OpenCL's own declarations, once for each program (PoCL 90 ms).  If the
// compiler rejects it (one kernel is wrong, or two define the same helper), each kernel
// becomes a separate program, so that the others still work and errors name the kernel.
class Program {
 public:
  explicit Program(std::vector<KernelSource> kernels);
  ~Program();
  Program(const Program&) = delete;

  size_t size() const { return kernels_.size(); }
  const std::string& NameOf(size_t index) const { return kernels_[index].name; }

  // Builds all kernels for `device` and stores them in the cache, without launching any.
  void Prebuild(Device& device);

  // Returns the kernel for `device`; the first call builds it.  Throws a KernelBuildError.
  Kernel& KernelFor(size_t index, Device& device) {
    const size_t slot = static_cast<size_t>(device.index());
    if (slot < kReadySlots) [[likely]] {
      if (Kernel* kernel = ready_[index][slot].load(std::memory_order_acquire)) [[likely]]
        return *kernel;
    }
    return Build(index, device);
  }

  // Adds a launch of a kernel of one axis, in groups of one item, to the device's chain.  Returns
  // false if it must be launched separately.
  bool Chained(size_t index, Device& device, size_t groups, const Argument* arguments,
               size_t count);

 private:
  // State on one device.  Kernels are declared after programs, so that they are released first.
  struct OnDevice {
    std::shared_ptr<ProgramBuild> whole;
    bool whole_failed = false;
    std::vector<std::shared_ptr<ProgramBuild>> single;  // by kernel, if needed
    std::vector<std::unique_ptr<Kernel>> kernels;
    // The program and kernel that run chains.
    std::shared_ptr<ProgramBuild> chain;
    std::unique_ptr<Kernel> driver;
  };
  // Chain kernel of a device, once it was tried to build one; null if there is none.
  struct ChainOf {
    std::atomic<bool> tried{false};
    Kernel* driver = nullptr;
  };
  static constexpr size_t kReadySlots = 8;

  // Returns the kernel that runs chains on `device`, or null.
  Kernel* DriverFor(Device& device);
  Kernel* BuildChain(Device& device);
  OnDevice& StateOf(Device& device);
  Kernel& Build(size_t index, Device& device);
  ProgramBuild& BuildProgram(size_t index, Device& device, OnDevice& state);

  std::vector<KernelSource> kernels_;
  // Kernels of the first devices, readable without the lock.
  std::unique_ptr<std::array<std::atomic<Kernel*>, kReadySlots>[]> ready_;
  std::array<ChainOf, kReadySlots> chains_;
  // Number of each kernel in chains; empty until a chain was built.
  std::vector<int> members_;
  std::mutex mutex_;
  std::map<Device*, OnDevice> devices_;
};

}  // namespace tvmflow::opencl
