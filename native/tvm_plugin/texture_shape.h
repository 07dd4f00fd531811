// Mapping of tensors with TVM's texture scopes to image arrays.
#pragma once

#include <tvm/runtime/device_api.h>

#include <string>
#include <string_view>

#include "../opencl/memory.h"

namespace tvmflow::tvm_plugin {

// Scope of buffers that store fp32 tensors in 16 bits (see tvmflow/codegen/half.py).
constexpr std::string_view kHalfBufferScope = "global.half";

// Returns whether the scope is "global.texture" or begins with that.
bool IsTextureScope(std::string_view scope);

// Returns the shape of a tensor's image.  The innermost axis, of extent 4, becomes the RGBA
// channels; the scope maps the others (see tvmflow/ir/scope.py).  "global.texture:p8" puts 8
// channel blocks side by side; "global.texture:0.3" splits the axes into layers, rows and
// columns, before axes 0 and 3; TVM's own names imply the splits:
//   global.texture         n-3, n-2  [N, C, H, W, 4] -> layers N*C, height H, width W
//   global.texture-nhwc    1, 2      [N, H, W, C, 4] -> layers N, height H, width W*C
//   global.texture-weight  0, 1      [O, I, H, W, 4] -> layers 1, height O, width I*H*W
// Throws a ValueError for another shape, scope or dtype.
opencl::ImageShape TextureShape(std::string_view scope, int ndim, const int64_t* shape,
                                DLDataType dtype);

// Returns the dtype's image channel type; throws a ValueError if images do not have it.
cl_uint ChannelType(DLDataType dtype);

}  // namespace tvmflow::tvm_plugin
