#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "allocated.h"
#include "chain.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

template <typename T>
T Query(const tf_opencl& api, cl_device_id id, cl_uint what) {
  // Optional queries that a driver does not know return zero.
  T value{};
  if (api.clGetDeviceInfo(id, what, sizeof(value), &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

// Returns a text that clGetDeviceInfo or clGetPlatformInfo answers, without spaces at its end.
std::string QueryText(cl_int (*ask)(ClObject*, cl_uint, size_t, void*, size_t*), ClObject* object,
                      cl_uint what) {
  const Allocated<char> found(tf_query_text(ask, object, what));
  std::string text = found ? found.get() : "";
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// Returns the number of work-items that run in lockstep; 1 if no extension reports it.
cl_uint QueryWarpSize(const tf_opencl& api, cl_device_id id, const DeviceInfo& info) {
  if (info.Has("cl_nv_device_attribute_query"))
    return std::max<cl_uint>(1, Query<cl_uint>(api, id, CL_DEVICE_WARP_SIZE_NV));
  if (info.Has("cl_amd_device_attribute_query"))
    return std::max<cl_uint>(1, Query<cl_uint>(api, id, CL_DEVICE_WAVEFRONT_WIDTH_AMD));
  return 1;
}

// Returns the path of the library that has the functions.
std::string LibraryPath(const tf_device& core) {
  Dl_info file{};
  if (dladdr(reinterpret_cast<const void*>(core.api.clGetPlatformInfo), &file) && file.dli_fname)
    return file.dli_fname;
  return core.library;
}

DeviceInfo QueryInfo(const tf_device& core) {
  const tf_opencl& api = core.api;
  const cl_device_id id = core.id;
  const auto text = [&](cl_uint what) { return QueryText(api.clGetDeviceInfo, id, what); };
  DeviceInfo info;
  info.platform = QueryText(api.clGetPlatformInfo, core.platform, CL_PLATFORM_NAME);
  info.platform_version = QueryText(api.clGetPlatformInfo, core.platform, CL_PLATFORM_VERSION);
  info.library = LibraryPath(core);
  info.name = text(CL_DEVICE_NAME);
  info.vendor = text(CL_DEVICE_VENDOR);
  info.version = text(CL_DEVICE_VERSION);
  // The specification fixes the form "OpenCL <major>.<minor> <anything>".
  std::istringstream version(info.version);
  std::string word;
  version >> word >> info.opencl_version;
  info.opencl_c_version = text(CL_DEVICE_OPENCL_C_VERSION);
  info.driver_version = text(CL_DRIVER_VERSION);
  std::istringstream extensions(text(CL_DEVICE_EXTENSIONS));
  while (extensions >> word) info.extensions.push_back(word);
  std::sort(info.extensions.begin(), info.extensions.end());
  info.compute_units = Query<cl_uint>(api, id, CL_DEVICE_MAX_COMPUTE_UNITS);
  info.clock_mhz = Query<cl_uint>(api, id, CL_DEVICE_MAX_CLOCK_FREQUENCY);
  info.native_vector_width_float = Query<cl_uint>(api, id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
  info.warp_size = QueryWarpSize(api, id, info);
  info.local_memory_bytes = Query<cl_ulong>(api, id, CL_DEVICE_LOCAL_MEM_SIZE);
  info.global_cache_bytes = Query<cl_ulong>(api, id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
  info.svm_capabilities = Query<cl_bitfield>(api, id, CL_DEVICE_SVM_CAPABILITIES);
  if (core.largest_image[0])
    info.image_pitch_alignment = Query<cl_uint>(api, id, CL_DEVICE_IMAGE_PITCH_ALIGNMENT);
  return info;
}

}  // namespace

bool DeviceInfo::Has(const std::string& extension) const {
  return std::binary_search(extensions.begin(), extensions.end(), extension);
}

Device::Device(const tf_device& core) : core_(core), info_(QueryInfo(core)) {}

Device::~Device() = default;

std::string Device::Describe() const {
  return "'" + info_.name + "' (opencl:" + std::to_string(index_) + ", " + info_.platform + ")";
}

void Device::CreateQueue() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ready_.load(std::memory_order_relaxed)) return;
  cl_int code = CL_SUCCESS;
  const intptr_t properties[] = {CL_CONTEXT_PLATFORM, reinterpret_cast<intptr_t>(core_.platform),
                                 0};
  if (!context_) {
    context_ = api().clCreateContext(properties, 1, &core_.id, nullptr, nullptr, &code);
    Check(code, [&] { return "Creating a context on device " + Describe(); });
  }
  queue_ = api().clCreateCommandQueue(context_, core_.id, CL_QUEUE_PROFILING_ENABLE, &code);
  if (code == CL_INVALID_QUEUE_PROPERTIES || code == CL_INVALID_VALUE) {
    // A driver that cannot measure kernels can still run them.
    measures_kernels_ = false;
    queue_ = api().clCreateCommandQueue(context_, core_.id, 0, &code);
  }
  Check(code, [&] { return "Creating a command queue on device " + Describe(); });
  const bool shares = tf_is_cpu(&core_) && api().clSVMAlloc && api().clSVMFree &&
                      info_.svm_capabilities & CL_DEVICE_SVM_FINE_GRAIN_BUFFER;
  if (shares && CurrentSettings().chains) chain_ = std::make_unique<Chain>(*this);
  ready_.store(true, std::memory_order_release);
}

void Device::Synchronise() {
  if (!ready_.load(std::memory_order_acquire)) return;  // Nothing was ever queued.
  Check(api().clFinish(queue()), [&] { return "Waiting for device " + Describe(); });
  NoteSynchronised();
}

void Device::FlushChain() {
  if (!chain_->is_empty()) chain_->Flush();
}

bool Device::LaunchChain() noexcept {
  try {
    queue();
    return true;
  } catch (const Error&) {
    return false;
  }
}

void* Device::AllocateShared(size_t bytes) {
  return api().clSVMAlloc(context(), CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER, bytes, 0);
}

void Device::FreeShared(void* address) {
  LaunchChain();
  api().clFinish(queue_);
  api().clSVMFree(context_, address);
}

void Device::Abandon() { tf_device_abandon(&core_); }

void Device::CallWhenSynchronised(SynchronisationTask* task) {
  std::lock_guard<std::mutex> lock(tasks_mutex_);
  tasks_.push_back(task);
  has_tasks_.store(true, std::memory_order_relaxed);
}

void Device::Forget(SynchronisationTask* task) {
  std::lock_guard<std::mutex> lock(tasks_mutex_);
  std::erase(tasks_, task);
}

void Device::RunTasks() {
  std::lock_guard<std::mutex> lock(tasks_mutex_);
  has_tasks_.store(false, std::memory_order_relaxed);
  for (SynchronisationTask* task : std::exchange(tasks_, {})) task->OnSynchronised();
}

}  // namespace tvmflow::opencl
