#include "packed_text.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "../opencl/text_model.h"

namespace tvmflow::tvm_plugin {
namespace {

struct Free {
  void operator()(TextModel* model) const { std::free(model); }
};

}  // namespace

std::string PackText(std::string_view text) {
  const std::unique_ptr<TextModel, Free> model(TextBegin(text.size()));
  if (!model) throw std::bad_alloc();
  std::string packed;
  TextRange range = {0, UINT32_MAX};
  for (size_t i = 0; i < 8 * (kTextPresetBytes + text.size()); ++i) {
    const uint32_t chance = TextPredict(model.get());
    int bit = TextPresetBit(i);
    if (bit < 0) {
      const size_t number = i - size_t{8} * kTextPresetBytes;
      bit = text[number / 8] >> (7 - number % 8) & 1;
      TextNarrow(&range, TextMiddle(&range, chance), bit);
      for (uint32_t first = range.high >> 24; TextShift(&range); first = range.high >> 24)
        packed.push_back(static_cast<char>(first));
    }
    TextUpdate(model.get(), bit);
  }
  // A number of the range whose last bytes are zeros, which are read behind the end: the first
  // bytes of all in it differ.
  if (range.low) packed.push_back(static_cast<char>(range.high >> 24));
  return packed;
}

std::string UnpackText(std::string_view packed, size_t bytes) {
  std::string text(bytes, '\0');
  const auto* const data = reinterpret_cast<const uint8_t*>(packed.data());
  if (!TextUnpack(data, packed.size(), text.data(), bytes)) throw std::bad_alloc();
  return text;
}

}  // namespace tvmflow::tvm_plugin
