// One OpenCL program on one device, from the cache or from source.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "device.h"
#include "kernel.h"
#include "sha256.h"

namespace tvmflow::opencl {

// Program that is built at construction and stored in the cache when it is complete.
//
// Most drivers compile everything when a program is built, so it is stored then.
// PoCL compiles each kernel at its first launch, and all others when the binary is
// requested: such a program is stored at the first synchronisation after half of its
// kernels were launched.  After a network's run this costs little more than writing the
// file (a few kernels may never be launched), and a single test of one kernel out of many
// does not compile the others.
class ProgramBuild final : public LaunchObserver, public SynchronisationTask {
 public:
  // `key` is the key in the program cache, `names` are the kernels in `source`.  Throws a
  // KernelBuildError if the compiler rejects the source.
  ProgramBuild(Device& device, const Digest& key, const std::vector<std::string>& names,
               const std::string& source, const std::string& options);
  ~ProgramBuild();
  ProgramBuild(const ProgramBuild&) = delete;

  cl_program handle() const { return handle_; }
  bool Is(const Device& device, const Digest& key) const {
    return &device == &device_ && key == key_;
  }
  // Compiles the remaining kernels, and stores the result.
  void Complete();
  void OnFirstLaunch() final;
  void OnSynchronised() final;

 private:
  enum class State { kComplete, kIncomplete, kToBeStored };

  bool LoadFromCache(const std::string& options);
  void BuildFromSource(const std::vector<std::string>& names, const std::string& source,
                       const std::string& options);
  // Creates `handle_` and returns the compiler's error code.
  cl_int Compile(const std::string& kernel, const std::string& source, const std::string& options);
  void Store();

  Device& device_;
  Digest key_;
  cl_program handle_ = nullptr;
  // kComplete once the program is stored, or need not be.
  std::atomic<State> state_{State::kIncomplete};
  size_t kernel_count_;
  std::atomic<size_t> launched_count_{0};
};

}  // namespace tvmflow::opencl
