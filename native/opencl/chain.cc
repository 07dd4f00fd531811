#include "chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "chain_source.h"

namespace tvmflow::opencl {
namespace {

// Size of the shared memory for steps and counters, enough for several chains, because one may run
// while the next is recorded.
constexpr size_t kArenaBytes = size_t{1} << 20;
// Maximum number of steps in a chain.
constexpr uint32_t kMostSteps = 512;
// Number of chunks into which a work-group's groups of a step are divided.
constexpr size_t kChunks = 8;

// Rounds bytes up to whole cache lines.
size_t WholeLines(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

bool Chain::Add(Kernel& driver, int member, size_t groups, const Argument* arguments,
                size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Memory* memory = arguments[i].memory;
    if (memory && (!memory->address || memory->device != &device_)) return false;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (driver_ != &driver || count_.load(std::memory_order_relaxed) >= kMostSteps) FlushLocked();
  driver_ = &driver;
  const size_t parts = std::max<size_t>(device_.info().compute_units, 1);
  steps_.push_back(static_cast<uint32_t>(member) | static_cast<uint64_t>(count) << 32);
  steps_.push_back(groups);
  steps_.push_back(std::max<size_t>(groups / (parts * kChunks), 1));
  for (size_t i = 0; i < count; ++i) {
    const Argument& argument = arguments[i];
    uint64_t word = 0;
    if (argument.memory) {
      word = reinterpret_cast<uint64_t>(argument.memory->address);
    } else if (!argument.is_memory) {
      std::memcpy(&word, argument.value, argument.bytes);
    }
    steps_.push_back(word);
  }
  most_groups_ = std::max(most_groups_, groups);
  count_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Chain::Flush() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  FlushLocked();
}

void Chain::FlushLocked() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == 0 || launching_) return;
  launching_ = true;
  // These launches are not tried again, even if the driver fails.  Other threads see an empty chain
  // only after it is in the queue.
  struct Ending {
    Chain& chain;
    ~Ending() {
      chain.steps_.clear();
      chain.most_groups_ = 0;
      chain.launching_ = false;
      chain.count_.store(0, std::memory_order_release);
    }
  } ending{*this};
  const size_t parts =
      std::clamp<size_t>(device_.info().compute_units, 1, std::max<size_t>(most_groups_, 1));
  const size_t step_bytes = steps_.size() * sizeof(uint64_t);
  const size_t counter_bytes = count * (parts + 1) * kCounterStride * sizeof(int);
  const size_t first = WholeLines(step_bytes);
  char* const shared = Reserve(first + counter_bytes);
  std::memcpy(shared, steps_.data(), step_bytes);
  std::memset(shared + first, 0, counter_bytes);
  const uint64_t addresses[2] = {reinterpret_cast<uint64_t>(shared),
                                 reinterpret_cast<uint64_t>(shared + first)};
  const cl_int steps = static_cast<cl_int>(count);
  const Argument arguments[3] = {{&addresses[0], sizeof(uint64_t), nullptr, false},
                                 {&addresses[1], sizeof(uint64_t), nullptr, false},
                                 {&steps, sizeof(steps), nullptr, false}};
  WorkSize size;
  size.dimensions = 1;
  size.global[0] = parts;
  size.local[0] = 1;
  driver_->Launch(arguments, 3, size);
}

char* Chain::Reserve(size_t bytes) {
  if (used_bytes_ + bytes > arena_bytes_) {
    // Chains that are still running read the old memory.
    if (arena_) {
      Check(device_.api().clFinish(device_.queue()),
            [&] { return "Waiting for device " + device_.Describe(); });
    }
    used_bytes_ = 0;
    if (bytes > arena_bytes_) {
      if (arena_) device_.api().clSVMFree(device_.context(), arena_);
      arena_bytes_ = std::max(bytes, kArenaBytes);
      arena_ = static_cast<char*>(device_.AllocateShared(arena_bytes_));
      if (!arena_) {
        arena_bytes_ = 0;
        throw Error("DeviceError", "Allocating " + std::to_string(bytes) +
                                       " bytes of shared memory on device " + device_.Describe() +
                                       " failed.");
      }
    }
  }
  return arena_ + std::exchange(used_bytes_, used_bytes_ + WholeLines(bytes));
}

}  // namespace tvmflow::opencl
