// Registration of the runtime with TVM, under the names that TVM looks up.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "../opencl/reports.h"
#include "../opencl/settings.h"
#include "allocator.h"
#include "device_api.h"
#include "guard.h"
#include "host_threads.h"
#include "module.h"
#include "timer.h"

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Devices;
using opencl::GlobalPool;
using tvm::ffi::Array;
using tvm::ffi::Bytes;
using tvm::ffi::Map;
using tvm::ffi::Module;
using tvm::ffi::PackedArgs;
using tvm::ffi::String;

Module MakeModule(ModuleContents contents, Map<String, String> sources) {
  return Module(tvm::ffi::make_object<OpenClModule>(std::move(contents), std::move(sources)));
}

Module CreateModule(Bytes code, String format, Map<String, FunctionInfo> functions,
                    Map<String, String> sources) {
  return Guard([&] {
    return MakeModule({std::move(format), std::move(functions), std::move(code)},
                      std::move(sources));
  });
}

Module LoadModule(const Bytes& bytes) {
  return Guard([&] { return MakeModule(Deserialize(bytes), {}); });
}

// Returns the module as an OpenClModule, or null.  Compares the kind first, because a cast would
// read type information, which LLVM's modules lack.
const OpenClModule* AsOpenCl(const tvm::ffi::ModuleObj* module) {
  return std::string_view(module->kind()) == "opencl" ? dynamic_cast<const OpenClModule*>(module)
                                                      : nullptr;
}

// Returns one module with the kernels of several, in order, so that the driver builds one program.
Module JoinModules(const Array<Module>& parts) {
  return Guard([&] {
    std::string code;
    Map<String, FunctionInfo> functions;
    Map<String, String> sources;
    for (const Module& part : parts) {
      const OpenClModule* own = AsOpenCl(part.get());
      if (own == nullptr)
        throw opencl::Error("ValueError", "Modules of kind opencl were to be joined; one is " +
                                              std::string(part->kind()) + ".");
      code.append(own->Contents().code.data(), own->Contents().code.size());
      for (const auto& [name, info] : own->Contents().functions) functions.Set(name, info);
      for (const auto& [name, text] : own->Sources()) sources.Set(name, text);
    }
    return MakeModule({"cl", std::move(functions), Bytes(std::move(code))}, std::move(sources));
  });
}

// Builds the OpenCL modules in a module and its imports; returns their number.
int64_t Prebuild(const Module& module, opencl::Device& device) {
  int64_t count = 0;
  // The object suffices, because no reference to it leaves this function.
  if (const OpenClModule* own = AsOpenCl(module.get())) {
    own->Prebuild(device);
    ++count;
  }
  for (const tvm::ffi::Any& imported : module->imports())
    count += Prebuild(imported.cast<Module>(), device);
  return count;
}

// Allocates a texture.  Arguments from generated code: device type, device id, two dtype hints,
// scope, number of extents (3), their address (width, height, layers), bits of one texel.
void AllocateTexture(PackedArgs args, tvm::ffi::Any* result) {
  Guard([&] {
    const int64_t* extents = static_cast<const int64_t*>(args[6].cast<void*>());
    const int64_t texel_bits = args[7].cast<int64_t>();
    opencl::ImageShape image;
    image.width = static_cast<size_t>(extents[0]);
    image.height = static_cast<size_t>(extents[1]);
    image.depth = static_cast<size_t>(extents[2]);
    image.channel_type = texel_bits == 128 ? CL_FLOAT : CL_HALF_FLOAT;
    if (args[5].cast<int64_t>() != 3 || (texel_bits != 128 && texel_bits != 64))
      throw opencl::Error("ValueError", "A texture of " + std::to_string(texel_bits) +
                                            " bits a texel was requested; 64 and 128 exist.");
    opencl::Device& device = Devices::Global().Get(args[1].cast<int>());
    *result = static_cast<void*>(GlobalPool().Image(device, image));
  });
}

// Frees a texture.  Arguments from generated code: device type, device id, scope, the texture.
void FreeTexture(PackedArgs args, tvm::ffi::Any* result) {
  GlobalPool().Recycle(static_cast<opencl::Memory*>(args[3].cast<void*>()));
  *result = static_cast<int64_t>(0);
}

// Returns the extent of a tensor's image, as "32x48" or "32x48x2", with " half" for channels of
// 16 bits; for a buffer, an empty text, or "half" if it stores fp32 in 16 bits.
std::string DescribeStorage(const tvm::ffi::Tensor& tensor) {
  const DLTensor* view = tensor.GetDLTensorPtr();
  if (view->device.device_type != kDLOpenCL || !view->data) return "";
  const opencl::Memory& memory = *static_cast<const opencl::Memory*>(view->data);
  if (!memory.is_image) return memory.is_half ? "half" : "";
  const opencl::ImageShape& image = memory.image;
  std::string text = std::to_string(image.width) + "x" + std::to_string(image.height);
  if (image.depth > 1) text += "x" + std::to_string(image.depth);
  return text + (image.channel_type == CL_HALF_FLOAT ? " half" : "");
}

