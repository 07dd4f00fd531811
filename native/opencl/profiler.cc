#include "profiler.h"

#include "device.h"

namespace tvmflow::opencl {

void Profiler::Record(cl_event event, const std::string& kernel, const WorkSize& size) {
  std::lock_guard<std::mutex> lock(mutex_);
  launches_.push_back({event, kernel, size});
}

size_t Profiler::Begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++sessions_;
  return launches_.size();
}

std::vector<KernelTime> Profiler::End(size_t begin) {
  device_.Synchronise();
  const Api& api = device_.api();
  std::vector<KernelTime> times;
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = begin; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    cl_ulong start = 0;
    cl_ulong end = 0;
    cl_int code = api.clGetEventProfilingInfo(launch.event, CL_PROFILING_COMMAND_START,
                                              sizeof(start), &start, nullptr);
    if (code == CL_SUCCESS)
      code = api.clGetEventProfilingInfo(launch.event, CL_PROFILING_COMMAND_END, sizeof(end), &end,
                                         nullptr);
    Check(code, [&] { return "Reading the device time of kernel '" + launch.kernel + "'"; });
    const double ns = end > start ? static_cast<double>(end - start) : 0.0;
    times.push_back({launch.kernel, launch.size, ns / 1000.0});
  }
  if (--sessions_ == 0) {
    for (const Launch& launch : launches_) api.clReleaseEvent(launch.event);
    launches_.clear();
  }
  return times;
}

}  // namespace tvmflow::opencl
