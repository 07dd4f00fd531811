// Kernels: from source to launches.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"

namespace tvmflow::opencl {

// One argument of a launch: memory on the device, or a scalar.
struct Argument {
  const void* value;      // a scalar's address; unused for memory
  size_t bytes;           // of the scalar
  const Memory* memory;   // null for a scalar or an empty tensor
  bool is_memory;
};

// Global and local extents of a launch, in work-items.
struct WorkSize {
  cl_uint dimensions = 1;
  size_t global[3] = {1, 1, 1};
  size_t local[3] = {1, 1, 1};
};

// A kernel of one device.  Launches from several threads are safe.
class Kernel {
 public:
  Kernel(Device& device, cl_program program, std::string name);
  ~Kernel();
  Kernel(const Kernel&) = delete;

  void Launch(const Argument* arguments, size_t count, const WorkSize& size);
  const std::string& name() const { return name_; }
  Device& device() const { return device_; }

 private:
  [[noreturn]] void ThrowLaunchError(cl_int code, const WorkSize& size) const;

  Device& device_;
  std::string name_;
  cl_kernel handle_ = nullptr;
  // OpenCL keeps arguments in the kernel object: setting and launching go together.
  std::mutex mutex_;
  // Serials of the memory arguments that are set; 0 where none is.
  std::vector<uint64_t> set_;
};

// The OpenCL C source of one kernel (and the functions and declarations it needs).
struct KernelSource {
  std::string name;
  std::string text;
};

// A kernel's source and what was built of it for each device.
class LazyKernel {
 public:
  explicit LazyKernel(KernelSource source);
  ~LazyKernel();

  // Builds the kernel for `device` at the first call.  Throws a KernelBuildError.
  Kernel& For(Device& device) {
    const size_t index = static_cast<size_t>(device.index());
    if (index < ready_.size()) {
      if (Kernel* kernel = ready_[index].load(std::memory_order_acquire)) [[likely]]
        return *kernel;
    }
    return Build(device);
  }
  const std::string& name() const { return source_.name; }

 private:
  struct Built {
    cl_program program = nullptr;
    std::unique_ptr<Kernel> kernel;
  };
  Kernel& Build(Device& device);

  KernelSource source_;
  std::mutex mutex_;
  // The kernels of the first devices, readable without the lock.
  std::array<std::atomic<Kernel*>, 8> ready_{};
  std::vector<Built> built_;
};

}  // namespace tvmflow::opencl
