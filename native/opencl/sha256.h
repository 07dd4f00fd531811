// SHA-256 (FIPS 180-4), for keys and checksums of the program cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../core/sha256_state.h"

namespace tvmflow::opencl {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256() { Sha256Begin(&state_); }
  Sha256& Update(const void* data, size_t bytes);
  // Adds a text, preceded by its length to make the boundary between two texts unambiguous.
  Sha256& Field(std::string_view text);
  Digest Finish();

 private:
  Sha256State state_;
};

}  // namespace tvmflow::opencl
