// The process's OpenCL devices, found at the first use.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"

namespace tvmflow::opencl {

// Libraries are tried in the order of CandidateLibraries() until one has a usable
// device: available, with a compiler, OpenCL 1.2 or newer.  Devices are numbered
// GPUs first, then accelerators, then CPUs, otherwise in the drivers' order.
//
// Settings::device, "platform:device", puts one device at the front.  Either part is
// an index (platforms counted over all libraries opened, devices within the platform)
// or a case-insensitive part of the name; the device part may also be a type ("gpu",
// "accelerator", "cpu"); an empty part matches anything.  A text without a colon
// matches a platform's or a device's name.  While nothing matches, further libraries
// are tried.
class Devices {
 public:
  static Devices& Global();

  // Returns the number of devices; 0 (no exception) if there is none.
  size_t Count();
  bool Exists(int index);
  // Returns why there is no device, with the attempts; empty if there is one.
  const std::string& Failure();
  // Throws a DeviceError that lists the attempts if there is no such device.
  Device& Get(int index);

 private:
  void Discover();
  void DiscoverOnce();
  [[noreturn]] void ThrowMissing(int index);

  std::once_flag once_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::string failure_;
};

}  // namespace tvmflow::opencl
