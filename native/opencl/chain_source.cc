#include "chain_source.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace tvmflow::opencl {
namespace {

constexpr std::string_view kOneItem = "__attribute__((reqd_work_group_size(1, 1, 1)))\n";
constexpr std::string_view kKernel = "__kernel void ";
constexpr std::string_view kGroup = "get_group_id(0)";
// Attributes of members.  Inlined into the calling kernel, functions take PoCL's compiler more than
// twice as long.  Without the second attribute, LLVM would split vectors of 512 bits in functions
// without vector arguments ("min-legal-vector-width").
constexpr std::string_view kFunction = "__attribute__((noinline, min_vector_width(512))) void ";
// Text that prevents a kernel from becoming a member: cooperating items, other axes, and memory
// that is not accessed through a pointer to global memory.
constexpr std::array<std::string_view, 7> kForeign = {
    "get_local_id", "get_global_id", "get_group_id(1)", "get_group_id(2)",
    "barrier(",     "__local",       "image2d"};

// Returns the expression that reads the argument in `word`, by the type of its parameter.
std::optional<std::string> Read(std::string_view parameter, const std::string& word) {
  while (!parameter.empty() && parameter.front() == ' ') parameter.remove_prefix(1);
  const size_t space = parameter.rfind(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::string type(parameter.substr(0, space));
  if (type.starts_with("__global ")) {
    if (const size_t at = type.find(" restrict"); at != std::string::npos) type.resize(at);
    if (type.find('*') == std::string::npos) return std::nullopt;
    return "(" + type + ")" + word;
  }
  if (type.starts_with("const ")) type.erase(0, 6);
  if (type == "float") return "as_float((int)" + word + ")";
  if (type == "double") return "as_double(" + word + ")";
  for (const char* integer : {"char", "short", "int", "long"}) {
    if (type == integer || type == std::string("u") + integer) return "(" + type + ")" + word;
  }
  return std::nullopt;
}

// A kernel as a function, and the function's call for a step.
struct Member {
  std::string function;
  std::string call;
};

std::optional<Member> AsFunction(const KernelSource& kernel) {
  std::string text = kernel.text;
  const std::string head = std::string(kKernel) + kernel.name + "(";
  const size_t begin = text.find(std::string(kOneItem) + head);
  if (begin == std::string::npos || text.find(kKernel) != begin + kOneItem.size() ||
      text.find(kKernel, begin + kOneItem.size() + 1) != std::string::npos)
    return std::nullopt;
  const auto is_in_text = [&](std::string_view word) {
    return text.find(word) != std::string::npos;
  };
  if (std::any_of(kForeign.begin(), kForeign.end(), is_in_text)) return std::nullopt;

  const std::string function = kernel.name + "_group";
  std::string call = function + "(group";
  const size_t open = begin + kOneItem.size() + head.size();
  const size_t close = text.find(')', open);
  std::string_view parameters(text.data() + open, close - open);
  for (size_t i = 0; !parameters.empty(); ++i) {
    const size_t comma = std::min(parameters.find(','), parameters.size());
    const auto value =
        Read(parameters.substr(0, comma), "step[" + std::to_string(kStepHeader + i) + "]");
    if (!value) return std::nullopt;
    call += ", " + *value;
    parameters.remove_prefix(std::min(comma + 1, parameters.size()));
  }
  const bool takes_none = open == close;
  text.replace(
      begin, kOneItem.size() + head.size(),
      std::string(kFunction) + function + "(size_t tvmflow_group" + (takes_none ? "" : ", "));
  for (size_t at = text.find(kGroup); at != std::string::npos; at = text.find(kGroup, at))
    text.replace(at, kGroup.size(), "tvmflow_group");
  return Member{std::move(text), call + ")"};
}

// Each work-group runs the groups of its own part of a step, then the remaining groups of other
// parts.  A step is over when all of its groups are done: a work-group waits only for groups that
// another work-group has begun, so that the number of concurrent work-groups does not matter.
//
// The hint tells the compiler that the code is vectorised already: otherwise Intel's compiler takes
// ten times as long, trying to vectorise across the single item.
constexpr const char* kDriver = R"(
__attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))
__kernel void tvmflow_chain(ulong steps, ulong counters, int count) {
  __global const ulong* step = (__global const ulong*)steps;
  __global atomic_int* done = (__global atomic_int*)counters;
  const int parts = get_num_groups(0);
  for (int n = 0; n < count; ++n) {
    const int groups = (int)step[1], chunk = (int)step[2];
    for (int i = 0; i < parts; ++i) {
      const int part = ((int)get_group_id(0) + i) % parts;
      const int begin = (long)groups * part / parts, end = (long)groups * (part + 1) / parts;
      __global atomic_int* taken = done + (part + 1) * STRIDE;
      while (atomic_load_explicit(taken, memory_order_relaxed, memory_scope_device) < end - begin) {
        int group = begin + atomic_fetch_add_explicit(taken, chunk, memory_order_relaxed,
                                                      memory_scope_device);
        const int first = min(group, end), last = min(group + chunk, end);
        for (; group < last; ++group) {
          switch ((int)step[0]) {
CALLS          }
        }
        atomic_fetch_add_explicit(done, last - first, memory_order_acq_rel, memory_scope_device);
      }
    }
    while (atomic_load_explicit(done, memory_order_acquire, memory_scope_device) < groups) {
    }
    step += HEADER + (step[0] >> 32);
    done += (parts + 1) * STRIDE;
  }
}
)";

std::string Filled(std::string text, std::string_view name, const std::string& value) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
    text.replace(at, name.size(), value);
  return text;
}

}  // namespace

ChainSource MakeChainSource(const std::vector<KernelSource>& kernels) {
  ChainSource source;
  std::string functions;
  std::string calls;
  int count = 0;
  for (const KernelSource& kernel : kernels) {
    const std::optional<Member> member = AsFunction(kernel);
    source.members.push_back(member ? count : -1);
    if (!member) continue;
    functions += member->function;
    if (functions.back() != '\n') functions += '\n';
    calls += "            case " + std::to_string(count++) + ": " + member->call + "; break;\n";
  }
  if (count == 0) return source;
  std::string driver = Filled(kDriver, "STRIDE", std::to_string(kCounterStride));
  driver = Filled(driver, "HEADER", std::to_string(kStepHeader));
  source.text = functions + Filled(driver, "CALLS", calls);
  return source;
}

}  // namespace tvmflow::opencl
