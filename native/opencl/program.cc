#include "program.h"

#include "build_log.h"
#include "devices.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

std::string Extents(const size_t* extents, cl_uint dimensions) {
  std::string text;
  for (cl_uint i = 0; i < dimensions; ++i) text += (i ? "x" : "") + std::to_string(extents[i]);
  return text;
}

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

cl_program BuildFromSource(Device& device, const KernelSource& source, const std::string& options) {
  const Api& api = device.api();
  const char* text = source.text.data();
  const size_t length = source.text.size();
  cl_int code = CL_SUCCESS;
  cl_program program =
      api.clCreateProgramWithSource(device.context(), 1, &text, &length, &code);
  Check(code, [&] { return "Creating the program of kernel '" + source.name + "'"; });
  const cl_device_id id = device.id();
  code = api.clBuildProgram(program, 1, &id, options.c_str(), nullptr, nullptr);
  if (code != CL_SUCCESS) {
    const std::string log = BuildLog(device, program);
    api.clReleaseProgram(program);
    throw Error("KernelBuildError",
                DescribeBuildFailure(source.name, device.Describe(), ErrorName(code), options, log,
                                     source.text));
  }
  return program;
}

}  // namespace

Kernel::Kernel(Device& device, cl_program program, std::string name)
    : device_(device), name_(std::move(name)) {
  cl_int code = CL_SUCCESS;
  handle_ = device_.api().clCreateKernel(program, name_.c_str(), &code);
  Check(code, [&] { return "Creating kernel '" + name_ + "' on device " + device_.Describe(); });
}

Kernel::~Kernel() { device_.api().clReleaseKernel(handle_); }

void Kernel::Launch(const Argument* arguments, size_t count, const WorkSize& size) {
  const Api& api = device_.api();
  std::lock_guard<std::mutex> lock(mutex_);
  set_.resize(count, 0);
  for (size_t i = 0; i < count; ++i) {
    const Argument& argument = arguments[i];
    cl_int code;
    if (argument.is_memory) {
      const uint64_t serial = argument.memory ? argument.memory->serial : 0;
      if (serial != 0 && serial == set_[i]) continue;
      const cl_mem handle = argument.memory ? argument.memory->handle : nullptr;
      code = api.clSetKernelArg(handle_, static_cast<cl_uint>(i), sizeof(handle), &handle);
      set_[i] = code == CL_SUCCESS ? serial : 0;
    } else {
      code = api.clSetKernelArg(handle_, static_cast<cl_uint>(i), argument.bytes, argument.value);
    }
    Check(code, [&] {
      const char* kind = !argument.is_memory      ? "a scalar"
                         : !argument.memory       ? "no memory"
                         : argument.memory->is_image ? "an image"
                                                     : "a buffer";
      return "Setting argument " + std::to_string(i) + " (" + kind + ") of kernel '" + name_ + "'";
    });
  }
  const cl_int code =
      api.clEnqueueNDRangeKernel(device_.queue(), handle_, size.dimensions, nullptr, size.global,
                                 size.local, 0, nullptr, nullptr);
  if (code != CL_SUCCESS) [[unlikely]]
    ThrowLaunchError(code, size);
}

void Kernel::ThrowLaunchError(cl_int code, const WorkSize& size) const {
  size_t limit = 0;
  device_.api().clGetKernelWorkGroupInfo(handle_, device_.id(), CL_KERNEL_WORK_GROUP_SIZE,
                                         sizeof(limit), &limit, nullptr);
  const DeviceInfo& info = device_.info();
  ThrowDriverError(code, "Launching kernel '" + name_ + "' on device " + device_.Describe() +
                             " with global size " + Extents(size.global, size.dimensions) +
                             " and work-groups of " + Extents(size.local, size.dimensions) +
                             " (limits: " + std::to_string(limit) +
                             " work-items a group for this kernel, " +
                             std::to_string(info.max_work_group) + " for the device, " +
                             Extents(info.max_work_items.data(), 3) + " by extent)");
}

LazyKernel::LazyKernel(KernelSource source) : source_(std::move(source)) {}

LazyKernel::~LazyKernel() {
  for (Built& built : built_) {
    if (!built.kernel) continue;
    Device& device = built.kernel->device();
    built.kernel.reset();
    device.api().clReleaseProgram(built.program);
  }
}

Kernel& LazyKernel::Build(Device& device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (built_.empty()) built_.resize(Devices::Global().Count());
  Built& built = built_[static_cast<size_t>(device.index())];
  if (!built.kernel) {
    cl_program program = BuildFromSource(device, source_, GlobalSettings().build_options);
    try {
      built.kernel = std::make_unique<Kernel>(device, program, source_.name);
    } catch (...) {
      device.api().clReleaseProgram(program);
      throw;
    }
    built.program = program;
    const size_t index = static_cast<size_t>(device.index());
    if (index < ready_.size()) ready_[index].store(built.kernel.get(), std::memory_order_release);
  }
  return *built.kernel;
}

}  // namespace tvmflow::opencl
