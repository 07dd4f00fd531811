// One OpenCL device: its facts, its context and its queue.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/device.h"
#include "errors.h"
#include "profiler.h"

namespace tvmflow::opencl {

// Facts about a device that `tf_device` lacks; sizes in bytes, the alignment in texels.
struct DeviceInfo {
  std::string platform;
  std::string platform_version;
  std::string library;  // path of its shared library
  std::string name;
  std::string vendor;
  std::string version;         // "OpenCL 3.0 ..."
  std::string opencl_version;  // "3.0"
  std::string opencl_c_version;
  std::string driver_version;
  std::vector<std::string> extensions;
  cl_uint compute_units = 0;
  cl_uint clock_mhz = 0;
  cl_uint native_vector_width_float = 0;
  cl_uint warp_size = 1;
  cl_ulong local_memory_bytes = 0;
  cl_ulong global_cache_bytes = 0;
  cl_uint image_pitch_alignment = 0;
  cl_bitfield svm_capabilities = 0;

  bool Has(const std::string& extension) const;
};

// Task to run when a device has finished everything that was queued.
class SynchronisationTask {
 public:
  virtual void OnSynchronised() = 0;

 protected:
  ~SynchronisationTask() = default;
};

class Chain;

class Device {
 public:
  // Reads the device's facts; nothing is allocated on it yet.
  explicit Device(const tf_device& core);
  Device(const Device&) = delete;
  ~Device();

  // Returns the device as functions of native/core take it.
  const tf_device* core() const { return &core_; }
  const tf_opencl& api() const { return core_.api; }
  const DeviceInfo& info() const { return info_; }
  cl_device_id id() const { return core_.id; }
  // Index in TVM's numbering: opencl:<index>.
  int index() const { return index_; }
  void set_index(int index) { index_ = index; }
  // Returns "'<name>' (opencl:<index>, <platform>)", for messages.
  std::string Describe() const;

  // Context and in-order queue, created at the first use.
  cl_context context() {
    Initialise();
    return context_;
  }
  cl_command_queue queue() {
    Initialise();
    if (chain_) FlushChain();
    return queue_;
  }
  // Returns the chain of launches; null if the device does not support chains.
  Chain* chain() {
    Initialise();
    return chain_.get();
  }
  // Launches the chain's steps; returns false, and drops the steps, if the driver refuses.
  bool LaunchChain() noexcept;
  // Returns memory that the host and kernels can access by its address, or null.
  void* AllocateShared(size_t bytes);
  // Frees shared memory after all queued commands have finished.
  void FreeShared(void* address);
  // Turns waits for the device and releases of objects into no-ops, for a forked child, which lacks
  // the driver's threads.
  void Abandon();
  // Returns whether the queue's events report the times of kernels.
  bool measures_kernels() {
    Initialise();
    return measures_kernels_;
  }
  // Waits until everything queued so far is done.
  void Synchronise();
  // Must be called after any other blocking command on the queue.
  void NoteSynchronised() {
    if (has_tasks_.load(std::memory_order_relaxed)) [[unlikely]]
      RunTasks();
  }

  // Calls `task` once, at the next synchronisation.
  void CallWhenSynchronised(SynchronisationTask* task);
  // Cancels `task`; it is not running any more when this returns.
  void Forget(SynchronisationTask* task);

  Profiler& profiler() { return profiler_; }

 private:
  void Initialise() {
    if (!ready_.load(std::memory_order_acquire)) [[unlikely]]
      CreateQueue();
  }
  void CreateQueue();
  void FlushChain();
  void RunTasks();

  tf_device core_;
  DeviceInfo info_;
  int index_ = -1;
  std::mutex mutex_;
  std::atomic<bool> ready_{false};
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  bool measures_kernels_ = true;
  Profiler profiler_{*this};
  std::unique_ptr<Chain> chain_;
  std::mutex tasks_mutex_;
  std::atomic<bool> has_tasks_{false};
  std::vector<SynchronisationTask*> tasks_;
};

}  // namespace tvmflow::opencl
