// Threads of a block as fibers, one at a time: between two barriers each runs on alone, in an
// order that `CUDA_HOST_ORDER` gives (forward, reverse or shuffle). A kernel without races
// gives the same bits in any order.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

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

#include "cuda_types.h"

namespace cuda_host {

constexpr size_t kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;

// Ends the process: what is wrong with a kernel may not become an exception between fibers.
template <typename... A>
[[noreturn]] inline void Fail(const char* format, A... arguments) {
  std::fputs("CUDA on the host: ", stderr);
  std::fprintf(stderr, format, arguments...);
  std::fputc('\n', stderr);
  std::abort();
}

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// An asynchronous copy, done when it is waited for: a missing wait leaves the target as it was.
struct Copy {
  void* to;
  const void* from;
  size_t bytes, used;  // The rest is filled with zeros.
};

struct Thread {
  ucontext_t context;
  uint3 index;
  State state;
  int line;                              // Of the barrier at which it waits.
  int barriers;                          // Of the whole block, met so far.
  alignas(16) unsigned char posted[64];  // What it shows to its warp.
  std::vector<Copy> copies;
  std::deque<std::vector<Copy>> groups;
};

struct Shared {
  void* data;
  size_t bytes;
};

struct Grid {
  const char* name = "";
  std::vector<std::unique_ptr<Thread>> threads;
  char* stacks = nullptr;
  size_t stacks_count = 0;
  Thread* current = nullptr;
  size_t current_number = 0, count = 0;
  ucontext_t scheduler;
  const std::function<void()>* body = nullptr;
  std::unique_ptr<char[]> dynamic;
  size_t dynamic_bytes = 0;
  std::vector<Shared> shared;
};

inline Grid grid;

}  // namespace cuda_host

