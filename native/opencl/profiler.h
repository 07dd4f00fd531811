// Device times of kernels, from the driver's events.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "api_table.h"
#include "work_size.h"

namespace tvmflow::opencl {

class Device;

// One launch: what ran, how large, when (after the session's first launch began), and how long
// on the device.
struct KernelTime {
  std::string kernel;
  WorkSize size;
  double start_us;
  double us;
};

// Collects the launches of one device while at least one session is open.  Sessions
// may overlap (a timer within a profiled run).
class Profiler {
 public:
  explicit Profiler(Device& device) : device_(device) {}
  Profiler(const Profiler&) = delete;

  bool active() const { return sessions_.load(std::memory_order_relaxed) != 0; }
  // Takes over `event`, the launch's.  Launches of threads that run beside the end of a session
  // are or are not part of it.
  void Record(cl_event event, const std::string& kernel, const WorkSize& size);

  // Opens a session; the value identifies its beginning.  Throws a DriverError with
  // CL_PROFILING_INFO_NOT_AVAILABLE where the device measures no kernels.
  size_t Begin();
  // Closes a session, also when it throws: waits for the device, returns the session's
  // launches in order.
  std::vector<KernelTime> End(size_t begin);

 private:
  class Closing;
  struct Launch {
    cl_event event;
    std::string kernel;
    WorkSize size;
  };

  // `*origin` becomes the time at which the launch began, unless it is set.
  KernelTime TimeOf(const Launch& launch, cl_ulong* origin) const;

  Device& device_;
  std::atomic<int> sessions_{0};
  std::mutex mutex_;
  std::vector<Launch> launches_;
};

}  // namespace tvmflow::opencl
