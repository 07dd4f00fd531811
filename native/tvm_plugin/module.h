// TVM modules of kind "opencl".
#pragma once

#include <tvm/ffi/extra/module.h>

#include <memory>
#include <string>
#include <unordered_map>

#include "../opencl/program.h"
#include "function_info.h"

namespace tvmflow::tvm_plugin {

class OpenClModule final : public tvm::ffi::ModuleObj {
 public:
  // `sources` is for inspection only and is not serialized.
  OpenClModule(ModuleContents contents, tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String> sources);

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final {
    return tvm::ffi::Module::kBinarySerializable | tvm::ffi::Module::kRunnable;
  }
  tvm::ffi::Optional<tvm::ffi::Function> GetFunction(const tvm::ffi::String& name) final;
  bool ImplementsFunction(const tvm::ffi::String& name) final {
    return contents_.functions.count(name) != 0;
  }
  tvm::ffi::Bytes SaveToBytes() const final { return Serialize(contents_); }
  // Builds all kernels and stores them in the cache of built programs.
  void Prebuild(opencl::Device& device) const { program_->Prebuild(device); }
  tvm::ffi::String InspectSource(const tvm::ffi::String& format) const final;
  const ModuleContents& Contents() const { return contents_; }
  const tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String>& Sources() const { return sources_; }

 private:
  ModuleContents contents_;
  tvm::ffi::Map<tvm::ffi::String, tvm::ffi::String> sources_;
  std::unique_ptr<opencl::Program> program_;
  std::unordered_map<std::string, size_t> indices_;  // of the kernels in the program
};

}  // namespace tvmflow::tvm_plugin