// Open profiler sessions of each device, the innermost last.
class Profiles {
 public:
  void Begin(int device_id) {
    opencl::Device& device = Devices::Global().Get(device_id);
    device.context();  // Initialise now: a profile may end before any launch.
    std::lock_guard<std::mutex> lock(mutex_);
    open_[device_id].push_back(device.profiler().Begin());
  }
  std::string End(int device_id) {
    size_t session;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      std::vector<size_t>& sessions = open_[device_id];
      if (sessions.empty())
        throw opencl::Error("ValueError",
                            "tvmflow.opencl.profile_end was called without "
                            "tvmflow.opencl.profile_begin.");
      session = sessions.back();
      sessions.pop_back();
    }
    return opencl::DescribeTimes(Devices::Global().Get(device_id).profiler().End(session));
  }
  static Profiles& Global() {
    static Profiles* profiles = new Profiles();
    return *profiles;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<size_t>> open_;
};

void Configure(const String& text) {
  namespace json = tvm::ffi::json;
  opencl::Settings settings = opencl::CurrentSettings();
  for (const auto& [key, value] : json::Parse(text).cast<json::Object>()) {
    const std::string name = key.cast<String>();
    if (name == "library") {
      settings.library = value.cast<std::string>();
    } else if (name == "device") {
      settings.device = value.cast<std::string>();
    } else if (name == "search_folders") {
      settings.search_folders.clear();
      for (const tvm::ffi::Any& folder : value.cast<json::Array>())
        settings.search_folders.push_back(folder.cast<std::string>());
    } else if (name == "build_options") {
      settings.build_options = value.cast<std::string>();
    } else if (name == "cache") {
      settings.cache_enabled = value.cast<bool>();
    } else if (name == "cache_folder") {
      settings.cache_folder = value.cast<std::string>();
    } else if (name == "cache_limit_bytes") {
      settings.cache_limit_bytes = static_cast<uint64_t>(value.cast<int64_t>());
    } else {
      throw tvm::ffi::Error("ValueError", "tvmflow.opencl.configure has no setting '" + name + "'.",
                            "");
    }
  }
  opencl::ChangeSettings(settings);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("device_api.opencl",
                  [](PackedArgs, tvm::ffi::Any* result) {
                    *result = static_cast<void*>(
                        static_cast<tvm::runtime::DeviceAPI*>(OpenClDeviceApi::Global()));
                  })
      .def_packed("device_api.opencl.alloc_nd", AllocateTexture)
      .def_packed("device_api.opencl.free_nd", FreeTexture)
      .def_packed("DeviceAllocator.opencl",
                  [](PackedArgs args, tvm::ffi::Any* result) {
                    const auto type =
                        static_cast<tvm::runtime::memory::AllocatorType>(args[1].cast<int>());
                    tvm::runtime::memory::Allocator* allocator = new OpenClAllocator(type);
                    *result = static_cast<void*>(allocator);
                  })
      .def("ffi.Module.create.opencl", CreateModule)
      .def("ffi.Module.load_from_bytes.opencl", LoadModule)
      .def("runtime.timer.opencl",
           [](DLDevice device) {
             return tvm::runtime::Timer(tvm::ffi::make_object<OpenClTimer>(device));
           })
      .def("tvmflow.opencl.configure", Configure)
      .def("tvmflow.opencl.describe",
           [] { return Guard([] { return String(opencl::DescribeDevices()); }); })
      .def("tvmflow.opencl.join", JoinModules)
      .def("tvmflow.share_threads",
           [](const String& path, int count) {
             Guard([&] { ShareThreads(std::string(path), count); });
           })
      .def("tvmflow.opencl.prebuild",
           [](const Module& module, int device_id) {
             return Guard([&] { return Prebuild(module, Devices::Global().Get(device_id)); });
           })
      .def("tvmflow.opencl.storage",
           [](const tvm::ffi::Tensor& tensor) { return String(DescribeStorage(tensor)); })
      .def("tvmflow.opencl.failure", [] { return String(Devices::Global().Failure()); })
      .def("tvmflow.opencl.profile_begin",
           [](int device_id) { Guard([&] { Profiles::Global().Begin(device_id); }); })
      .def("tvmflow.opencl.profile_end",
           [](int device_id) {
             return Guard([&] { return String(Profiles::Global().End(device_id)); });
           })
      .def("tvmflow.opencl.cache_stats", [] { return String(opencl::DescribeCache()); });
}

}  // namespace tvmflow::tvm_plugin
