#include "device_api.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <vector>

#include "../core/half.h"
#include "../opencl/memory.h"
#include "guard.h"
#include "texture_shape.h"

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Devices;
using opencl::Memory;

thread_local int current_device = 0;

bool IsBufferScope(const tvm::ffi::Optional<tvm::ffi::String>& scope) {
  return !scope.has_value() || scope.value().empty() || scope.value() == "global";
}

std::string_view View(const tvm::ffi::String& text) { return {text.data(), text.size()}; }

// Returns whether an fp32 tensor is stored in 16 bits, in an image or in a buffer.
bool IsNarrowed(const DLTensor& tensor) {
  if (tensor.device.device_type != kDLOpenCL || !tensor.data || tensor.dtype.bits != 32)
    return false;
  const Memory& memory = *static_cast<const Memory*>(tensor.data);
  return memory.is_half || (memory.is_image && memory.image.channel_type == CL_HALF_FLOAT);
}

void CopyNarrowed(const float* source, size_t count, Memory& destination) {
  std::vector<uint16_t> halves(count);
  std::transform(source, source + count, halves.begin(), ToHalf);
  opencl::CopyFromHost(halves.data(), destination, 0, count * sizeof(uint16_t));
}

void CopyWidened(const Memory& source, float* destination, size_t count) {
  std::vector<uint16_t> halves(count);
  opencl::CopyToHost(source, 0, halves.data(), count * sizeof(uint16_t));
  std::transform(halves.begin(), halves.end(), destination, FromHalf);
}

const void* HostAddress(const DLTensor& tensor) {
  return static_cast<const char*>(tensor.data) + tensor.byte_offset;
}

}  // namespace

OpenClDeviceApi* OpenClDeviceApi::Global() {
  static OpenClDeviceApi* api = new OpenClDeviceApi();
  return api;
}

opencl::Device& OpenClDeviceApi::CurrentDevice() { return Devices::Global().Get(current_device); }

void OpenClDeviceApi::SetDevice(DLDevice dev) { current_device = dev.device_id; }

void OpenClDeviceApi::GetAttr(DLDevice dev, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* rv) {
  Guard([&] {
    if (kind == tvm::runtime::kExist) {
      *rv = static_cast<int64_t>(Devices::Global().Exists(dev.device_id));
      return;
    }
    const opencl::Device& device = Devices::Global().Get(dev.device_id);
    const opencl::DeviceInfo& info = device.info();
    const tf_device& core = *device.core();
    switch (kind) {
      case tvm::runtime::kExist:
        break;
      case tvm::runtime::kMaxThreadsPerBlock:
        *rv = static_cast<int64_t>(core.largest_group);
        break;
      case tvm::runtime::kWarpSize:
        *rv = static_cast<int64_t>(info.warp_size);
        break;
      case tvm::runtime::kMaxSharedMemoryPerBlock:
        *rv = static_cast<int64_t>(info.local_memory_bytes);
        break;
      case tvm::runtime::kComputeVersion:
        *rv = tvm::ffi::String(info.opencl_version);
        break;
      case tvm::runtime::kDeviceName:
        *rv = tvm::ffi::String(info.name);
        break;
      case tvm::runtime::kMaxClockRate:
        *rv = static_cast<int64_t>(info.clock_mhz) * 1000;  // TVM expects kHz.
        break;
      case tvm::runtime::kMultiProcessorCount:
        *rv = static_cast<int64_t>(info.compute_units);
        break;
      case tvm::runtime::kMaxThreadDimensions:
        *rv = tvm::ffi::String("[" + std::to_string(core.largest_local[0]) + ", " +
                               std::to_string(core.largest_local[1]) + ", " +
                               std::to_string(core.largest_local[2]) + "]");
        break;
      case tvm::runtime::kApiVersion:
        // Like TVM's own runtimes, return the version of the API in use, which is 1.2.
        *rv = static_cast<int64_t>(120);
        break;
      case tvm::runtime::kDriverVersion:
        *rv = tvm::ffi::String(info.driver_version);
        break;
      case tvm::runtime::kL2CacheSizeBytes:
        *rv = static_cast<int64_t>(info.global_cache_bytes);
        break;
      case tvm::runtime::kTotalGlobalMemory:
        *rv = static_cast<int64_t>(core.memory_bytes);
        break;
      case tvm::runtime::kImagePitchAlignment:
        *rv = static_cast<int64_t>(info.image_pitch_alignment);
        break;
      case tvm::runtime::kMaxRegistersPerBlock:
      case tvm::runtime::kGcnArch:
      case tvm::runtime::kAvailableGlobalMemory:
        // OpenCL has no query for these: the result stays None.
        break;
    }
  });
}

void OpenClDeviceApi::GetTargetProperty(DLDevice dev, const std::string& property,
                                        tvm::ffi::Any* rv) {
  Guard([&] {
    const opencl::Device& device = Devices::Global().Get(dev.device_id);
    const opencl::DeviceInfo& info = device.info();
    const tf_device& core = *device.core();
    if (property == "max_num_threads" || property == "max_threads_per_block") {
      *rv = static_cast<int64_t>(core.largest_group);
    } else if (property == "thread_warp_size") {
      *rv = static_cast<int64_t>(info.warp_size);
    } else if (property == "max_shared_memory_per_block") {
      *rv = static_cast<int64_t>(info.local_memory_bytes);
    } else if (property == "texture_spatial_limit") {
      *rv = static_cast<int64_t>(std::min(core.largest_image[0], core.largest_image[1]));
    } else if (property == "texture_depth_limit") {
      *rv = static_cast<int64_t>(core.largest_image[2]);
    } else if (property == "image_base_address_alignment") {
      *rv = static_cast<int64_t>(info.image_pitch_alignment);
    }
  });
}

