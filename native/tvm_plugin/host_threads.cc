#include "host_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <memory>

#include "../opencl/errors.h"
extern "C" {
#include "../core/threads.h"
}

namespace tvmflow::tvm_plugin {
namespace {

// Symbol of the pointer through which TVM's generated code runs parallel loops.
constexpr const char* kLaunch = "__TVMBackendParallelLaunch";

unsigned PoolSize(int count) {
  static const unsigned size = [&] {
    pthread_atfork(nullptr, nullptr, tf_threads_forget);
    return tf_threads_begin(static_cast<unsigned>(count), /*pinned=*/false);
  }();
  return size;
}

int Launch(tf_task task, void* data, int count) {
  tf_threads_take(PoolSize(0));
  const int code = tf_threads_run(task, data, count);
  tf_threads_give();
  return code;
}

}  // namespace

void ShareThreads(const std::string& path, int count) {
  const std::unique_ptr<void, int (*)(void*)> library(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD),
                                                      dlclose);
  if (!library) throw opencl::Error("ValueError", path + " is not loaded.");
  // A module without parallel loops does not have it.
  void* const place = dlsym(library.get(), kLaunch);
  if (!place) return;
  PoolSize(count);
  *static_cast<decltype(&Launch)*>(place) = Launch;
}

}  // namespace tvmflow::tvm_plugin
