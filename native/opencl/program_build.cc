#include "program_build.h"

#include "build_log.h"
#include "pocl.h"
#include "pocl_declarations.h"
#include "program_cache.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

std::string BuildLog(Device& device, cl_program program) {
  size_t size = 0;
  const Api& api = device.api();
  if (api.clGetProgramBuildInfo(program, device.id(), CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) !=
          CL_SUCCESS ||
      size == 0)
    return "";
  std::string log(size, '\0');
  api.clGetProgramBuildInfo(program, device.id(), CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  return log.c_str();
}

}  // namespace

ProgramBuild::ProgramBuild(Device& device, const Digest& key, const std::vector<std::string>& names,
                           const std::string& source, const std::string& options)
    : device_(device), key_(key), kernel_count_(names.size()) {
  if (LoadFromCache(options)) {
    state_ = State::kComplete;
    return;
  }
  BuildFromSource(names, source, options);
  if (!device_.CompilesAtFirstLaunch()) {
    Store();
    state_ = State::kComplete;
  }
}

ProgramBuild::~ProgramBuild() {
  device_.Forget(this);
  device_.api().clReleaseProgram(handle_);
}

bool ProgramBuild::LoadFromCache(const std::string& options) {
  const auto binary = LoadBinary(key_);
  if (!binary) return false;
  const Api& api = device_.api();
  const cl_device_id id = device_.id();
  const unsigned char* data = binary->data();
  const size_t bytes = binary->size();
  cl_int status = CL_SUCCESS;
  cl_int code = CL_SUCCESS;
  handle_ = api.clCreateProgramWithBinary(device_.context(), 1, &id, &bytes, &data, &status, &code);
  if (code == CL_SUCCESS && status == CL_SUCCESS)
    code = api.clBuildProgram(handle_, 1, &id, options.c_str(), nullptr, nullptr);
  if (code == CL_SUCCESS && status == CL_SUCCESS) {
    CountCacheHit();
    return true;
  }
  if (handle_) api.clReleaseProgram(handle_);
  handle_ = nullptr;
  CountCacheRefusal();
  return false;
}

void ProgramBuild::BuildFromSource(const std::vector<std::string>& names, const std::string& source,
                                   const std::string& options) {
  const Api& api = device_.api();
  if (CurrentSettings().few_declarations && IsPocl(device_.platform())) {
    if (Compile(names.front(), DeclarationsFor(source) + source, options + " " + kNoDeclarations) ==
        CL_SUCCESS)
      return;
    // The source calls an undeclared function, or is wrong: build with Clang's own header.
    api.clReleaseProgram(handle_);
  }
  const cl_int code = Compile(names.front(), source, options);
  if (code == CL_SUCCESS) return;
  const std::string log = BuildLog(device_, handle_);
  api.clReleaseProgram(handle_);
  throw Error("KernelBuildError", DescribeBuildFailure(names.front(), device_.Describe(),
                                                       ErrorName(code), options, log, source));
}

cl_int ProgramBuild::Compile(const std::string& kernel, const std::string& source,
                             const std::string& options) {
  const Api& api = device_.api();
  const char* text = source.data();
  const size_t length = source.size();
  cl_int code = CL_SUCCESS;
  handle_ = api.clCreateProgramWithSource(device_.context(), 1, &text, &length, &code);
  Check(code, [&] { return "Creating the program of kernel '" + kernel + "'"; });
  const cl_device_id id = device_.id();
  return api.clBuildProgram(handle_, 1, &id, options.c_str(), nullptr, nullptr);
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
  const Api& api = device_.api();
  size_t bytes = 0;
  if (api.clGetProgramInfo(handle_, CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr) !=
          CL_SUCCESS ||
      bytes == 0)
    return;
  std::vector<unsigned char> binary(bytes);
  unsigned char* data = binary.data();
  if (api.clGetProgramInfo(handle_, CL_PROGRAM_BINARIES, sizeof(data), &data, nullptr) ==
      CL_SUCCESS)
    StoreBinary(key_, binary);
}

}  // namespace tvmflow::opencl
