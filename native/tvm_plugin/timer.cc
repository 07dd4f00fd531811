#include "timer.h"

#include <cmath>

#include "../opencl/devices.h"
#include "guard.h"

namespace tvmflow::tvm_plugin {

using opencl::Devices;
using std::chrono::steady_clock;

void OpenClTimer::Start() {
  Guard([&] {
    opencl::Device& device = Devices::Global().Get(device_.device_id);
    device.Synchronise();
    session_ = device.profiler().Begin();
    running_ = true;
    started_ = steady_clock::now();
  });
}

void OpenClTimer::Stop() {
  Guard([&] {
    opencl::Device& device = Devices::Global().Get(device_.device_id);
    device.Synchronise();
    const auto wall = steady_clock::now() - started_;
    running_ = false;
    const std::vector<opencl::KernelTime> times = device.profiler().End(session_);
    double us = 0;
    for (const opencl::KernelTime& time : times) us += time.us;
    elapsed_ns_ = us > 0 ? std::llround(us * 1000.0)
                         : std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count();
  });
}

OpenClTimer::~OpenClTimer() {
  if (!running_) return;
  try {
    // A session that an exception left open would collect events for ever.
    Devices::Global().Get(device_.device_id).profiler().End(session_);
  } catch (const opencl::Error&) {
    running_ = false;  // The device failed; whoever uses it next is told.
  }
}

}  // namespace tvmflow::tvm_plugin
