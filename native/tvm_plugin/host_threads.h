// Thread pool of modules for the host.
#pragma once

#include <string>

namespace tvmflow::tvm_plugin {

// Makes a library's parallel loops run on a common pool of `count` threads, instead of TVM's.  TVM
// assigns each thread its part of a loop in advance, so that every loop waits for a thread that
// another process keeps from its core; here threads take the next remaining part.  The first
// library with such loops starts the threads; later ones do not change their number.
void ShareThreads(const std::string& path, int count);

}  // namespace tvmflow::tvm_plugin
