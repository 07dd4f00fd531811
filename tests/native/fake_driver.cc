// An OpenCL driver without a device, for tests: it is reached through its dispatch table
// only, as drivers are that a loader would open, and does what the environment says.
//
//   FAKE_DEVICES  "platform:device:type,..." the devices, types gpu, accelerator, cpu;
//                 default "Fake:Fake GPU:gpu"
//   FAKE_LOG      file to which every build appends "source" or "binary"
//   FAKE_REFUSE   call that fails: "binary", "queue", "memory", "launch"
//   FAKE_VERSION  the driver's version, default "1.0"
//
// Buffers are host memory and are copied; images do not exist.  A kernel adds one to
// every float of its first buffer.  A program whose source contains "BROKEN" does not
// build, and its log names the line; one that defines the function "helper" twice does
// not either.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../../native/core/api_table.h"

namespace {

void* g_dispatch[160];

// Every handle begins with the dispatch table.
struct Handle {
  void** dispatch = g_dispatch;
};

struct FakePlatform : Handle {
  std::string name;
  std::vector<struct FakeDevice*> devices;
};
struct FakeDevice : Handle {
  std::string name;
  cl_bitfield type = 0;
};
struct FakeMemory : Handle {
  std::vector<char> bytes;
};
struct FakeProgram : Handle {
  std::string source;
  bool from_binary = false;
  std::string log;
};
struct FakeKernel : Handle {
  std::vector<FakeMemory*> arguments;
};
struct FakeEvent : Handle {
  cl_ulong start;
};

template <typename T, typename H>
T* As(H handle) {
  return reinterpret_cast<T*>(handle);
}
template <typename T>
ClObject* Give(T* object) {
  return reinterpret_cast<ClObject*>(static_cast<Handle*>(object));
}

std::string Environment(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value ? value : fallback;
}
bool Refuses(const char* call) { return Environment("FAKE_REFUSE", "") == call; }
void Log(const char* what) {
  const std::string path = Environment("FAKE_LOG", "");
  if (!path.empty()) std::ofstream(path, std::ios::app) << what << "\n";
}

std::vector<FakePlatform*>& Platforms() {
  static std::vector<FakePlatform*> platforms = [] {
    std::vector<FakePlatform*> list;
    std::istringstream text(Environment("FAKE_DEVICES", "Fake:Fake GPU:gpu"));
    for (std::string item; std::getline(text, item, ',');) {
      const size_t first = item.find(':');
      const size_t last = item.rfind(':');
      const std::string name = item.substr(0, first);
      auto found = std::find_if(list.begin(), list.end(),
                                [&](FakePlatform* platform) { return platform->name == name; });
      if (found == list.end()) {
        list.push_back(new FakePlatform);
        found = list.end() - 1;
        (*found)->name = name;
      }
      if (first == std::string::npos) continue;  // a platform without devices
      auto* device = new FakeDevice;
      device->name = item.substr(first + 1, last - first - 1);
      const std::string type = item.substr(last + 1);
      device->type = type == "gpu"   ? CL_DEVICE_TYPE_GPU
                     : type == "cpu" ? CL_DEVICE_TYPE_CPU
                                     : CL_DEVICE_TYPE_ACCELERATOR;
      (*found)->devices.push_back(device);
    }
    return list;
  }();
  return platforms;
}

cl_int Answer(const void* value, size_t bytes, size_t room, void* destination, size_t* size) {
  if (size) *size = bytes;
  if (destination && room >= bytes) std::memcpy(destination, value, bytes);
  return CL_SUCCESS;
}
cl_int Answer(const std::string& text, size_t room, void* destination, size_t* size) {
  return Answer(text.c_str(), text.size() + 1, room, destination, size);
}
template <typename T>
cl_int AnswerNumber(T value, size_t room, void* destination, size_t* size) {
  return Answer(&value, sizeof(value), room, destination, size);
}

cl_int GetPlatformIds(cl_uint room, cl_platform_id* ids, cl_uint* count) {
  auto& platforms = Platforms();
  if (count) *count = static_cast<cl_uint>(platforms.size());
  for (cl_uint i = 0; ids && i < room && i < platforms.size(); ++i) ids[i] = Give(platforms[i]);
  return platforms.empty() ? CL_PLATFORM_NOT_FOUND_KHR : CL_SUCCESS;
}

cl_int GetPlatformInfo(cl_platform_id id, cl_uint what, size_t room, void* value, size_t* size) {
  if (what == CL_PLATFORM_NAME) return Answer(As<FakePlatform>(id)->name, room, value, size);
  if (what == CL_PLATFORM_VERSION) return Answer("OpenCL 1.2 fake", room, value, size);
  return Answer("tests", room, value, size);
}

cl_int GetDeviceIds(cl_platform_id id, cl_bitfield, cl_uint room, cl_device_id* ids,
                    cl_uint* count) {
  auto& devices = As<FakePlatform>(id)->devices;
  if (count) *count = static_cast<cl_uint>(devices.size());
  for (cl_uint i = 0; ids && i < room && i < devices.size(); ++i) ids[i] = Give(devices[i]);
  return devices.empty() ? CL_DEVICE_NOT_FOUND : CL_SUCCESS;
}

cl_int GetDeviceInfo(cl_device_id id, cl_uint what, size_t room, void* value, size_t* size) {
  auto* device = As<FakeDevice>(id);
  switch (what) {
    case CL_DEVICE_NAME:
      return Answer(device->name, room, value, size);
    case CL_DEVICE_TYPE:
      return AnswerNumber(device->type, room, value, size);
    case CL_DEVICE_VERSION:
      return Answer("OpenCL 1.2 fake", room, value, size);
    case CL_DRIVER_VERSION:
      return Answer(Environment("FAKE_VERSION", "1.0"), room, value, size);
    case CL_DEVICE_EXTENSIONS:
      return Answer("cl_khr_fp16 cl_khr_icd", room, value, size);
    case CL_DEVICE_AVAILABLE:
    case CL_DEVICE_COMPILER_AVAILABLE:
      return AnswerNumber(CL_TRUE, room, value, size);
    case CL_DEVICE_IMAGE_SUPPORT:
      return AnswerNumber(CL_FALSE, room, value, size);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
      return AnswerNumber<size_t>(64, room, value, size);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
      return AnswerNumber<cl_ulong>(1 << 20, room, value, size);
    default:
      return -30;  // CL_INVALID_VALUE
  }
}

cl_int Release(ClObject*) { return CL_SUCCESS; }

ClObject* CreateContext(const intptr_t*, cl_uint, const cl_device_id*,
                        void (*)(const char*, const void*, size_t, void*), void*, cl_int* code) {
  *code = CL_SUCCESS;
  return Give(new Handle);
}
ClObject* CreateQueue(cl_context, cl_device_id, cl_bitfield properties, cl_int* code) {
  const bool measures = properties & CL_QUEUE_PROFILING_ENABLE;
  *code = Refuses("queue")                              ? CL_OUT_OF_RESOURCES
          : measures && Refuses("queues that measure") ? CL_INVALID_QUEUE_PROPERTIES
                                                        : CL_SUCCESS;
  return Give(new Handle);
}

ClObject* CreateBuffer(cl_context, cl_bitfield, size_t bytes, void*, cl_int* code) {
  *code = Refuses("memory") ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_SUCCESS;
  auto* memory = new FakeMemory;
  memory->bytes.resize(bytes);
  return Give(memory);
}
cl_int ReleaseMemory(cl_mem memory) {
  delete As<FakeMemory>(memory);
  return CL_SUCCESS;
}
cl_int ReadBuffer(cl_command_queue, cl_mem memory, cl_bool, size_t offset, size_t bytes,
                  void* destination, cl_uint, const cl_event*, cl_event*) {
  std::memcpy(destination, As<FakeMemory>(memory)->bytes.data() + offset, bytes);
  return CL_SUCCESS;
}
cl_int WriteBuffer(cl_command_queue, cl_mem memory, cl_bool, size_t offset, size_t bytes,
                   const void* source, cl_uint, const cl_event*, cl_event*) {
  std::memcpy(As<FakeMemory>(memory)->bytes.data() + offset, source, bytes);
  return CL_SUCCESS;
}
cl_int CopyBuffer(cl_command_queue, cl_mem source, cl_mem destination, size_t source_offset,
                  size_t destination_offset, size_t bytes, cl_uint, const cl_event*, cl_event*) {
  std::memmove(As<FakeMemory>(destination)->bytes.data() + destination_offset,
               As<FakeMemory>(source)->bytes.data() + source_offset, bytes);
  return CL_SUCCESS;
}

ClObject* CreateFromSource(cl_context, cl_uint, const char** text, const size_t* length,
                           cl_int* code) {
  auto* program = new FakeProgram;
  program->source.assign(*text, *length);
  *code = CL_SUCCESS;
  return Give(program);
}
ClObject* CreateFromBinary(cl_context, cl_uint, const cl_device_id*, const size_t* length,
                           const unsigned char** data, cl_int* status, cl_int* code) {
  auto* program = new FakeProgram;
  program->source.assign(reinterpret_cast<const char*>(*data), *length);
  program->from_binary = true;
  *status = *code = Refuses("binary") ? -42 : CL_SUCCESS;  // CL_INVALID_BINARY
  return Give(program);
}
cl_int Build(cl_program handle, cl_uint, const cl_device_id*, const char*,
             void (*)(cl_program, void*), void*) {
  auto* program = As<FakeProgram>(handle);
  Log(program->from_binary ? "binary" : "source");
  size_t position = program->source.find("BROKEN");
  const size_t helper = program->source.find("int helper(");
  if (position == std::string::npos && helper != std::string::npos)
    position = program->source.find("int helper(", helper + 1);
  if (position == std::string::npos) return CL_SUCCESS;
  const auto line = 1 + std::count(program->source.begin(),
                                   program->source.begin() + static_cast<long>(position), '\n');
  program->log = "<source>:" + std::to_string(line) + ":7: error: this does not compile\n";
  return -11;  // CL_BUILD_PROGRAM_FAILURE
}
cl_int GetBuildInfo(cl_program program, cl_device_id, cl_uint, size_t room, void* value,
                    size_t* size) {
  return Answer(As<FakeProgram>(program)->log, room, value, size);
}
cl_int GetProgramInfo(cl_program program, cl_uint what, size_t, void* value, size_t*) {
  const std::string& source = As<FakeProgram>(program)->source;
  if (what == CL_PROGRAM_BINARY_SIZES) {
    *static_cast<size_t*>(value) = source.size();
  } else {
    std::memcpy(*static_cast<unsigned char**>(value), source.data(), source.size());
  }
  return CL_SUCCESS;
}
cl_int ReleaseProgram(cl_program program) {
  delete As<FakeProgram>(program);
  return CL_SUCCESS;
}

ClObject* CreateKernel(cl_program program, const char* name, cl_int* code) {
  const bool exists = As<FakeProgram>(program)->source.find(name) != std::string::npos;
  *code = exists ? CL_SUCCESS : -46;  // CL_INVALID_KERNEL_NAME
  return Give(new FakeKernel);
}
cl_int ReleaseKernel(cl_kernel kernel) {
  delete As<FakeKernel>(kernel);
  return CL_SUCCESS;
}
cl_int SetArgument(cl_kernel kernel, cl_uint index, size_t bytes, const void* value) {
  auto& arguments = As<FakeKernel>(kernel)->arguments;
  if (arguments.size() <= index) arguments.resize(index + 1);
  if (bytes == sizeof(FakeMemory*) && value) std::memcpy(&arguments[index], value, bytes);
  return CL_SUCCESS;
}
cl_int WorkGroupInfo(cl_kernel, cl_device_id, cl_uint, size_t room, void* value, size_t* size) {
  return AnswerNumber<size_t>(64, room, value, size);
}
cl_int Launch(cl_command_queue, cl_kernel kernel, cl_uint dimensions, const size_t*,
              const size_t* global, const size_t* local, cl_uint, const cl_event*,
              cl_event* event) {
  if (Refuses("launch")) return CL_INVALID_WORK_GROUP_SIZE;
  size_t group = 1;
  for (cl_uint i = 0; i < dimensions; ++i) {
    group *= local[i];
    if (local[i] == 0 || global[i] % local[i] != 0) return CL_INVALID_WORK_GROUP_SIZE;
  }
  if (group > 64) return CL_INVALID_WORK_GROUP_SIZE;
  auto& arguments = As<FakeKernel>(kernel)->arguments;
  if (!arguments.empty() && arguments[0]) {
    auto* values = reinterpret_cast<float*>(arguments[0]->bytes.data());
    for (size_t i = 0; i < arguments[0]->bytes.size() / sizeof(float); ++i) values[i] += 1;
  }
  static cl_ulong clock = 0;
  if (event) {
    auto* fake = new FakeEvent;
    fake->start = clock += 1000;
    *event = Give(fake);
  }
  return CL_SUCCESS;
}
cl_int EventTime(cl_event event, cl_uint what, size_t room, void* value, size_t* size) {
  if (Refuses("times")) return CL_PROFILING_INFO_NOT_AVAILABLE;
  const cl_ulong start = As<FakeEvent>(event)->start;
  return AnswerNumber<cl_ulong>(what == CL_PROFILING_COMMAND_END ? start + 2500 : start, room,
                                value, size);
}
cl_int ReleaseEvent(cl_event event) {
  delete As<FakeEvent>(event);
  return CL_SUCCESS;
}
cl_int Wait(cl_command_queue) { return CL_SUCCESS; }
cl_int Unsupported() { return -59; }  // CL_INVALID_OPERATION

template <typename F>
void* Address(F* function) {
  return reinterpret_cast<void*>(function);
}

// The table is filled when the library is loaded.
const bool g_ready = [] {  // NOLINT(bugprone-throwing-static-initialization)
  std::fill(std::begin(g_dispatch), std::end(g_dispatch), Address(Unsupported));
  const std::map<int, void*> entries = {{0, Address(GetPlatformIds)},
                                        {1, Address(GetPlatformInfo)},
                                        {2, Address(GetDeviceIds)},
                                        {3, Address(GetDeviceInfo)},
                                        {4, Address(CreateContext)},
                                        {7, Address(Release)},
                                        {9, Address(CreateQueue)},
                                        {11, Address(Release)},
                                        {14, Address(CreateBuffer)},
                                        {18, Address(ReleaseMemory)},
                                        {26, Address(CreateFromSource)},
                                        {27, Address(CreateFromBinary)},
                                        {29, Address(ReleaseProgram)},
                                        {30, Address(Build)},
                                        {32, Address(GetProgramInfo)},
                                        {33, Address(GetBuildInfo)},
                                        {34, Address(CreateKernel)},
                                        {37, Address(ReleaseKernel)},
                                        {38, Address(SetArgument)},
                                        {40, Address(WorkGroupInfo)},
                                        {44, Address(ReleaseEvent)},
                                        {45, Address(EventTime)},
                                        {46, Address(Wait)},
                                        {47, Address(Wait)},
                                        {48, Address(ReadBuffer)},
                                        {49, Address(WriteBuffer)},
                                        {50, Address(CopyBuffer)},
                                        {59, Address(Launch)}};
  for (auto [index, address] : entries) g_dispatch[index] = address;
  return true;
}();

}  // namespace

extern "C" __attribute__((visibility("default"))) void* clGetExtensionFunctionAddress(
    const char* name) {
  return std::strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? Address(GetPlatformIds) : nullptr;
}
