#include "allocator.h"

#include "../opencl/devices.h"
#include "../opencl/memory.h"
#include "guard.h"
#include "texture_shape.h"

namespace tvmflow::tvm_plugin {

using opencl::Devices;
using opencl::GlobalPool;
using opencl::Memory;

OpenClAllocator::Buffer OpenClAllocator::Alloc(DLDevice dev, size_t bytes, size_t, DLDataType) {
  return Guard([&] {
    Memory* memory = GlobalPool().Buffer(Devices::Global().Get(dev.device_id), bytes);
    return Buffer{memory, memory->bytes, dev, type()};
  });
}

OpenClAllocator::Buffer OpenClAllocator::Alloc(DLDevice dev, tvm::ffi::Shape shape,
                                               DLDataType dtype, const std::string& scope) {
  if (scope == kHalfBufferScope) {
    return Guard([&] {
      const size_t bytes = tvm::ffi::GetDataSize(static_cast<size_t>(shape.Product()), dtype);
      Memory* memory = GlobalPool().Buffer(Devices::Global().Get(dev.device_id), bytes / 2);
      memory->is_half = true;
      return Buffer{memory, bytes, dev, type()};
    });
  }
  if (!IsTextureScope(scope)) return Allocator::Alloc(dev, shape, dtype, scope);
  return Guard([&] {
    const opencl::ImageShape image =
        TextureShape(scope, static_cast<int>(shape.size()), shape.data(), dtype);
    Memory* memory = GlobalPool().Image(Devices::Global().Get(dev.device_id), image);
    // TVM compares this size with the size of tensors, which it computes as for fp32.
    const size_t bytes = image.width * image.height * image.depth * 4 * ((dtype.bits + 7) / 8);
    return Buffer{memory, bytes, dev, type()};
  });
}

void* OpenClAllocator::CreateView(const Buffer& buffer, tvm::ffi::Shape shape, DLDataType dtype,
                                  const std::string& scope) {
  if (!IsTextureScope(scope)) return buffer.data;
  return Guard([&]() -> void* {
    Memory* storage = static_cast<Memory*>(buffer.data);
    const opencl::ImageShape image =
        TextureShape(scope, static_cast<int>(shape.size()), shape.data(), dtype);
    if (storage->is_image && storage->image.Holds(image)) return storage;
    Memory* view = GlobalPool().Image(*storage->device, image);
    view->is_view = true;
    return view;
  });
}

void OpenClAllocator::FreeView(DLDevice, void* data) {
  Memory* memory = static_cast<Memory*>(data);
  if (memory && memory->is_view) GlobalPool().Recycle(memory);
}

void OpenClAllocator::Free(const Buffer& buffer) {
  GlobalPool().Recycle(static_cast<Memory*>(buffer.data));
  // A naive allocator must release freed memory at once.
  if (type() == tvm::runtime::memory::kNaive) GlobalPool().Clear();
}

void OpenClAllocator::Clear() { GlobalPool().Clear(); }

size_t OpenClAllocator::UsedMemory() const { return GlobalPool().UsedBytes(); }

bool OpenClAllocator::AllowMemoryScope(const std::string& scope) const {
  return scope.empty() || scope == "global" || scope == kHalfBufferScope || IsTextureScope(scope);
}

}  // namespace tvmflow::tvm_plugin
