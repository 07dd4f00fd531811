// Threads of a block as fibers, one at a time: between two barriers each runs on alone, in an
// order that `CUDA_HOST_ORDER` gives (forward, reverse or shuffle). A kernel without races
// gives the same bits in any order.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda_host.h"

extern "C" {
uint3 threadIdx, blockIdx, blockDim, gridDim;
}

namespace cuda_host {

constexpr size_t kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// An asynchronous copy that is not done before it is waited for: a missing wait leaves the target as
// it was. Others are done at once, so that what is still read there is lost: see `DoneAtOnce`.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool zeros;
};

struct Thread {
  ucontext_t context;
  uint3 index;
  State state;
  int line;                              // Of the barrier at which it waits.
  int barriers;                          // Of the whole block, met so far.
  alignas(16) unsigned char posted[16];  // What it shows to its warp.
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> groups;
};

struct Grid {
  const char* name = "";
  const std::function<void()>* body = nullptr;
  size_t count = 0;  // Of threads in a block.
  std::vector<std::unique_ptr<Thread>> threads;
  char* stacks = nullptr;
  size_t current = 0;
  ucontext_t scheduler;
  std::unique_ptr<char[]> dynamic;
  size_t dynamic_bytes = 0;
  std::vector<std::pair<void*, size_t>> shared;

  Thread& self() { return *threads[current]; }
};

inline Grid grid;

void Fail(const char* what) {
  std::fprintf(stderr, "CUDA on the host: %s: %s\n", grid.name, what);
  std::abort();
}

// Static shared memory of a library's kernels.
Shared::Shared(void* data, size_t bytes) {
  grid.shared.emplace_back(data, bytes);
  std::memset(data, 0xFF, bytes);
}

void* DynamicShared() { return grid.dynamic.get(); }

size_t Lane() { return grid.current % kWarp; }

// A block must not find what the one before it left: all bits set is a NaN in any precision.
inline void ForgetShared() {
  for (const auto& [data, bytes] : grid.shared) std::memset(data, 0xFF, bytes);
  if (grid.dynamic) std::memset(grid.dynamic.get(), 0xFF, grid.dynamic_bytes);
}

inline void Suspend(State state, int line) {
  Thread& self = grid.self();
  self.state = state;
  self.line = line;
  swapcontext(&self.context, &grid.scheduler);
}

void WaitForBlock(int line) {
  ++grid.self().barriers;
  Suspend(State::kAtBlockBarrier, line);
}

void WaitForWarp(int line) { Suspend(State::kAtWarpBarrier, line); }

void Exchange(void* value, size_t bytes, size_t lane, int line) {
  const size_t first = grid.current / kWarp * kWarp;
  if (bytes > sizeof(Thread::posted)) Fail("a value that lanes exchange is too large");
  std::memcpy(grid.self().posted, value, bytes);
  WaitForWarp(line);
  if (lane < kWarp && first + lane < grid.count)
    std::memcpy(value, grid.threads[first + lane]->posted, bytes);
  WaitForWarp(line);
}

inline std::string_view WantedOrder() {
  const char* variable = std::getenv("CUDA_HOST_ORDER");
  return variable ? variable : "forward";
}

inline std::mt19937& Random() {
  static std::mt19937 random(20);
  return random;
}

// Whether an asynchronous copy is done when it is asked for: never, always, or either way.
inline bool DoneAtOnce() {
  const std::string_view wanted = WantedOrder();
  return wanted == "reverse" || (wanted == "shuffle" && Random()() % 2);
}

inline void Do(const Copy& copy) {
  copy.zeros ? std::memset(copy.to, 0, copy.bytes) : std::memcpy(copy.to, copy.from, copy.bytes);
}

void CopyAsync(void* to, const void* from, size_t bytes, bool zeros) {
  if (reinterpret_cast<uintptr_t>(to) % bytes ||
      (!zeros && reinterpret_cast<uintptr_t>(from) % bytes))
    Fail("an asynchronous copy is not aligned");
  const Copy copy{to, from, bytes, zeros};
  const bool done = DoneAtOnce();
  if (done) Do(copy);
  // What is done stays to be waited for.
  grid.self().copies.push_back(done ? Copy{to, to, 0, false} : copy);
}

void CommitGroup() { grid.self().groups.push_back(std::move(grid.self().copies)); }

// Completes all groups but the `left` newest.
void WaitGroup(size_t left) {
  for (auto& groups = grid.self().groups; groups.size() > left; groups.pop_front()) {
    for (const Copy& copy : groups.front()) Do(copy);
  }
}

