// Implementation of TVM's timer with device times, for time_evaluator and its users.
#pragma once

#include <tvm/runtime/timer.h>

#include <chrono>
#include <optional>

namespace tvmflow::tvm_plugin {

// Measures the total time of kernels on the device between Start and Stop, without the host's
// share.  If no kernel ran (copies only), or the driver does not measure kernels, it is the
// host's wall time.
class OpenClTimer final : public tvm::runtime::TimerNode {
 public:
  explicit OpenClTimer(DLDevice device) : device_(device) {}
  ~OpenClTimer() final;

  void Start() final;
  void Stop() final;
  int64_t SyncAndGetElapsedNanos() final { return elapsed_ns_; }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvmflow.OpenClTimer", OpenClTimer, tvm::runtime::TimerNode);

 private:
  DLDevice device_;
  std::optional<size_t> session_;
  std::chrono::steady_clock::time_point started_;
  int64_t elapsed_ns_ = 0;
};

}  // namespace tvmflow::tvm_plugin
