// Device memory: buffers and RGBA image arrays, copies between them, and a pool.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "device.h"

namespace tvmflow::opencl {

// Extents of an image2d_array_t of RGBA texels, all in texels.
struct ImageShape {
  size_t width = 0;
  size_t height = 0;
  size_t depth = 0;          // number of array layers
  cl_uint channel_type = 0;  // CL_FLOAT or CL_HALF_FLOAT, or an integer type

  size_t TexelBytes() const;
  // Returns the size of the texels without padding, as in the host's copy.
  size_t Bytes() const { return width * height * depth * TexelBytes(); }
  // Returns whether an image of this shape can hold one of the other shape.
  bool Holds(const ImageShape& other) const {
    return channel_type == other.channel_type && width >= other.width && height >= other.height &&
           depth >= other.depth;
  }
  bool operator==(const ImageShape&) const = default;
};

// An allocation on a device.
struct Memory {
  cl_mem handle = nullptr;
  // Address for kernels (Device::AllocateShared); null if only the driver knows it.
  void* address = nullptr;
  Device* device = nullptr;
  size_t bytes = 0;  // of the buffer, or of the image's texels without padding
  bool is_image = false;
  ImageShape image;
  // Differs between any two allocations of the process, unlike the handle's address.
  uint64_t serial = 0;
  // Buffers only: elements of fp32 tensors, stored in 16 bits (the scope "global.half").
  bool is_half = false;
  // Images only: created on demand in another tensor's storage (see tvm_plugin/allocator.h).
  bool is_view = false;
};

// Both throw a DeviceError with the sizes and the device's limits if the driver refuses.
Memory* AllocateBuffer(Device& device, size_t bytes);
Memory* AllocateImage(Device& device, const ImageShape& shape);
void Release(Memory* memory);

// Copies are queued in order.  Copies from and to the host return when the host's memory has been
// read or written; shared memory needs no command.  Offsets are in bytes and must be 0 for an
// image, which is only copied as a whole, in row-major order of (depth, height, width, channel).
void CopyFromHost(const void* source, Memory& destination, size_t offset, size_t bytes);
void CopyToHost(const Memory& source, size_t offset, void* destination, size_t bytes);
void CopyOnDevice(const Memory& source, size_t source_offset, Memory& destination,
                  size_t destination_offset, size_t bytes);

// Pool of released memory for later allocations of the same size or image shape, because
// drivers take microseconds to milliseconds for a new allocation.  Memory may be reused while
// earlier commands still access it, because the device's queue is in order.
class MemoryPool {
 public:
  Memory* Buffer(Device& device, size_t bytes);
  Memory* Image(Device& device, const ImageShape& shape);
  // Returns memory from Buffer() or Image() to the pool.
  void Recycle(Memory* memory);
  // Releases all memory that is not in use.
  void Clear();
  // Returns the bytes that are allocated, both in use and kept for reuse.
  size_t UsedBytes() const;

 private:
  // (device, is image, bytes or width, height, depth, channel type)
  using Key = std::tuple<Device*, bool, size_t, size_t, size_t, cl_uint>;
  static Key KeyOf(Device* device, bool is_image, size_t bytes, const ImageShape& shape);
  template <typename Allocate>
  Memory* Take(const Key& key, Allocate&& allocate);

  mutable std::mutex mutex_;
  std::map<Key, std::vector<Memory*>> free_;
  size_t used_bytes_ = 0;
};

// Returns the process's pool.
MemoryPool& GlobalPool();

}  // namespace tvmflow::opencl
