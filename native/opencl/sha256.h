// SHA-256 (FIPS 180-4), for keys and checksums of the program cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tvmflow::opencl {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& Update(const void* data, size_t bytes);
  // A text with its length in front, so that two texts cannot run into each other.
  Sha256& Field(std::string_view text);
  Digest Finish();

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

std::string Hex(const Digest& digest);

}  // namespace tvmflow::opencl