void MultiplyAccumulate(int m, int n, int k, const float* left, const float* right, float* sums) {
  for (int row = 0; row < m; ++row)
    for (int i = 0; i < k; ++i)
      for (int column = 0; column < n; ++column)
        sums[row * n + column] += left[row * k + i] * right[i * n + column];
}

inline void RunThread() {
  (*grid.body)();
  Thread& self = grid.self();
  bool copies = !self.copies.empty();
  for (const auto& group : self.groups) copies |= !group.empty();
  if (copies) Fail("a thread ends with asynchronous copies that nobody has waited for");
  self.groups.clear();
  Suspend(State::kDone, 0);
}

inline std::vector<size_t> Order(size_t count) {
  const std::string_view wanted = WantedOrder();
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  if (wanted == "reverse") std::reverse(order.begin(), order.end());
  if (wanted == "shuffle") std::shuffle(order.begin(), order.end(), Random());
  return order;
}

inline uint3 Position(size_t number, uint3 extent) {
  const unsigned n = static_cast<unsigned>(number);
  return {n % extent.x, n / extent.x % extent.y, n / extent.x / extent.y};
}

// Lets go the threads in [begin, end), if all that live wait at the same place.
inline bool Release(size_t begin, size_t end, State state) {
  int line = 0;
  for (size_t i = begin; i < end; ++i) {
    const Thread& thread = *grid.threads[i];
    if (thread.state == State::kDone) continue;
    if (thread.state != state) return false;
    if (line && line != thread.line) Fail("threads wait at different barriers");
    line = thread.line;
  }
  if (!line) return false;
  for (size_t i = begin; i < end; ++i)
    if (grid.threads[i]->state == state) grid.threads[i]->state = State::kReady;
  return true;
}

inline void StartFibers() {
  if (!grid.stacks)
    grid.stacks = static_cast<char*>(mmap(nullptr, 1024 * kStackBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  while (grid.threads.size() < grid.count) grid.threads.push_back(std::make_unique<Thread>());
  for (size_t i = 0; i < grid.count; ++i) {
    Thread& thread = *grid.threads[i];
    thread.state = State::kReady;
    thread.barriers = 0;
    thread.index = Position(i, blockDim);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = grid.stacks + i * kStackBytes;
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, RunThread, 0);
  }
}

inline void Resume(size_t number) {
  Thread& thread = *grid.threads[number];
  if (thread.state != State::kReady) return;
  threadIdx = thread.index;
  grid.current = number;
  swapcontext(&grid.scheduler, &thread.context);
}

// Runs the warps one after the other, each as far as it comes without the others.
inline void RunBlockOfFibers() {
  StartFibers();
  for (bool alive = true; alive;) {
    for (size_t warp : Order((grid.count + kWarp - 1) / kWarp)) {
      const size_t begin = warp * kWarp, end = std::min(begin + kWarp, grid.count);
      do {
        for (size_t lane : Order(end - begin)) Resume(begin + lane);
      } while (Release(begin, end, State::kAtWarpBarrier));
    }
    alive = std::any_of(grid.threads.begin(), grid.threads.begin() + grid.count,
                        [](const auto& thread) { return thread->state != State::kDone; });
    if (alive && !Release(0, grid.count, State::kAtBlockBarrier))
      Fail("some threads wait at a barrier that others do not reach");
  }
  for (size_t i = 1; i < grid.count; ++i)
    if (grid.threads[i]->barriers != grid.threads[0]->barriers)
      Fail("some threads end without a barrier that others wait at");
}

// Runs `body` for every thread of every block. Kernels without barriers need no fibers.
inline void RunGrid(const char* name, const size_t* extents, bool cooperates,
                    const std::function<void()>& body) {
  const auto extent = [&](int i) { return static_cast<unsigned>(extents[i]); };
  gridDim = {extent(0), extent(1), extent(2)};
  blockDim = {extent(3), extent(4), extent(5)};
  grid.name = name;
  grid.body = &body;
  grid.count = extents[3] * extents[4] * extents[5];
  if (grid.count > 1024 || extents[5] > 64) Fail("a block has too many threads");
  if (extents[1] > 65535 || extents[2] > 65535) Fail("a grid has too many blocks");
  grid.dynamic_bytes = extents[6];
  grid.dynamic.reset(extents[6] ? new char[extents[6]] : nullptr);
  for (size_t block : Order(extents[0] * extents[1] * extents[2])) {
    blockIdx = Position(block, gridDim);
    ForgetShared();
    if (cooperates) {
      RunBlockOfFibers();
      continue;
    }
    for (size_t i : Order(grid.count)) {
      threadIdx = Position(i, blockDim);
      body();
    }
  }
}

}  // namespace cuda_host
