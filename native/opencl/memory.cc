#include "memory.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "../core/commands.h"

namespace tvmflow::opencl {
namespace {

uint64_t NextSerial() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string Text(const ImageShape& shape) {
  return std::to_string(shape.width) + "x" + std::to_string(shape.height) + " texels, " +
         std::to_string(shape.depth) + " layers";
}

// Throws a clear message for extents beyond the device's limits.  Drivers return different
// codes for these, PoCL even CL_INVALID_OPERATION.
void CheckImageLimits(const Device& device, const ImageShape& shape) {
  const size_t* const largest = device.core()->largest_image;
  if (!largest[0])
    throw Error("DeviceError", "Device " + device.Describe() +
                                   " has no images.\nRemedy: Compile with --storage buffer.");
  if (shape.width > largest[0] || shape.height > largest[1] || shape.depth > largest[2]) {
    const ImageShape limit{largest[0], largest[1], largest[2], 0};
    throw Error("DeviceError", "Allocating an image of " + Text(shape) + " on device " +
                                   device.Describe() + " exceeds its limit of " + Text(limit) +
                                   ".\nRemedy: Compile for this device's limits, or with "
                                   "--storage buffer.");
  }
}

// Returns the box of a whole image.
tf_box Whole(const ImageShape& shape) { return {{}, {shape.width, shape.height, shape.depth}}; }

// Throws unless an image is copied as a whole.
void CheckWhole(const Memory& memory, size_t offset, size_t bytes) {
  if (!memory.is_image) {
    if (offset + bytes > memory.bytes)
      throw Error("ValueError", "A copy of " + std::to_string(bytes) + " bytes at offset " +
                                    std::to_string(offset) + " exceeds a buffer of " +
                                    std::to_string(memory.bytes) + " bytes.");
    return;
  }
  if (offset != 0 || bytes != memory.bytes)
    throw Error("ValueError", "A copy of " + std::to_string(bytes) + " bytes at offset " +
                                  std::to_string(offset) + " does not cover the image of " +
                                  Text(memory.image) + " (" + std::to_string(memory.bytes) +
                                  " bytes); images are copied as a whole.");
}

std::string CopyText(const char* what, size_t bytes, const Device& device) {
  return std::string("Copying ") + std::to_string(bytes) + " bytes " + what + " device " +
         device.Describe();
}

void CopyThroughHost(const Memory& source, size_t source_offset, Memory& destination,
                     size_t destination_offset, size_t bytes) {
  auto staging = std::make_unique<char[]>(bytes);
  CopyToHost(source, source_offset, staging.get(), bytes);
  CopyFromHost(staging.get(), destination, destination_offset, bytes);
}

}  // namespace

size_t ImageShape::TexelBytes() const {
  switch (channel_type) {
    case CL_SIGNED_INT8:
    case CL_UNSIGNED_INT8:
      return 4;
    case CL_HALF_FLOAT:
    case CL_SIGNED_INT16:
    case CL_UNSIGNED_INT16:
      return 8;
    default:
      return 16;
  }
}

Memory* AllocateBuffer(Device& device, size_t bytes) {
  // OpenCL has no empty buffers; tensors without elements are legal.
  const size_t allocated = std::max<size_t>(bytes, 1);
  cl_int code = CL_SUCCESS;
  auto memory = std::make_unique<Memory>();
  if (device.chain()) memory->address = device.AllocateShared(allocated);
  // A buffer created from shared memory uses it directly (OpenCL 2.0, 5.2.1).
  const cl_bitfield flags = CL_MEM_READ_WRITE | (memory->address ? CL_MEM_USE_HOST_PTR : 0);
  memory->handle =
      device.api().clCreateBuffer(device.context(), flags, allocated, memory->address, &code);
  if (code != CL_SUCCESS && memory->address) device.FreeShared(memory->address);
  Check(code, [&] {
    return "Allocating a buffer of " + std::to_string(bytes) + " bytes on device " +
           device.Describe() + ", whose largest allocation is " +
           std::to_string(device.core()->largest_allocation) + " bytes of " +
           std::to_string(device.core()->memory_bytes) + ",";
  });
  memory->device = &device;
  memory->bytes = bytes;
  memory->serial = NextSerial();
  return memory.release();
}

Memory* AllocateImage(Device& device, const ImageShape& shape) {
  CheckImageLimits(device, shape);
  cl_int code = CL_SUCCESS;
  auto memory = std::make_unique<Memory>();
  memory->handle = tf_create_image(device.core(), device.context(), CL_MEM_READ_WRITE,
                                   shape.channel_type, Whole(shape).size, nullptr, &code);
  Check(code, [&] {
    return "Allocating an image of " + Text(shape) + " (" + std::to_string(shape.Bytes()) +
           " bytes) on device " + device.Describe();
  });
  memory->device = &device;
  memory->bytes = shape.Bytes();
  memory->is_image = true;
  memory->image = shape;
  memory->serial = NextSerial();
  return memory.release();
}

void Release(Memory* memory) {
  if (!memory) return;
  // The driver frees the memory only after queued commands that use it are done.
  memory->device->api().clReleaseMemObject(memory->handle);
  if (memory->address) memory->device->FreeShared(memory->address);
  delete memory;
}

void CopyFromHost(const void* source, Memory& destination, size_t offset, size_t bytes) {
  if (bytes == 0) return;
  CheckWhole(destination, offset, bytes);
  Device& device = *destination.device;
  if (destination.address) {
    device.Synchronise();
    std::memcpy(static_cast<char*>(destination.address) + offset, source, bytes);
    return;
  }
  const tf_box whole = Whole(destination.image);
  const cl_int code = tf_write(device.core(), device.queue(), destination.handle,
                               destination.is_image ? &whole : nullptr, offset, bytes, source);
  Check(code, [&] { return CopyText("from the host to", bytes, device); });
  device.NoteSynchronised();
}

void CopyToHost(const Memory& source, size_t offset, void* destination, size_t bytes) {
  if (bytes == 0) return;
  CheckWhole(source, offset, bytes);
  Device& device = *source.device;
  if (source.address) {
    device.Synchronise();
    std::memcpy(destination, static_cast<const char*>(source.address) + offset, bytes);
    return;
  }
  const tf_box whole = Whole(source.image);
  const cl_int code = tf_read(device.core(), device.queue(), source.handle,
                              source.is_image ? &whole : nullptr, offset, bytes, destination);
  Check(code, [&] { return CopyText("to the host from", bytes, device); });
  device.NoteSynchronised();
}

void CopyOnDevice(const Memory& source, size_t source_offset, Memory& destination,
                  size_t destination_offset, size_t bytes) {
  if (bytes == 0) return;
  CheckWhole(source, source_offset, bytes);
  CheckWhole(destination, destination_offset, bytes);
  if (source.device != destination.device)
    return CopyThroughHost(source, source_offset, destination, destination_offset, bytes);
  Device& device = *source.device;
  const tf_opencl& api = device.api();
  const cl_command_queue queue = device.queue();
  const tf_box from = Whole(source.image);
  const tf_box to = Whole(destination.image);
  cl_int code;
  if (source.is_image && destination.is_image) {
    if (source.image != destination.image) {
      // Images of different extents have the same elements at different positions.
      Memory* staging = GlobalPool().Buffer(device, bytes);
      CopyOnDevice(source, 0, *staging, 0, bytes);
      CopyOnDevice(*staging, 0, destination, 0, bytes);
      GlobalPool().Recycle(staging);
      return;
    }
    code = api.clEnqueueCopyImage(queue, source.handle, destination.handle, from.origin, to.origin,
                                  from.size, 0, nullptr, nullptr);
  } else if (source.is_image) {
    code = api.clEnqueueCopyImageToBuffer(queue, source.handle, destination.handle, from.origin,
                                          from.size, destination_offset, 0, nullptr, nullptr);
  } else if (destination.is_image) {
    code = api.clEnqueueCopyBufferToImage(queue, source.handle, destination.handle, source_offset,
                                          to.origin, to.size, 0, nullptr, nullptr);
  } else {
    code = api.clEnqueueCopyBuffer(queue, source.handle, destination.handle, source_offset,
                                   destination_offset, bytes, 0, nullptr, nullptr);
  }
  Check(code, [&] { return CopyText("within", bytes, device); });
}

MemoryPool::Key MemoryPool::KeyOf(Device* device, bool is_image, size_t bytes,
                                  const ImageShape& shape) {
  if (is_image) return {device, true, shape.width, shape.height, shape.depth, shape.channel_type};
  return {device, false, bytes, 0, 0, 0};
}

template <typename Allocate>
Memory* MemoryPool::Take(const Key& key, Allocate&& allocate) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto found = free_.find(key); found != free_.end() && !found->second.empty()) {
      Memory* memory = found->second.back();
      found->second.pop_back();
      return memory;
    }
  }
  Memory* memory = nullptr;
  try {
    memory = allocate();
  } catch (const DriverError&) {
    // The memory that the pool keeps may be the memory that is missing.
    Clear();
    memory = allocate();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ += memory->bytes;
  return memory;
}

