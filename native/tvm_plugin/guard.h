// Translation of the runtime's errors into TVM's.
#pragma once

#include <tvm/ffi/error.h>

#include <utility>

#include "../opencl/errors.h"

namespace tvmflow::tvm_plugin {

// Returns the result of `body`; translates an opencl::Error into a tvm::ffi::Error of the same
// kind, which becomes the Python exception registered under that name.
template <typename Body>
inline decltype(auto) Guard(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const opencl::Error& error) {
    throw tvm::ffi::Error(error.kind(), error.what(), "");
  }
}

}  // namespace tvmflow::tvm_plugin
