// Allocator of TVM's virtual machine for OpenCL devices.
#pragma once

#include <tvm/runtime/memory/memory_manager.h>

namespace tvmflow::tvm_plugin {

// Allocates buffers and images from the runtime's pool.  TVM may request a tensor with a
// texture scope as a view of storage.  If the storage is an image that is large enough, the
// view uses its first layers, rows and columns.  OpenCL 1.2 has no such views of buffers or
// smaller images, so the view is then a separate image from the pool.  This is correct for
// planned storage, whose views never share contents with each other.
class OpenClAllocator final : public tvm::runtime::memory::Allocator {
 public:
  using Buffer = tvm::runtime::memory::Buffer;
  explicit OpenClAllocator(tvm::runtime::memory::AllocatorType type) : Allocator(type) {}

  Buffer Alloc(DLDevice dev, size_t bytes, size_t alignment, DLDataType hint) final;
  Buffer Alloc(DLDevice dev, tvm::ffi::Shape shape, DLDataType dtype,
               const std::string& scope) final;
  void* CreateView(const Buffer& buffer, tvm::ffi::Shape shape, DLDataType dtype,
                   const std::string& scope) final;
  void FreeView(DLDevice dev, void* data) final;
  void Free(const Buffer& buffer) final;
  void Clear() final;
  size_t UsedMemory() const final;

 protected:
  bool AllowMemoryScope(const std::string& scope) const final;
};

}  // namespace tvmflow::tvm_plugin
