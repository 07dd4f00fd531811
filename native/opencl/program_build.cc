#include "program_build.h"

#include "../core/compile.h"
#include "allocated.h"
#include "build_log.h"
#include "pocl_declarations.h"
#include "program_cache.h"
#include "settings.h"

namespace tvmflow::opencl {
ProgramBuild::ProgramBuild(Device& device, const Digest& key, const std::vector<std::string>& names,
                           const std::string& source, const std::string& options)
    : device_(device), key_(key), kernel_count_(names.size()) {
  if (LoadFromCache(options)) {
    state_ = State::kComplete;
    return;
  }
  BuildFromSource(names, source, options);
  if (!device_.core()->is_pocl) {
    Store();
    state_ = State::kComplete;
  }
}

ProgramBuild::~ProgramBuild() {
  device_.Forget(this);
  device_.api().clReleaseProgram(handle_);
}

bool ProgramBuild::LoadFromCache(const std::string& options) {
  size_t bytes = 0;
  const Allocated<uint8_t> binary = LoadBinary(key_, &bytes);
  if (!binary) return false;
  cl_int code = CL_SUCCESS;
  handle_ = tf_load_binary(device_.core(), device_.context(), binary.get(), bytes, options.c_str(),
                           &code);
  if (code == CL_SUCCESS) {
    CountCacheHit();
    return true;
  }
  if (handle_) device_.api().clReleaseProgram(handle_);
  handle_ = nullptr;
  CountCacheRefusal();
  return false;
}

void ProgramBuild::BuildFromSource(const std::vector<std::string>& names, const std::string& source,
                                   const std::string& options) {
  const tf_opencl& api = device_.api();
  if (CurrentSettings().few_declarations && device_.core()->is_pocl) {
    if (Compile(names.front(), DeclarationsFor(source) + source, options + " " + kNoDeclarations) ==
        CL_SUCCESS)
      return;
    // The source calls an undeclared function, or is wrong: build with Clang's own header.
    api.clReleaseProgram(handle_);
  }
  const cl_int code = Compile(names.front(), source, options);
  if (code == CL_SUCCESS) return;
  const Allocated<char> text(tf_build_log(device_.core(), handle_));
  const std::string log = text ? text.get() : "";
  api.clReleaseProgram(handle_);
  throw Error("KernelBuildError", DescribeBuildFailure(names.front(), device_.Describe(),
                                                       ErrorName(code), options, log, source));
}

cl_int ProgramBuild::Compile(const std::string& kernel, const std::string& source,
                             const std::string& options) {
  cl_int code = CL_SUCCESS;
  handle_ = tf_compile(device_.core(), device_.context(), source.data(), source.size(),
                       options.c_str(), &code);
  if (!handle_) Check(code, [&] { return "Creating the program of kernel '" + kernel + "'"; });
  return code;
}

void ProgramBuild::OnFirstLaunch() {
  if (state_ != State::kIncomplete || ++launched_count_ * 2 < kernel_count_) return;
  if (State expected = State::kIncomplete;
      state_.compare_exchange_strong(expected, State::kToBeStored))
    device_.CallWhenSynchronised(this);
}

void ProgramBuild::OnSynchronised() { Complete(); }

void ProgramBuild::Complete() {
  if (state_.exchange(State::kComplete) != State::kComplete) Store();
}

void ProgramBuild::Store() {
  size_t bytes = 0;
  const Allocated<uint8_t> binary(tf_program_binary(device_.core(), handle_, &bytes));
  if (binary) StoreBinary(key_, binary.get(), bytes);
}

}  // namespace tvmflow::opencl
