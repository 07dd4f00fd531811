// A kernel of one device, ready to be launched.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "memory.h"
#include "work_size.h"

namespace tvmflow::opencl {

// One argument of a launch: memory on the device, or a scalar.
struct Argument {
  const void* value;     // the scalar's address
  size_t bytes;          // of the scalar
  const Memory* memory;  // null for a scalar, and for a tensor without elements
  bool is_memory;
};

// Observer of the first launch of a kernel.
class LaunchObserver {
 public:
  virtual void OnFirstLaunch() = 0;

 protected:
  ~LaunchObserver() = default;
};

// Kernel on a device; launches from several threads are safe.
class Kernel {
 public:
  // `observer`, which may be null, must outlive the kernel.
  Kernel(Device& device, cl_program program, std::string name, LaunchObserver* observer);
  ~Kernel();
  Kernel(const Kernel&) = delete;

  void Launch(const Argument* arguments, size_t count, const WorkSize& size);
  const std::string& name() const { return name_; }

 private:
  void SetArgument(size_t index, const Argument& argument);
  [[noreturn]] void ThrowForeignMemory(size_t index, const Memory& memory) const;
  [[noreturn]] void ThrowLaunchError(cl_int code, const WorkSize& size) const;

  Device& device_;
  std::string name_;
  cl_kernel handle_ = nullptr;
  LaunchObserver* observer_;
  // OpenCL stores arguments in the kernel object, so setting them and launching are one operation.
  std::mutex mutex_;
  bool launched_ = false;
  // Serials of the memory arguments that are set; 0 for other arguments.
  std::vector<uint64_t> set_;
};

}  // namespace tvmflow::opencl
