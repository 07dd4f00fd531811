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

namespace tvmflow::opencl {

// The OpenCL C source of one kernel with the declarations it needs.
struct KernelSource {
  std::string name;
  std::string text;
};

// All kernels are built together as one OpenCL program: a driver's compiler spends
// most of its time on OpenCL's own declarations, once for each program (PoCL 90 ms).
// Where that is rejected (one kernel is, or two define the same helper), each kernel
// becomes a program of its own, so that the others still work and errors name it.
class Program {
 public:
  explicit Program(std::vector<KernelSource> kernels);
  ~Program();
  Program(const Program&) = delete;

  size_t size() const { return kernels_.size(); }
  const std::string& NameOf(size_t index) const { return kernels_[index].name; }

  // Builds all kernels for `device` and stores them in the cache, without launching any.
  void Prebuild(Device& device);

  // The kernel for `device`; builds it at the first call.  Throws a KernelBuildError.
  Kernel& KernelFor(size_t index, Device& device) {
    const size_t slot = static_cast<size_t>(device.index());
    if (slot < kReadySlots) [[likely]] {
      if (Kernel* kernel = ready_[index][slot].load(std::memory_order_acquire)) [[likely]]
        return *kernel;
    }
    return Build(index, device);
  }

 private:
  // What exists on one device.  Kernels go before the programs they were made from.
  struct OnDevice {
    std::shared_ptr<ProgramBuild> whole;
    bool whole_failed = false;
    std::vector<std::shared_ptr<ProgramBuild>> single;  // by kernel, where needed
    std::vector<std::unique_ptr<Kernel>> kernels;
  };
  static constexpr size_t kReadySlots = 8;

  OnDevice& StateOf(Device& device);
  Kernel& Build(size_t index, Device& device);
  ProgramBuild& BuildProgram(size_t index, Device& device, OnDevice& state);

  std::vector<KernelSource> kernels_;
  // Kernels of the first devices, readable without the lock.
  std::unique_ptr<std::array<std::atomic<Kernel*>, kReadySlots>[]> ready_;
  std::mutex mutex_;
  std::map<Device*, OnDevice> devices_;
};

}  // namespace tvmflow::opencl