Memory* MemoryPool::Buffer(Device& device, size_t bytes) {
  // Round sizes up, so that tensors of nearly the same size can reuse each other's memory.
  constexpr size_t kPage = 4096;
  const size_t rounded = std::max<size_t>((bytes + kPage - 1) / kPage * kPage, kPage);
  return Take(KeyOf(&device, false, rounded, {}), [&] { return AllocateBuffer(device, rounded); });
}

Memory* MemoryPool::Image(Device& device, const ImageShape& shape) {
  return Take(KeyOf(&device, true, 0, shape), [&] { return AllocateImage(device, shape); });
}

void MemoryPool::Recycle(Memory* memory) {
  if (!memory) return;
  memory->is_view = false;
  memory->is_half = false;
  std::lock_guard<std::mutex> lock(mutex_);
  free_[KeyOf(memory->device, memory->is_image, memory->bytes, memory->image)].push_back(memory);
}

void MemoryPool::Clear() {
  std::map<Key, std::vector<Memory*>> released;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    released.swap(free_);
    for (const auto& [key, memories] : released) {
      for (const Memory* memory : memories) used_bytes_ -= memory->bytes;
    }
  }
  for (const auto& [key, memories] : released) {
    for (Memory* memory : memories) Release(memory);
  }
}

size_t MemoryPool::UsedBytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

MemoryPool& GlobalPool() {
  static MemoryPool* pool = new MemoryPool();
  return *pool;
}

}  // namespace tvmflow::opencl