inline uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_host {

// Static shared memory: a block must not find what the one before it left there.
struct RegisterShared {
  RegisterShared(void* data, size_t bytes) {
    grid.shared.push_back({data, bytes});
    std::memset(data, 0xFF, bytes);
  }
};

inline void ForgetShared() {
  // All bits set is a NaN in every precision.
  for (const Shared& shared : grid.shared) std::memset(shared.data, 0xFF, shared.bytes);
  if (grid.dynamic) std::memset(grid.dynamic.get(), 0xFF, grid.dynamic_bytes);
}

inline void* DynamicShared() { return grid.dynamic.get(); }

inline void Wait(State state, int line) {
  Thread* self = grid.current;
  self->state = state;
  self->line = line;
  self->barriers += state == State::kAtBlockBarrier;
  swapcontext(&self->context, &grid.scheduler);
}

inline void RunThread() {
  (*grid.body)();
  Thread* self = grid.current;
  if (!self->copies.empty() || !self->groups.empty())
    Fail("%s: a thread ended with asynchronous copies that nobody waited for", grid.name);
  self->state = State::kDone;
  swapcontext(&self->context, &grid.scheduler);
}

inline std::vector<size_t> Order(size_t count) {
  static std::mt19937 random(20);
  const char* wanted = std::getenv("CUDA_HOST_ORDER");
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  if (wanted && std::string_view(wanted) == "reverse") {
    std::reverse(order.begin(), order.end());
  } else if (wanted && std::string_view(wanted) == "shuffle") {
    std::shuffle(order.begin(), order.end(), random);
  }
  return order;
}

inline uint3 Position(size_t number, uint3 extent) {
  const unsigned n = static_cast<unsigned>(number);
  return {n % extent.x, n / extent.x % extent.y, n / extent.x / extent.y};
}

// Lets go all threads in [begin, end) that wait, if all that live wait there.
inline bool Release(size_t begin, size_t end, State state) {
  int line = 0;
  for (size_t i = begin; i < end; ++i) {
    const Thread& thread = *grid.threads[i];
    if (thread.state == State::kDone) continue;
    if (thread.state != state) return false;
    if (line && line != thread.line)
      Fail("%s: threads wait at different barriers, in lines %d and %d of its source", grid.name,
           line, thread.line);
    line = thread.line;
  }
  if (!line) return false;
  for (size_t i = begin; i < end; ++i)
    if (grid.threads[i]->state == state) grid.threads[i]->state = State::kReady;
  return true;
}

inline void RunBlockOfFibers() {
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
  while (true) {
    bool waits = false;
    for (size_t i : Order(grid.count)) {
      Thread& thread = *grid.threads[i];
      if (thread.state == State::kReady) {
        threadIdx = thread.index;
        grid.current = &thread;
        grid.current_number = i;
        swapcontext(&grid.scheduler, &thread.context);
      }
      waits |= thread.state != State::kDone;
    }
    if (!waits) break;
    bool released = Release(0, grid.count, State::kAtBlockBarrier);
    for (size_t warp = 0; warp < grid.count; warp += kWarp)
      released |= Release(warp, std::min(warp + kWarp, grid.count), State::kAtWarpBarrier);
    if (!released) Fail("%s: some threads wait at a barrier that others do not reach", grid.name);
  }
  for (size_t i = 1; i < grid.count; ++i)
    if (grid.threads[i]->barriers != grid.threads[0]->barriers)
      Fail("%s: some threads end without a barrier that others wait at", grid.name);
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
  if (grid.count > 1024 || extents[5] > 64)
    Fail("%s: a block of %zu x %zu x %zu threads is too large", name, extents[3], extents[4],
         extents[5]);
  if (extents[1] > 65535 || extents[2] > 65535)
    Fail("%s: a grid of %zu x %zu x %zu blocks is too large", name, extents[0], extents[1],
         extents[2]);
  grid.dynamic_bytes = extents[6];
  grid.dynamic.reset(extents[6] ? new char[extents[6]] : nullptr);
  if (cooperates && grid.stacks_count < grid.count) {
    grid.stacks_count = grid.count;
    grid.stacks = static_cast<char*>(mmap(nullptr, grid.count * kStackBytes, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    while (grid.threads.size() < grid.count) grid.threads.push_back(std::make_unique<Thread>());
  }
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

// What lane `lane` of the calling thread's warp posts at the same place.
template <typename T>
T Exchange(T value, size_t lane, int line) {
  static_assert(sizeof(T) <= sizeof(Thread::posted));
  const size_t first = grid.current_number / kWarp * kWarp;
  std::memcpy(grid.current->posted, &value, sizeof(T));
  Wait(State::kAtWarpBarrier, line);
  if (first + lane < grid.count && lane < kWarp)
    std::memcpy(&value, grid.threads[first + lane]->posted, sizeof(T));
  Wait(State::kAtWarpBarrier, line);
  return value;
}

inline size_t Lane() { return grid.current_number % kWarp; }

// Within segments of `width` lanes; a lane outside of the segment leaves the value as it is.
template <typename T>
T ShuffleTo(T value, size_t lane, int width, int line) {
  const size_t segment = Lane() / width;
  return Exchange(value, lane / width == segment ? lane : Lane(), line);
}

}  // namespace cuda_host

#define __syncthreads() cuda_host::Wait(cuda_host::State::kAtBlockBarrier, __LINE__)
#define __syncwarp(...) cuda_host::Wait(cuda_host::State::kAtWarpBarrier, __LINE__)
#define __activemask() 0xFFFFFFFFu
#define __shfl_sync(mask, value, lane, width)                                                      \
  cuda_host::ShuffleTo(value, cuda_host::Lane() / (width) * (width) + (lane) % (width), width,     \
                       __LINE__)
#define __shfl_down_sync(mask, value, delta, width)                                                \
  cuda_host::ShuffleTo(value, cuda_host::Lane() + (delta), width, __LINE__)
#define __shfl_up_sync(mask, value, delta, width)                                                  \
  cuda_host::ShuffleTo(value, cuda_host::Lane() - (delta), width, __LINE__)
#define __shfl_xor_sync(mask, value, lanes, width)                                                 \
  cuda_host::ShuffleTo(value, cuda_host::Lane() ^ (lanes), width, __LINE__)
