#include "sha256.h"

namespace tvmflow::opencl {

Sha256& Sha256::Update(const void* data, size_t bytes) {
  Sha256Add(&state_, data, bytes);
  return *this;
}

Sha256& Sha256::Field(std::string_view text) {
  const uint64_t length = text.size();
  Update(&length, sizeof(length));
  return Update(text.data(), text.size());
}

Digest Sha256::Finish() {
  Digest digest;
  Sha256End(&state_, digest.data());
  return digest;
}

}  // namespace tvmflow::opencl
