#include "kernel.h"

namespace tvmflow::opencl {
namespace {

std::string Extents(const size_t* extents, cl_uint dimensions) {
  std::string text;
  for (cl_uint i = 0; i < dimensions; ++i) text += (i ? "x" : "") + std::to_string(extents[i]);
  return text;
}

const char* KindOf(const Argument& argument) {
  if (!argument.is_memory) return "a scalar";
  if (!argument.memory) return "an empty tensor";
  return argument.memory->is_image ? "an image" : "a buffer";
}

}  // namespace

Kernel::Kernel(Device& device, cl_program program, std::string name, LaunchObserver* observer)
    : device_(device), name_(std::move(name)), observer_(observer) {
  cl_int code = CL_SUCCESS;
  handle_ = device_.api().clCreateKernel(program, name_.c_str(), &code);
  Check(code, [&] { return "Creating kernel '" + name_ + "' on device " + device_.Describe(); });
}

Kernel::~Kernel() { device_.api().clReleaseKernel(handle_); }

void Kernel::SetArgument(size_t index, const Argument& argument) {
  const cl_uint position = static_cast<cl_uint>(index);
  cl_int code;
  if (argument.is_memory) {
    const uint64_t serial = argument.memory ? argument.memory->serial : 0;
    // Most arguments are the same in every run of a network.
    if (serial != 0 && serial == set_[index]) return;
    if (argument.memory && argument.memory->device != &device_) [[unlikely]]
      ThrowForeignMemory(index, *argument.memory);
    const cl_mem handle = argument.memory ? argument.memory->handle : nullptr;
    code = device_.api().clSetKernelArg(handle_, position, sizeof(handle), &handle);
    set_[index] = code == CL_SUCCESS ? serial : 0;
  } else {
    code = device_.api().clSetKernelArg(handle_, position, argument.bytes, argument.value);
  }
  Check(code, [&] {
    return "Setting argument " + std::to_string(index) + " (" + KindOf(argument) + ") of kernel '" +
           name_ + "'";
  });
}

void Kernel::ThrowForeignMemory(size_t index, const Memory& memory) const {
  throw Error("ValueError", "Argument " + std::to_string(index) + " of kernel '" + name_ +
                                "' is on device " + memory.device->Describe() +
                                ", but the kernel runs on device " + device_.Describe() + ".");
}

void Kernel::Launch(const Argument* arguments, size_t count, const WorkSize& size) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (set_.size() != count) [[unlikely]]
    set_.assign(count, 0);
  for (size_t i = 0; i < count; ++i) SetArgument(i, arguments[i]);
  const bool profiled = device_.profiler().active();
  cl_event event = nullptr;
  const cl_int code = device_.api().clEnqueueNDRangeKernel(
      device_.queue(), handle_, size.dimensions, nullptr, size.global, size.local, 0, nullptr,
      profiled ? &event : nullptr);
  if (code != CL_SUCCESS) [[unlikely]]
    ThrowLaunchError(code, size);
  if (profiled) device_.profiler().Record(event, name_, size);
  if (!launched_) [[unlikely]] {
    launched_ = true;
    if (observer_) observer_->OnFirstLaunch();
  }
}

void Kernel::ThrowLaunchError(cl_int code, const WorkSize& size) const {
  size_t limit = 0;
  device_.api().clGetKernelWorkGroupInfo(handle_, device_.id(), CL_KERNEL_WORK_GROUP_SIZE,
                                         sizeof(limit), &limit, nullptr);
  ThrowDriverError(code, "Launching kernel '" + name_ + "' on device " + device_.Describe() +
                             " with global size " + Extents(size.global, size.dimensions) +
                             " and work-groups of " + Extents(size.local, size.dimensions) +
                             " (limits: " + std::to_string(limit) +
                             " work-items a group for this kernel, " +
                             std::to_string(device_.core()->largest_group) + " for the device, " +
                             Extents(device_.core()->largest_local, 3) + " by extent)");
}

}  // namespace tvmflow::opencl
