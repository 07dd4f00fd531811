// Turns the runtime's errors into TVM's at the border between the two.
#pragma once

#include <tvm/ffi/error.h>

#include <utility>

#include "../opencl/errors.h"

namespace tvmflow::tvm_plugin {

// Runs `body`; an opencl::Error leaves as a tvm::ffi::Error of the same kind, which
// becomes the Python exception registered under that name.
template <typename Body>
inline decltype(auto) Guard(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const opencl::Error& error) {
    throw tvm::ffi::Error(error.kind(), error.what(), "");
  }
}

}  // namespace tvmflow::tvm_plugin
