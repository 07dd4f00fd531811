// A device of TVM's kind "cuda" that is the host's memory, with CUDA graphs. Kernels come from
// `cuda_host.py`; allocations are as large as asked for, so that a sanitizer sees their ends.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/support/io.h>

// vm.h wants it of a header that TVM's wheel does not ship.
namespace tvm::support {
template <typename T>
struct Serializer;
}

#include <tvm/runtime/vm/vm.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <vector>

#include "cuda_threads.h"

namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::PackedArgs;
using Work = std::function<void()>;

// What a graph replays; null while none is captured.
std::vector<Work>* captured = nullptr;

void RefuseInCapture(const char* what) {
  if (captured) throw tvm::ffi::Error("CUDAError", std::string(what) + " in a captured graph", "");
}

void* Allocate(size_t bytes) {
  RefuseInCapture("memory is allocated");
  void* data = nullptr;
  if (posix_memalign(&data, 256, bytes)) throw std::bad_alloc();
  std::memset(data, 0xFF, bytes);  // NaN, in case that it is read before it is written.
  return data;
}

class HostCuda final : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(DLDevice) final {}
  void GetAttr(DLDevice dev, tvm::runtime::DeviceAttrKind kind, Any* result) final {
    if (kind == tvm::runtime::kExist) *result = static_cast<int64_t>(dev.device_id == 0);
    if (kind == tvm::runtime::kDeviceName) *result = tvm::ffi::String("CUDA on the host");
    if (kind == tvm::runtime::kComputeVersion) *result = tvm::ffi::String("9.0");
  }
  void* AllocDataSpace(DLDevice, size_t bytes, size_t, DLDataType) final { return Allocate(bytes); }
  void FreeDataSpace(DLDevice, void* data) final { std::free(data); }
  void StreamSync(DLDevice, TVMStreamHandle) final { RefuseInCapture("the host waits"); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, DLDevice from_device, DLDevice to_device, DLDataType,
                      TVMStreamHandle) final {
    const Work copy = [=] {
      std::memmove(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset,
                   bytes);
    };
    if (from_device.device_type != kDLCUDA || to_device.device_type != kDLCUDA)
      RefuseInCapture("the host copies");
    captured ? captured->push_back(copy) : copy();
  }
};

// TVM's own keeps what is freed, and rounds sizes up.
class Exact final : public tvm::runtime::memory::Allocator {
 public:
  using Buffer = tvm::runtime::memory::Buffer;
  using Allocator::Allocator;
  Buffer Alloc(DLDevice dev, size_t bytes, size_t, DLDataType) final {
    return {Allocate(bytes), bytes, dev, type()};
  }
  void Free(const Buffer& buffer) final { std::free(buffer.data); }
  size_t UsedMemory() const final { return 0; }
};

// As TVM's extension for CUDA graphs: storage is made once, and so is a graph, by a run that
// warms up and one that is captured; then the graph is replayed, with its addresses.
struct Graph {
  std::vector<Work> work;
  Any results;
};

class Graphs : public tvm::runtime::vm::VMExtensionNode {
 public:
  std::map<int64_t, Graph> graphs;
  std::map<int64_t, Any> storages;
  static constexpr const bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvmflow.tests.Graphs", Graphs,
                                    tvm::runtime::vm::VMExtensionNode);
};

class GraphsRef : public tvm::runtime::vm::VMExtension {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(GraphsRef, tvm::runtime::vm::VMExtension, Graphs);
  static GraphsRef Create() { return GraphsRef(tvm::ffi::make_object<Graphs>()); }
};

Any Invoke(tvm::runtime::vm::VirtualMachine* machine, const Any& function,
           const std::vector<AnyView>& arguments) {
  Any result;
  machine->InvokeClosurePacked(function.cast<tvm::ffi::ObjectRef>(),
                               PackedArgs(arguments.data(), arguments.size()), &result);
  return result;
}

void RunOrCapture(PackedArgs args, Any* result) {
  auto* machine = tvm::runtime::vm::VirtualMachine::GetContextPtr(args[0]);
  auto& graphs = machine->GetOrCreateExtension<GraphsRef>()->graphs;
  auto found = graphs.find(args[3].cast<int64_t>());
  if (found == graphs.end()) {
    const auto fixed = args[2].cast<tvm::ffi::Array<Any>>();
    const std::vector<AnyView> arguments(fixed.begin(), fixed.end());
    Invoke(machine, args[1], arguments);
    Graph graph;
    captured = &graph.work;
    try {
      graph.results = Invoke(machine, args[1], arguments);
    } catch (...) {
      captured = nullptr;
      throw;
    }
    captured = nullptr;
    found = graphs.emplace(args[3].cast<int64_t>(), std::move(graph)).first;
  } else {
    for (const Work& work : found->second.work) work();
  }
  *result = found->second.results;
}

void GetCachedStorage(PackedArgs args, Any* result) {
  auto* machine = tvm::runtime::vm::VirtualMachine::GetContextPtr(args[0]);
  auto& storages = machine->GetOrCreateExtension<GraphsRef>()->storages;
  auto found = storages.find(args[2].cast<int64_t>());
  if (found == storages.end())
    found = storages.emplace(args[2].cast<int64_t>(), Invoke(machine, args[1], {})).first;
  *result = found->second;
}

}  // namespace

int cuda_host::Launch(const char* name, Call call, int arguments, const int* tags, int tags_count,
                      bool cooperates, const TVMFFIAny* values, int count) {
  if (count != arguments + tags_count) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "a kernel was called with other arguments");
    return -1;
  }
  std::array<size_t, 7> extents = {1, 1, 1, 1, 1, 1, 0};
  for (int i = 0; i < tags_count; ++i)
    extents[tags[i]] = static_cast<size_t>(values[arguments + i].v_int64);
  const Work launch = [=, given = std::vector<TVMFFIAny>(values, values + arguments)] {
    RunGrid(name, extents.data(), cooperates, [&] { call(given.data()); });
  };
  captured ? captured->push_back(launch) : launch();
  return 0;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("device_api.cuda",
                  [](PackedArgs, Any* result) {
                    static tvm::runtime::DeviceAPI* device = new HostCuda();
                    *result = static_cast<void*>(device);
                  })
      .def_packed("DeviceAllocator.cuda",
                  [](PackedArgs args, Any* result) {
                    tvm::runtime::memory::Allocator* allocator = new Exact(
                        static_cast<tvm::runtime::memory::AllocatorType>(args[1].cast<int>()));
                    *result = static_cast<void*>(allocator);
                  })
      .def_packed("vm.builtin.cuda_graph.run_or_capture", RunOrCapture)
      .def_packed("vm.builtin.cuda_graph.get_cached_alloc", GetCachedStorage);
}
