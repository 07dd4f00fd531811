// How TVM's texture scopes map a tensor onto an image array.
#pragma once

#include <tvm/runtime/device_api.h>

#include <string>
#include <string_view>

#include "../opencl/memory.h"

namespace tvmflow::tvm_plugin {

// The scope of buffers that keep fp32 tensors in 16 bits (see tvmflow/codegen/half.py).
constexpr std::string_view kHalfBufferScope = "global.half";

// True for "global.texture" and the names that begin with it.
bool IsTextureScope(std::string_view scope);

// The image of a tensor: its innermost axis, of extent 4, becomes the RGBA channels; the
// others go where the scope says (see tvmflow/ir/scope.py).  "global.texture:p8" puts
// 8 channel blocks side by side; "global.texture:0.3" cuts the axes into layers, rows and
// columns before the axes named; TVM's own names imply the cuts:
//   global.texture         n-3, n-2  [N, C, H, W, 4] -> layers N*C, height H, width W
//   global.texture-nhwc    1, 2      [N, H, W, C, 4] -> layers N, height H, width W*C
//   global.texture-weight  0, 1      [O, I, H, W, 4] -> layers 1, height O, width I*H*W
// Throws a ValueError for another shape, scope or dtype.
opencl::ImageShape TextureShape(std::string_view scope, int ndim, const int64_t* shape,
                                DLDataType dtype);

// The dtype's image channel type; throws a ValueError where images have none.
opencl::cl_uint ChannelType(DLDataType dtype);

}  // namespace tvmflow::tvm_plugin
