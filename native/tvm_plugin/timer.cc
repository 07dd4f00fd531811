#include "timer.h"

#include <cmath>
#include <utility>

#include "../opencl/devices.h"
#include "guard.h"

namespace tvmflow::tvm_plugin {

using opencl::Devices;
using std::chrono::steady_clock;

void OpenClTimer::Start() {
  Guard([&] {
    opencl::Device& device = Devices::Global().Get(device_.device_id);
    device.Synchronise();
    if (device.measures_kernels()) session_ = device.profiler().Begin();
    started_ = steady_clock::now();
  });
}

void OpenClTimer::Stop() {
  Guard([&] {
    opencl::Device& device = Devices::Global().Get(device_.device_id);
    device.Synchronise();
    const auto wall = steady_clock::now() - started_;
    double us = 0;
    if (session_) {
      const size_t session = *std::exchange(session_, std::nullopt);
      try {
        for (const opencl::KernelTime& time : device.profiler().End(session)) us += time.us;
      } catch (const opencl::DriverError& error) {
        if (error.code() != CL_PROFILING_INFO_NOT_AVAILABLE) throw;
        us = 0;
      }
    }
    elapsed_ns_ = us > 0 ? std::llround(us * 1000.0)
                         : std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count();
  });
}

OpenClTimer::~OpenClTimer() {
  if (!session_) return;
  try {
    // A session that an exception left open would collect events without end.
    Devices::Global().Get(device_.device_id).profiler().End(*session_);
  } catch (const opencl::Error&) {
    session_.reset();  // The device failed; its next use throws the error.
  }
}

}  // namespace tvmflow::tvm_plugin
