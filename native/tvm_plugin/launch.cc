#include "launch.h"

#include <tvm/ffi/dtype.h>

#include <algorithm>

#include "../core/half.h"
#include "device_api.h"
#include "guard.h"

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Argument;
using opencl::Error;
using opencl::Memory;

// Number of arguments without an allocation on the heap; enough for kernels of fused primary
// functions.
constexpr size_t kInlineArguments = 24;

union Scalar {
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint16_t f16;
  float f32;
  double f64;
};

// Returns the device memory of an argument.  Generated host code passes the tensor's data
// pointer; callers from Python may pass the tensor itself.
const Memory* MemoryOf(const TVMFFIAny& value, const std::string& kernel) {
  using tvm::ffi::TypeIndex;
  const DLTensor* tensor = nullptr;
  switch (value.type_index) {
    case TypeIndex::kTVMFFIOpaquePtr:
      return static_cast<const Memory*>(value.v_ptr);
    case TypeIndex::kTVMFFINone:
      return nullptr;
    case TypeIndex::kTVMFFIDLTensorPtr:
      tensor = static_cast<const DLTensor*>(value.v_ptr);
      break;
    case TypeIndex::kTVMFFITensor:
      tensor = TVMFFITensorGetDLTensorPtr(value.v_obj);
      break;
    default:
      break;
  }
  if (!tensor || tensor->device.device_type != kDLOpenCL || tensor->byte_offset != 0)
    throw Error("ValueError", "Kernel '" + kernel +
                                  "' was called with something else where it expects a tensor on "
                                  "an OpenCL device, without an offset.");
  return static_cast<const Memory*>(tensor->data);
}

}  // namespace

KernelLauncher::Kind KernelLauncher::KindOf(DLDataType dtype, const std::string& kernel) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDLOpaqueHandle) return Kind::kMemory;
    // In two's complement, signed and unsigned integers are passed in the same way.
    const bool integer = dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLBool;
    if (integer && dtype.bits <= 8) return Kind::kInt8;
    if (integer && dtype.bits == 16) return Kind::kInt16;
    if (integer && dtype.bits == 32) return Kind::kInt32;
    if (integer && dtype.bits == 64) return Kind::kInt64;
    if (dtype.code == kDLFloat && dtype.bits == 16) return Kind::kFloat16;
    if (dtype.code == kDLFloat && dtype.bits == 32) return Kind::kFloat32;
    if (dtype.code == kDLFloat && dtype.bits == 64) return Kind::kFloat64;
  }
  throw Error("ValueError", "Kernel '" + kernel + "' has an argument of dtype " +
                                std::string(tvm::ffi::DLDataTypeToString(dtype)) +
                                ", which cannot be passed to an OpenCL kernel.");
}

KernelLauncher::KernelLauncher(opencl::Program* program, size_t index, const FunctionInfoObj& info)
    : program_(program), index_(index) {
  for (DLDataType dtype : info.arg_types) kinds_.push_back(KindOf(dtype, name()));
  for (const tvm::ffi::String& tag : info.launch_param_tags) {
    const std::string text = tag;
    size_t base = std::string::npos;
    std::string axis;
    if (text.rfind("blockIdx.", 0) == 0) {
      base = 0;
      axis = text.substr(9);
    } else if (text.rfind("threadIdx.", 0) == 0) {
      base = 3;
      axis = text.substr(10);
    }
    if (base == std::string::npos || axis.size() != 1 || axis[0] < 'x' || axis[0] > 'z')
      throw Error("ValueError", "Kernel '" + name() + "' has the launch parameter '" + text +
                                    "', which OpenCL does not have.");
    const size_t dimension = static_cast<size_t>(axis[0] - 'x');
    extents_.push_back(static_cast<uint8_t>(base + dimension));
    dimensions_ = std::max(dimensions_, static_cast<cl_uint>(dimension + 1));
  }
}

void KernelLauncher::operator()(const tvm::ffi::AnyView* args, int32_t count) const {
  const size_t arguments = kinds_.size();
  if (static_cast<size_t>(count) != arguments + extents_.size()) [[unlikely]]
    throw Error("ValueError", "Kernel '" + name() + "' expects " +
                                  std::to_string(arguments + extents_.size()) +
                                  " arguments, but got " + std::to_string(count) + ".");
  const TVMFFIAny* raw = reinterpret_cast<const TVMFFIAny*>(args);

  size_t extent[6] = {1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < extents_.size(); ++i) {
    const int64_t value = raw[arguments + i].v_int64;
    if (value <= 0) return;  // A tensor without elements needs no launch.
    extent[extents_[i]] = static_cast<size_t>(value);
  }
  opencl::WorkSize size;
  size.dimensions = dimensions_;
  for (size_t i = 0; i < 3; ++i) {
    size.global[i] = extent[i] * extent[i + 3];
    size.local[i] = extent[i + 3];
  }

  Argument inline_arguments[kInlineArguments];
  Scalar inline_scalars[kInlineArguments];
  std::vector<Argument> heap_arguments;
  std::vector<Scalar> heap_scalars;
  Argument* list = inline_arguments;
  Scalar* scalars = inline_scalars;
  if (arguments > kInlineArguments) [[unlikely]] {
    heap_arguments.resize(arguments);
    heap_scalars.resize(arguments);
    list = heap_arguments.data();
    scalars = heap_scalars.data();
  }
  for (size_t i = 0; i < arguments; ++i) {
    Scalar& scalar = scalars[i];
    const TVMFFIAny& value = raw[i];
    // Host code may pass an integer for a float argument, and the reverse.
    const bool is_float = value.type_index == tvm::ffi::TypeIndex::kTVMFFIFloat;
    const int64_t integer = is_float ? static_cast<int64_t>(value.v_float64) : value.v_int64;
    const double real = is_float ? value.v_float64 : static_cast<double>(value.v_int64);
    list[i] = {&scalar, 0, nullptr, false};
    switch (kinds_[i]) {
      case Kind::kMemory:
        list[i].memory = MemoryOf(value, name());
        list[i].is_memory = true;
        break;
      case Kind::kInt8:
        scalar.i8 = static_cast<int8_t>(integer);
        list[i].bytes = 1;
        break;
      case Kind::kInt16:
        scalar.i16 = static_cast<int16_t>(integer);
        list[i].bytes = 2;
        break;
      case Kind::kInt32:
        scalar.i32 = static_cast<int32_t>(integer);
        list[i].bytes = 4;
        break;
      case Kind::kInt64:
        scalar.i64 = integer;
        list[i].bytes = 8;
        break;
      case Kind::kFloat16:
        scalar.f16 = ToHalf(static_cast<float>(real));
        list[i].bytes = 2;
        break;
      case Kind::kFloat32:
        scalar.f32 = static_cast<float>(real);
        list[i].bytes = 4;
        break;
      case Kind::kFloat64:
        scalar.f64 = real;
        list[i].bytes = 8;
        break;
    }
  }
  opencl::Device& device = OpenClDeviceApi::CurrentDevice();
  const bool is_line = dimensions_ == 1 && size.local[0] == 1;
  if (is_line && program_->Chained(index_, device, size.global[0], list, arguments)) return;
  program_->KernelFor(index_, device).Launch(list, arguments, size);
}

}  // namespace tvmflow::tvm_plugin
