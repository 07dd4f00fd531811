// Declarations that tvm/runtime/tensor.h needs from a header that TVM's wheel does not
// contain: the stream that tensors are saved to.  The plug-in never saves a tensor, so
// only the names and signatures matter, not the format.
#pragma once

#include <cstddef>
#include <type_traits>

namespace tvm {
namespace support {

class Stream {
 public:
  virtual size_t Read(void* data, size_t bytes) = 0;
  virtual size_t Write(const void* data, size_t bytes) = 0;
  virtual ~Stream() = default;

  template <typename T>
  bool Read(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return Read(static_cast<void*>(value), sizeof(T)) == sizeof(T);
  }
  template <typename T>
  void Write(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Write(static_cast<const void*>(&value), sizeof(T));
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    return Read(static_cast<void*>(values), sizeof(T) * count) == sizeof(T) * count;
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    Write(static_cast<const void*>(values), sizeof(T) * count);
  }
};

}  // namespace support
}  // namespace tvm
