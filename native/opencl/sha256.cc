#include "sha256.h"

#include <algorithm>
#include <cstring>

#include "sha256_block.h"

namespace tvmflow::opencl {

Sha256& Sha256::Update(const void* data, size_t bytes) {
  const uint8_t* input = static_cast<const uint8_t*>(data);
  total_bytes_ += bytes;
  while (bytes > 0) {
    if (pending_bytes_ == 0 && bytes >= 64) {
      Sha256Block(state_.data(), input);
      input += 64;
      bytes -= 64;
      continue;
    }
    const size_t taken = std::min(bytes, 64 - pending_bytes_);
    std::memcpy(pending_.data() + pending_bytes_, input, taken);
    pending_bytes_ += taken;
    input += taken;
    bytes -= taken;
    if (pending_bytes_ == 64) {
      Sha256Block(state_.data(), pending_.data());
      pending_bytes_ = 0;
    }
  }
  return *this;
}

Sha256& Sha256::Field(std::string_view text) {
  const uint64_t length = text.size();
  Update(&length, sizeof(length));
  return Update(text.data(), text.size());
}

Digest Sha256::Finish() {
  const uint64_t bits = total_bytes_ * 8;
  const uint8_t one = 0x80;
  const uint8_t zero = 0;
  Update(&one, 1);
  while (pending_bytes_ != 56) Update(&zero, 1);
  uint8_t length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  Update(length, 8);
  Digest digest;
  for (size_t i = 0; i < 32; ++i)
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string Hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tvmflow::opencl
