// Threads launch while others begin and end sessions of the profiler, with a driver that knows the
// times of a launch only once the queue has been waited for.  Prints what was left over:
//
//   sessions N, launches N, missing N, live N
//
// "missing": launches of a session's own thread that it does not report; "live": events that
// nobody released.
#include "../../native/opencl/profiler.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "../../native/opencl/device.h"

using namespace tvmflow::opencl;

namespace {

// The fake driver's live events by number, and whether clFinish was called after each.
std::mutex g_mutex;
std::unordered_map<uintptr_t, bool> g_complete;
uintptr_t g_last = 0;

cl_event NewEvent() {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_complete[++g_last] = false;
  return reinterpret_cast<cl_event>(g_last);
}

tf_opencl Driver() {
  tf_opencl api{};
  api.clGetPlatformInfo = [](cl_platform_id, cl_uint, size_t, void*, size_t*) -> cl_int {
    return -30;
  };
  api.clGetDeviceInfo = [](cl_device_id, cl_uint, size_t, void*, size_t*) -> cl_int { return -30; };
  api.clCreateContext = [](const intptr_t*, cl_uint, const cl_device_id*,
                           void (*)(const char*, const void*, size_t, void*), void*, cl_int* code) {
    *code = CL_SUCCESS;
    return reinterpret_cast<cl_context>(8);
  };
  api.clCreateCommandQueue = [](cl_context, cl_device_id, cl_bitfield, cl_int* code) {
    *code = CL_SUCCESS;
    return reinterpret_cast<cl_command_queue>(8);
  };
  api.clFinish = [](cl_command_queue) -> cl_int {
    {
      std::lock_guard<std::mutex> lock(g_mutex);
      for (auto& [event, complete] : g_complete) complete = true;
    }
    std::this_thread::yield();
    return CL_SUCCESS;
  };
  api.clGetEventProfilingInfo = [](cl_event event, cl_uint what, size_t, void* value,
                                   size_t*) -> cl_int {
    std::lock_guard<std::mutex> lock(g_mutex);
    const auto found = g_complete.find(reinterpret_cast<uintptr_t>(event));
    if (found == g_complete.end()) return -58;
    if (!found->second) return CL_PROFILING_INFO_NOT_AVAILABLE;
    *static_cast<cl_ulong*>(value) = 1000 * found->first + (what == CL_PROFILING_COMMAND_END);
    return CL_SUCCESS;
  };
  api.clReleaseEvent = [](cl_event event) -> cl_int {
    std::lock_guard<std::mutex> lock(g_mutex);
    return g_complete.erase(reinterpret_cast<uintptr_t>(event)) ? CL_SUCCESS : -58;
  };
  return api;
}

// Records a launch in the order that `Kernel::Launch` uses.
void Launch(Device& device, const std::string& kernel) {
  const bool profiled = device.profiler().active();
  const cl_event event = profiled ? NewEvent() : nullptr;
  std::this_thread::yield();
  if (profiled) device.profiler().Record(event, kernel, WorkSize());
}

}  // namespace

int main() {
  constexpr int kSessions = 300;
  constexpr int kLaunches = 5;
  tf_device core{};
  core.api = Driver();
  Device device(core);
  std::atomic<bool> done{false};
  std::atomic<int> missing{0};
  const auto launch = [&] {
    while (!done) Launch(device, "other");
  };
  const auto measure = [&](const std::string& own) {
    for (int session = 0; session < kSessions; ++session) {
      const size_t begin = device.profiler().Begin();
      for (int i = 0; i < kLaunches; ++i) Launch(device, own);
      int found = 0;
      for (const KernelTime& time : device.profiler().End(begin)) found += time.kernel == own;
      missing += kLaunches - found;
    }
  };
  try {
    device.context();
    std::thread launcher(launch);
    std::thread one([&] { measure("one"); });
    std::thread two([&] { measure("two"); });
    one.join();
    two.join();
    done = true;
    launcher.join();
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
  std::printf("sessions %d, launches %d, missing %d, live %zu\n", 2 * kSessions,
              2 * kSessions * kLaunches, missing.load(), g_complete.size());
}
