// Program text packed for standalone libraries.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tvmflow::tvm_plugin {

std::string PackText(std::string_view text);
// So many bytes of text; what PackText has not made gives any.
std::string UnpackText(std::string_view packed, size_t bytes);

}  // namespace tvmflow::tvm_plugin
