// Launches of kernels by TVM's host code.
#pragma once

#include <tvm/ffi/function.h>

#include <vector>

#include "../opencl/program.h"
#include "function_info.h"

namespace tvmflow::tvm_plugin {

// Function that launches a kernel with packed arguments: the kernel's arguments, followed by
// the launch extents that launch_param_tags name.
class KernelLauncher {
 public:
  // Throws a ValueError for argument types or tags that OpenCL kernels do not support.
  // `program` must outlive the launcher.
  KernelLauncher(opencl::Program* program, size_t index, const FunctionInfoObj& info);

  void operator()(const tvm::ffi::AnyView* args, int32_t count) const;

 private:
  enum class Kind : uint8_t {
    kMemory,
    kInt8,
    kInt16,
    kInt32,
    kInt64,
    kFloat16,
    kFloat32,
    kFloat64
  };
  static Kind KindOf(DLDataType dtype, const std::string& kernel);

  const std::string& name() const { return program_->NameOf(index_); }

  opencl::Program* program_;
  size_t index_;
  std::vector<Kind> kinds_;
  // For each launch extent: 0-2 for groups in x, y, z, 3-5 for work-items in a group.
  std::vector<uint8_t> extents_;
  cl_uint dimensions_ = 1;
};

}  // namespace tvmflow::tvm_plugin