size_t OpenClDeviceApi::GetDataSize(const DLTensor& tensor,
                                    tvm::ffi::Optional<tvm::ffi::String> scope) {
  if (IsBufferScope(scope)) return DeviceAPI::GetDataSize(tensor, std::nullopt);
  if (View(scope.value()) == kHalfBufferScope)
    return DeviceAPI::GetDataSize(tensor, std::nullopt) / 2;
  return Guard([&] {
    return TextureShape(View(scope.value()), tensor.ndim, tensor.shape, tensor.dtype).Bytes();
  });
}

void* OpenClDeviceApi::AllocDataSpace(DLDevice dev, size_t bytes, size_t, DLDataType) {
  return Guard([&] { return opencl::AllocateBuffer(Devices::Global().Get(dev.device_id), bytes); });
}

void* OpenClDeviceApi::AllocDataSpace(DLDevice dev, int ndim, const int64_t* shape,
                                      DLDataType dtype,
                                      tvm::ffi::Optional<tvm::ffi::String> scope) {
  return Guard([&] {
    opencl::Device& device = Devices::Global().Get(dev.device_id);
    const bool half = scope.has_value() && View(scope.value()) == kHalfBufferScope;
    if (!half && !IsBufferScope(scope))
      return opencl::AllocateImage(device, TextureShape(View(scope.value()), ndim, shape, dtype));
    size_t count = 1;
    for (int i = 0; i < ndim; ++i) count *= static_cast<size_t>(shape[i]);
    const size_t bytes = tvm::ffi::GetDataSize(count, dtype);
    Memory* memory = opencl::AllocateBuffer(device, half ? bytes / 2 : bytes);
    memory->is_half = half;
    return memory;
  });
}

void OpenClDeviceApi::FreeDataSpace(DLDevice, void* data) {
  opencl::Release(static_cast<Memory*>(data));
}

void* OpenClDeviceApi::AllocWorkspace(DLDevice dev, size_t bytes, DLDataType) {
  return Guard(
      [&] { return opencl::GlobalPool().Buffer(Devices::Global().Get(dev.device_id), bytes); });
}

void OpenClDeviceApi::FreeWorkspace(DLDevice, void* data) {
  opencl::GlobalPool().Recycle(static_cast<Memory*>(data));
}

void OpenClDeviceApi::CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle) {
  Guard([&] {
    const size_t bytes = tvm::ffi::GetDataSize(*from);
    if (bytes != tvm::ffi::GetDataSize(*to))
      throw opencl::Error("ValueError", "A copy between tensors of " + std::to_string(bytes) +
                                            " and " + std::to_string(tvm::ffi::GetDataSize(*to)) +
                                            " bytes; both must be of the same size.");
    if (!tvm::ffi::IsContiguous(*from) || !tvm::ffi::IsContiguous(*to))
      throw opencl::Error("ValueError",
                          "A copy from or to an OpenCL device needs contiguous tensors.");
    const bool from_device = from->device.device_type == kDLOpenCL;
    const bool to_device = to->device.device_type == kDLOpenCL;
    if (bytes == 0) return;
    const size_t count = bytes / sizeof(float);
    if (IsNarrowed(*from) && !to_device) {
      auto* target = static_cast<float*>(const_cast<void*>(HostAddress(*to)));
      CopyWidened(*static_cast<Memory*>(from->data), target, count);
    } else if (IsNarrowed(*to) && !from_device) {
      const auto* source = static_cast<const float*>(HostAddress(*from));
      CopyNarrowed(source, count, *static_cast<Memory*>(to->data));
    } else if (IsNarrowed(*from) != IsNarrowed(*to)) {
      throw opencl::Error("ValueError",
                          "A copy on the device between channels of 16 and of 32 bits is a "
                          "conversion, which only kernels and copies with the host do.");
    } else if (from_device && to_device) {
      const size_t copied = IsNarrowed(*from) ? count * sizeof(uint16_t) : bytes;
      opencl::CopyOnDevice(*static_cast<Memory*>(from->data), from->byte_offset,
                           *static_cast<Memory*>(to->data), to->byte_offset, copied);
    } else if (from_device) {
      opencl::CopyToHost(*static_cast<Memory*>(from->data), from->byte_offset,
                         const_cast<void*>(HostAddress(*to)), bytes);
    } else {
      opencl::CopyFromHost(HostAddress(*from), *static_cast<Memory*>(to->data), to->byte_offset,
                           bytes);
    }
  });
}

void OpenClDeviceApi::StreamSync(DLDevice dev, TVMStreamHandle) {
  Guard([&] { Devices::Global().Get(dev.device_id).Synchronise(); });
}

}  // namespace tvmflow::tvm_plugin
