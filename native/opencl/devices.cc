#include "devices.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>

#include "pocl.h"
#include "settings.h"
#include "version.h"

namespace tvmflow::opencl {
namespace {

// Set in a forked child, which lacks the driver's threads: its first wait would never end.
std::atomic<bool> forked{false};

struct Found {
  std::unique_ptr<Device> device;
  size_t platform_index;
  size_t device_index;
};

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool Contains(const std::string& text, const std::string& part) {
  return Lower(text).find(Lower(part)) != std::string::npos;
}

bool IsIndex(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool MatchesPart(const std::string& part, size_t index, const std::string& name) {
  if (part.empty()) return true;
  if (IsIndex(part)) return std::strtoull(part.c_str(), nullptr, 10) == index;
  return Contains(name, part);
}

bool Matches(const std::string& wanted, const Found& found) {
  const std::string& platform = found.device->platform().name;
  const DeviceInfo& info = found.device->info();
  const size_t colon = wanted.find(':');
  if (colon == std::string::npos) {
    if (IsIndex(wanted)) return MatchesPart(wanted, found.platform_index, platform);
    return Contains(platform, wanted) || Contains(info.name, wanted) ||
           Lower(wanted) == info.TypeName();
  }
  const std::string device_part = wanted.substr(colon + 1);
  return MatchesPart(wanted.substr(0, colon), found.platform_index, platform) &&
         (MatchesPart(device_part, found.device_index, info.name) ||
          Lower(device_part) == info.TypeName());
}

// Returns why the device cannot be used; empty if it can.
std::string Unusable(const Device& device) {
  cl_bool available = CL_FALSE;
  cl_bool compiler = CL_FALSE;
  device.api().clGetDeviceInfo(device.id(), CL_DEVICE_AVAILABLE, sizeof(available), &available,
                               nullptr);
  device.api().clGetDeviceInfo(device.id(), CL_DEVICE_COMPILER_AVAILABLE, sizeof(compiler),
                               &compiler, nullptr);
  if (!available) return "is not available";
  if (!compiler) return "has no compiler";
  if (!IsAtLeast(device.info().version.c_str(), 1, 2))
    return "has " + device.info().version + ", older than 1.2";
  if (IsPocl(device.platform()) && !PoclWorks(device.info().driver_version))
    return "has PoCL " + device.info().driver_version + ", older than 3.1";
  return "";
}

// Adds the usable devices of a platform, and sets `outcome` to the result in words.
void AddDevices(const Platform& platform, size_t platform_index, std::vector<Found>* found,
                std::string* outcome) {
  cl_uint count = 0;
  const Api& api = *platform.api;
  *outcome += *outcome == "" ? "platform '" : "; platform '";
  *outcome += platform.name + "' ";
  cl_int code = api.clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
  std::vector<cl_device_id> ids(code == CL_SUCCESS ? count : 0);
  if (!ids.empty())
    code = api.clGetDeviceIDs(platform.id, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
  if (ids.empty() || code != CL_SUCCESS) {
    *outcome += "has no device";
    return;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    auto device = std::make_unique<Device>(platform, ids[i]);
    const std::string reason = Unusable(*device);
    *outcome += (i ? ", device '" : "device '") + device->info().name + "' " +
                (reason.empty() ? "is usable" : reason);
    if (reason.empty()) found->push_back({std::move(device), platform_index, i});
  }
}

int Rank(const Found& found) {
  const cl_bitfield type = found.device->info().type;
  if (type & CL_DEVICE_TYPE_GPU) return 0;
  if (type & CL_DEVICE_TYPE_ACCELERATOR) return 1;
  return 2;
}

}  // namespace

Devices& Devices::Global() {
  // Never destroyed, because at exit drivers may be unloaded before static objects.
  static Devices* devices = new Devices();
  return *devices;
}

void Devices::Discover() {
  PreparePocl();
  const std::string wanted = CurrentSettings().device;
  std::vector<Found> found;
  std::string tried;
  size_t platform_count = 0;
  bool satisfied = false;
  for (const std::string& library : CandidateLibraries()) {
    std::string outcome;
    for (const Platform& platform : OpenLibrary(library, &outcome))
      AddDevices(platform, platform_count++, &found, &outcome);
    tried += "\n  " + library + ": " + outcome;
    satisfied = std::any_of(found.begin(), found.end(), [&](const Found& candidate) {
      return wanted.empty() || Matches(wanted, candidate);
    });
    if (satisfied) break;
  }
  if (!satisfied) {
    failure_ =
        found.empty()
            ? "No OpenCL device was found.\nRemedy: Install a driver (python -m pip install "
              "intel-opencl-rt gives an OpenCL device on any x86-64 CPU), or set "
              "TVMFLOW_OPENCL_LIBRARY to the OpenCL library of one."
            : "No OpenCL device matches TVMFLOW_OPENCL_DEVICE='" + wanted +
                  "' (platform:device, indices or parts of names).\nRemedy: Choose one of the "
                  "devices below, or unset TVMFLOW_OPENCL_DEVICE.";
    failure_ += "\nLibraries tried:" + tried;
    return;
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return Rank(a) < Rank(b); });
  if (!wanted.empty()) {
    auto first = std::find_if(found.begin(), found.end(),
                              [&](const Found& candidate) { return Matches(wanted, candidate); });
    std::rotate(found.begin(), first, first + 1);
  }
  for (Found& item : found) {
    item.device->set_index(static_cast<int>(devices_.size()));
    devices_.push_back(std::move(item.device));
  }
}

void Devices::DiscoverOnce() {
  std::call_once(once_, [this] {
    Discover();
    pthread_atfork(nullptr, nullptr, [] {
      forked.store(true, std::memory_order_relaxed);
      for (const auto& device : Global().devices_) device->Abandon();
    });
  });
}

size_t Devices::Count() {
  DiscoverOnce();
  return devices_.size();
}

bool Devices::Exists(int index) { return index >= 0 && static_cast<size_t>(index) < Count(); }

const std::string& Devices::Failure() {
  DiscoverOnce();
  return failure_;
}

Device& Devices::Get(int index) {
  if (!Exists(index) || forked.load(std::memory_order_relaxed)) [[unlikely]]
    ThrowMissing(index);
  return *devices_[static_cast<size_t>(index)];
}

void Devices::ThrowMissing(int index) {
  if (!failure_.empty()) throw Error("DeviceError", failure_);
  if (Exists(index))
    throw Error("DeviceError",
                "An OpenCL device was used in a process forked from one that had used it.\n"
                "Remedy: Start worker processes with multiprocessing's 'spawn' method.");
  std::string names;
  for (const auto& device : devices_) names += "\n  " + device->Describe();
  throw Error("DeviceError", "There is no device opencl:" + std::to_string(index) +
                                 ".\nRemedy: Choose one of these devices." + names);
}

}  // namespace tvmflow::opencl
