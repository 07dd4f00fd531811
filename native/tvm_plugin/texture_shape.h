// How TVM's texture scopes map a tensor onto an image array.
#pragma once

#include <tvm/runtime/device_api.h>

#include <string>
#include <string_view>

#include "../opencl/memory.h"

namespace tvmflow::tvm_plugin {

// True for "global.texture", "global.texture-nhwc" and "global.texture-weight".
bool IsTextureScope(std::string_view scope);

// The image of a tensor: its innermost axis, of extent 4, becomes the RGBA channels;
// the other axes are split in two, the last of the first group being the image's
// height, those before it the layers, and the second group the width.  The first group
// has, for a tensor of n axes:
//   global.texture         n - 2 axes  [N, C, H, W, 4] -> layers N*C, height H, width W
//   global.texture-nhwc    2 axes      [N, H, W, C, 4] -> layers N, height H, width W*C
//   global.texture-weight  1 axis      [O, I, H, W, 4] -> layers 1, height O, width I*H*W
// Throws a ValueError for another shape, scope or dtype.
opencl::ImageShape TextureShape(std::string_view scope, int ndim, const int64_t* shape,
                                DLDataType dtype);

// The dtype's image channel type; throws a ValueError where images have none.
opencl::cl_uint ChannelType(DLDataType dtype);

}  // namespace tvmflow::tvm_plugin
