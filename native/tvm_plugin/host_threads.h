// The threads of modules for the host.
#pragma once

#include <string>

namespace tvmflow::tvm_plugin {

// Has a library's parallel loops share one pool of `count` threads, in place of TVM's own.  TVM
// gives each thread its part of a loop in advance, so that all wait for one that another process
// keeps from its core, at every loop; here a thread takes what nobody has taken.  The first library
// with such loops starts the threads, and later ones do not change how many they are.
void ShareThreads(const std::string& path, int count);

}  // namespace tvmflow::tvm_plugin
