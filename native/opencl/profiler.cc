#include "profiler.h"

#include "../core/commands.h"
#include "device.h"

namespace tvmflow::opencl {
namespace {

[[noreturn]] void ThrowUnmeasured(const Device& device, const std::string& why) {
  throw DriverError(CL_PROFILING_INFO_NOT_AVAILABLE,
                    "Device " + device.Describe() + " " + why +
                        ".\nRemedy: Measure whole calls: `tvmflow bench` without --kernels.");
}

}  // namespace

void Profiler::Record(cl_event event, const std::string& kernel, const WorkSize& size) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Another thread may have ended the last session after the launch.
  if (sessions_.load(std::memory_order_relaxed) == 0) {
    device_.api().clReleaseEvent(event);
    return;
  }
  launches_.push_back({event, kernel, size});
}

size_t Profiler::Begin() {
  if (!device_.measures_kernels())
    ThrowUnmeasured(device_,
                    "has no command queues that measure kernels (CL_QUEUE_PROFILING_ENABLE)");
  // Earlier launches are not part of the session.
  device_.LaunchChain();
  std::lock_guard<std::mutex> lock(mutex_);
  ++sessions_;
  return launches_.size();
}

KernelTime Profiler::TimeOf(const Launch& launch, cl_ulong* origin) const {
  cl_ulong start = 0;
  cl_ulong end = 0;
  const cl_int code = tf_event_times(device_.core(), launch.event, &start, &end);
  if (code == CL_PROFILING_INFO_NOT_AVAILABLE)
    ThrowUnmeasured(device_, "does not tell when kernel '" + launch.kernel +
                                 "' ran (CL_PROFILING_INFO_NOT_AVAILABLE)");
  Check(code, [&] { return "Reading the device time of kernel '" + launch.kernel + "'"; });
  if (*origin == 0) *origin = start;
  const auto us = [](cl_ulong from, cl_ulong to) {
    return to > from ? static_cast<double>(to - from) / 1000.0 : 0.0;
  };
  return {launch.kernel, launch.size, us(*origin, start), us(start, end)};
}

// Ends a session when it goes out of scope; the last session clears the launches.
class Profiler::Closing {
 public:
  explicit Closing(Profiler& profiler) : profiler_(profiler) {}
  ~Closing() {
    std::lock_guard<std::mutex> lock(profiler_.mutex_);
    if (--profiler_.sessions_ != 0) return;
    for (const Launch& launch : profiler_.launches_)
      profiler_.device_.api().clReleaseEvent(launch.event);
    profiler_.launches_.clear();
  }
  Closing(const Closing&) = delete;

 private:
  Profiler& profiler_;
};

std::vector<KernelTime> Profiler::End(size_t begin) {
  const Closing closing(*this);
  // Other threads may continue to launch: these launches may be unfinished, without times.
  const size_t end = [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return launches_.size();
  }();
  device_.Synchronise();
  std::vector<KernelTime> times;
  cl_ulong origin = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = begin; i < end; ++i) times.push_back(TimeOf(launches_[i], &origin));
  return times;
}

}  // namespace tvmflow::opencl
