// Device times of kernels, from the driver's events.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "../core/cl_types.h"
#include "work_size.h"

namespace tvmflow::opencl {

class Device;

// One launch: kernel, extents, start time (relative to the session's first launch) and duration
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
  // Takes ownership of the launch's `event`.  Launches of other threads at the end of a session may
  // or may not be part of it.
  void Record(cl_event event, const std::string& kernel, const WorkSize& size);

  // Opens a session; returns its beginning, for End().  Throws a DriverError with
  // CL_PROFILING_INFO_NOT_AVAILABLE if the device does not measure kernels.
  size_t Begin();
  // Waits for the device, closes the session, even if this throws, and returns its launches
  // in order.
  std::vector<KernelTime> End(size_t begin);

 private:
  class Closing;
  struct Launch {
    cl_event event;
    std::string kernel;
    WorkSize size;
  };

  // Sets `*origin` to the time at which the launch began, unless it is set.
  KernelTime TimeOf(const Launch& launch, cl_ulong* origin) const;

  Device& device_;
  std::atomic<int> sessions_{0};
  std::mutex mutex_;
  std::vector<Launch> launches_;
};

}  // namespace tvmflow::opencl
