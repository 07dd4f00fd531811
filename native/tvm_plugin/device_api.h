// Implementation of TVM's device interface with this runtime's devices.
#pragma once

#include <tvm/runtime/device_api.h>

#include "../opencl/devices.h"

namespace tvmflow::tvm_plugin {

class OpenClDeviceApi final : public tvm::runtime::DeviceAPI {
 public:
  static OpenClDeviceApi* Global();

  // Returns the device on which the calling thread launches kernels; set by SetDevice.
  static opencl::Device& CurrentDevice();

  void SetDevice(DLDevice dev) final;
  void GetAttr(DLDevice dev, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* rv) final;
  void GetTargetProperty(DLDevice dev, const std::string& property, tvm::ffi::Any* rv) final;
  size_t GetDataSize(const DLTensor& tensor,
                     tvm::ffi::Optional<tvm::ffi::String> scope = std::nullopt) final;

  // All data pointers, also in DLTensor::data, are opencl::Memory*.
  void* AllocDataSpace(DLDevice dev, size_t bytes, size_t alignment, DLDataType hint) final;
  void* AllocDataSpace(DLDevice dev, int ndim, const int64_t* shape, DLDataType dtype,
                       tvm::ffi::Optional<tvm::ffi::String> scope = std::nullopt) final;
  void FreeDataSpace(DLDevice dev, void* data) final;
  void* AllocWorkspace(DLDevice dev, size_t bytes, DLDataType hint) final;
  void FreeWorkspace(DLDevice dev, void* data) final;

  void CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream) final;
  void StreamSync(DLDevice dev, TVMStreamHandle stream) final;
};

}  // namespace tvmflow::tvm_plugin
