// The allocator that TVM's virtual machine uses on OpenCL devices.
#pragma once

#include <tvm/runtime/memory/memory_manager.h>

namespace tvmflow::tvm_plugin {

// Buffers and images come from the runtime's pool.  TVM may ask for a tensor with a
// texture scope as a view of storage.  An image at least as large serves: its first
// layers, rows and columns are used.  Of a buffer or a smaller image OpenCL 1.2 has no
// such views, so the view is an image of its own from the pool.  That is right for
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
