#include "program.h"

#include "../core/host_features.h"
#include "chain.h"
#include "chain_source.h"
#include "settings.h"

namespace tvmflow::opencl {
namespace {

// Allow fusing a * b + c, which is faster on every GPU and not less exact.  Options that change
// the meaning of NaN or infinity, or make functions less exact, are not used.
constexpr const char* kBuildOptions = "-cl-mad-enable";

std::string BuildOptions(const Device& device) {
  std::string options = kBuildOptions;
  // Functions in the kernels' source test this macro (tvmflow/codegen/dot_products.py).
  if (tf_is_cpu(device.core()) && HostHasAvx512Vnni()) options += " -DTVMFLOW_AVX512_VNNI";
  const std::string extra = CurrentSettings().build_options;
  return extra.empty() ? options : options + " " + extra;
}

}  // namespace

Program::Program(std::vector<KernelSource> kernels)
    : kernels_(std::move(kernels)),
      ready_(std::make_unique<std::array<std::atomic<Kernel*>, kReadySlots>[]>(kernels_.size())) {}

Program::~Program() {
  for (auto& [device, state] : devices_) {
    if (state.driver) device->LaunchChain();
    state.kernels.clear();
    state.driver.reset();
  }
}

Program::OnDevice& Program::StateOf(Device& device) {
  OnDevice& state = devices_[&device];
  if (state.kernels.empty()) {
    state.kernels.resize(kernels_.size());
    state.single.resize(kernels_.size());
  }
  return state;
}

bool Program::Chained(size_t index, Device& device, size_t groups, const Argument* arguments,
                      size_t count) {
  if (device.profiler().active()) return false;
  Kernel* const driver = DriverFor(device);
  if (!driver || members_[index] < 0) return false;
  return device.chain()->Add(*driver, members_[index], groups, arguments, count);
}

Kernel* Program::DriverFor(Device& device) {
  const size_t slot = static_cast<size_t>(device.index());
  if (slot >= kReadySlots || !device.chain()) return nullptr;
  ChainOf& chain = chains_[slot];
  if (!chain.tried.load(std::memory_order_acquire)) [[unlikely]] {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!chain.tried.load(std::memory_order_relaxed)) chain.driver = BuildChain(device);
    chain.tried.store(true, std::memory_order_release);
  }
  return chain.driver;
}

Kernel* Program::BuildChain(Device& device) {
  ChainSource source = MakeChainSource(kernels_);
  if (members_.empty()) members_ = std::move(source.members);
  if (source.text.empty()) return nullptr;
  OnDevice& state = StateOf(device);
  // Chains need functions of OpenCL C 2.0 or, if the device has that, 3.0.
  const bool is_3 = device.info().opencl_version >= "3";
  const std::string options = BuildOptions(device) + " -cl-std=" + (is_3 ? "CL3.0" : "CL2.0");
  try {
    state.chain = Built(device, {kChainKernel}, source.text, options);
  } catch (const Error& error) {
    if (error.kind() != "KernelBuildError") throw;
    // Build each kernel separately instead; its error then names the fault.
    return nullptr;
  }
  state.driver =
      std::make_unique<Kernel>(device, state.chain->handle(), kChainKernel, state.chain.get());
  return state.driver.get();
}

void Program::Prebuild(Device& device) {
  Kernel* const driver = DriverFor(device);
  std::lock_guard<std::mutex> lock(mutex_);
  OnDevice& state = StateOf(device);
  if (driver) state.chain->Complete();
  for (size_t i = 0; i < kernels_.size(); ++i)
    if (!driver || members_[i] < 0) BuildProgram(i, device, state).Complete();
}

Kernel& Program::Build(size_t index, Device& device) {
  std::lock_guard<std::mutex> lock(mutex_);
  OnDevice& state = StateOf(device);
  std::unique_ptr<Kernel>& kernel = state.kernels[index];
  if (!kernel) {
    ProgramBuild& build = BuildProgram(index, device, state);
    kernel = std::make_unique<Kernel>(device, build.handle(), kernels_[index].name, &build);
  }
  const size_t slot = static_cast<size_t>(device.index());
  if (slot < kReadySlots) ready_[index][slot].store(kernel.get(), std::memory_order_release);
  return *kernel;
}

ProgramBuild& Program::BuildProgram(size_t index, Device& device, OnDevice& state) {
  const std::string options = BuildOptions(device);
  if (!state.whole && !state.whole_failed && kernels_.size() > 1) {
    std::string source;
    std::vector<std::string> names;
    for (const KernelSource& kernel : kernels_) {
      source += kernel.text;
      if (!source.empty() && source.back() != '\n') source += '\n';
      names.push_back(kernel.name);
    }
    try {
      state.whole = Built(device, names, source, options);
    } catch (const Error& error) {
      if (error.kind() != "KernelBuildError") throw;
      state.whole_failed = true;
    }
  }
  if (state.whole) return *state.whole;
  const KernelSource& kernel = kernels_[index];
  if (!state.single[index])
    state.single[index] = Built(device, {kernel.name}, kernel.text, options);
  return *state.single[index];
}

}  // namespace tvmflow::opencl
