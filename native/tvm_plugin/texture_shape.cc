#include "texture_shape.h"

#include <tvm/ffi/dtype.h>

#include <algorithm>
#include <charconv>

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Error;

std::string Text(int ndim, const int64_t* shape) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

constexpr std::string_view kHalf = "global.texture-half";

constexpr std::string_view kPrefix = "global.texture:";

// Removes `front` from the beginning of `text`; returns false if `text` does not begin with it.
bool Take(std::string_view* text, std::string_view front) {
  if (!text->starts_with(front)) return false;
  text->remove_prefix(front.size());
  return true;
}

// Removes a number from the beginning of `text`; returns false if there is none.
template <typename Number>
bool TakeNumber(std::string_view* text, Number* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

// Returns the 8 of "global.texture:p8"; 0 for other names.
size_t Panels(std::string_view name) {
  size_t panels = 0;
  const bool found = Take(&name, kPrefix) && Take(&name, "p") && TakeNumber(&name, &panels);
  return found && name.empty() ? panels : 0;
}

// Reads the numbers of "global.texture:1.2"; returns false for other names.
bool Cuts(std::string_view name, int* rows, int* columns) {
  return Take(&name, kPrefix) && TakeNumber(&name, rows) && Take(&name, ".") &&
         TakeNumber(&name, columns) && name.empty();
}

cl_uint HalfChannels(DLDataType dtype) {
  if (dtype.code != kDLFloat || dtype.bits != 32)
    throw Error("ValueError", "A texture of 16-bit channels keeps fp32 tensors, but the dtype is " +
                                  std::string(tvm::ffi::DLDataTypeToString(dtype)) + ".");
  return CL_HALF_FLOAT;
}

}  // namespace

bool IsTextureScope(std::string_view scope) {
  return scope.find("texture") != std::string_view::npos;
}

cl_uint ChannelType(DLDataType dtype) {
  if (dtype.code == kDLFloat && dtype.bits == 32) return CL_FLOAT;
  if (dtype.code == kDLFloat && dtype.bits == 16) return CL_HALF_FLOAT;
  if (dtype.code == kDLInt && dtype.bits == 8) return CL_SIGNED_INT8;
  if (dtype.code == kDLInt && dtype.bits == 16) return CL_SIGNED_INT16;
  if (dtype.code == kDLInt && dtype.bits == 32) return CL_SIGNED_INT32;
  if (dtype.code == kDLUInt && dtype.bits == 8) return CL_UNSIGNED_INT8;
  if (dtype.code == kDLUInt && dtype.bits == 16) return CL_UNSIGNED_INT16;
  if (dtype.code == kDLUInt && dtype.bits == 32) return CL_UNSIGNED_INT32;
  throw Error("ValueError", "OpenCL images have no channels of dtype " +
                                std::string(tvm::ffi::DLDataTypeToString(dtype)) +
                                ".\nRemedy: Use buffer storage for this tensor.");
}

opencl::ImageShape TextureShape(std::string_view scope, int ndim, const int64_t* shape,
                                DLDataType dtype) {
  // With "-half" in its name, a scope stores fp32 tensors in channels of 16 bits.
  const bool half = scope.starts_with(kHalf);
  const cl_uint channels = half ? HalfChannels(dtype) : ChannelType(dtype);
  const bool packed = ndim > 0 && shape[ndim - 1] * dtype.lanes == 4;
  const std::string name =
      half ? "global.texture" + std::string(scope.substr(kHalf.size())) : std::string(scope);
  if (const size_t panels = Panels(name)) {
    if (ndim != 5 || !packed)
      throw Error("ValueError", "A tensor of shape " + Text(ndim, shape) +
                                    " does not fit the scope '" + name +
                                    "': expected (N, C, H, W, 4).");
    const auto extent = [&](int axis) { return static_cast<size_t>(shape[axis]); };
    const size_t below = (extent(1) + panels - 1) / panels;
    return {panels * extent(3), extent(0) * below * extent(2), 1, channels};
  }
  // First axes of the image's rows and columns.
  int rows = 0;
  int columns = 0;
  if (name == "global.texture") {
    columns = ndim - 2;
    rows = columns - 1;
  } else if (name == "global.texture-nhwc") {
    columns = 2;
    rows = 1;
  } else if (name == "global.texture-weight") {
    columns = 1;
    rows = 0;
  } else if (!Cuts(name, &rows, &columns)) {
    throw Error("ValueError", "The memory scope '" + name +
                                  "' is not one of global, global.texture, global.texture-nhwc, "
                                  "global.texture-weight, global.texture:<rows>.<columns>, "
                                  "global.texture:p<panels>.");
  }
  if (rows < 0 || columns < rows || columns > ndim - 1 || !packed)
    throw Error("ValueError", "A tensor of shape " + Text(ndim, shape) +
                                  " does not fit the scope '" + name + "': expected at least " +
                                  std::to_string(std::max(3, columns + 1)) +
                                  " axes, the innermost of extent 4.");
  opencl::ImageShape image{1, 1, 1, channels};
  for (int i = 0; i < ndim - 1; ++i) {
    size_t& extent = i < rows ? image.depth : i < columns ? image.height : image.width;
    extent *= static_cast<size_t>(shape[i]);
  }
  return image;
}

}  // namespace tvmflow::tvm_plugin
