#include "texture_shape.h"

#include <tvm/ffi/dtype.h>

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Error;

std::string Text(int ndim, const int64_t* shape) {
  std::string text = "(";
  for (int i = 0; i < ndim; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace

bool IsTextureScope(std::string_view scope) {
  return scope.find("texture") != std::string_view::npos;
}

opencl::cl_uint ChannelType(DLDataType dtype) {
  if (dtype.code == kDLFloat && dtype.bits == 32) return opencl::CL_FLOAT;
  if (dtype.code == kDLFloat && dtype.bits == 16) return opencl::CL_HALF_FLOAT;
  if (dtype.code == kDLInt && dtype.bits == 8) return opencl::CL_SIGNED_INT8;
  if (dtype.code == kDLInt && dtype.bits == 16) return opencl::CL_SIGNED_INT16;
  if (dtype.code == kDLInt && dtype.bits == 32) return opencl::CL_SIGNED_INT32;
  if (dtype.code == kDLUInt && dtype.bits == 8) return opencl::CL_UNSIGNED_INT8;
  if (dtype.code == kDLUInt && dtype.bits == 16) return opencl::CL_UNSIGNED_INT16;
  if (dtype.code == kDLUInt && dtype.bits == 32) return opencl::CL_UNSIGNED_INT32;
  throw Error("ValueError", "OpenCL images have no channels of dtype " +
                                std::string(tvm::ffi::DLDataTypeToString(dtype)) +
                                ".\nRemedy: Use buffer storage for this tensor.");
}

opencl::ImageShape TextureShape(std::string_view scope, int ndim, const int64_t* shape,
                                DLDataType dtype) {
  int rows;  // axes of the first group
  if (scope == "global.texture") {
    rows = ndim - 2;
  } else if (scope == "global.texture-nhwc") {
    rows = 2;
  } else if (scope == "global.texture-weight") {
    rows = 1;
  } else {
    throw Error("ValueError", "The memory scope '" + std::string(scope) +
                                  "' is not one of global, global.texture, global.texture-nhwc, "
                                  "global.texture-weight.");
  }
  const bool packed = ndim > 0 && shape[ndim - 1] * dtype.lanes == 4;
  if (rows < 1 || rows > ndim - 1 || !packed)
    throw Error("ValueError",
                "A tensor of shape " + Text(ndim, shape) + " does not fit the scope '" +
                    std::string(scope) + "': expected at least " +
                    std::to_string(rows < 1 ? 3 : rows + 1) + " axes, the innermost of extent 4.");
  opencl::ImageShape image{1, 1, 1, ChannelType(dtype)};
  for (int i = 0; i < ndim - 1; ++i) {
    size_t& extent = i < rows - 1 ? image.depth : i < rows ? image.height : image.width;
    extent *= static_cast<size_t>(shape[i]);
  }
  return image;
}

}  // namespace tvmflow::tvm_plugin
