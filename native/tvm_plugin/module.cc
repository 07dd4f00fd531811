#include "module.h"

#include <tvm/ffi/cast.h>

#include "guard.h"
#include "launch.h"

namespace tvmflow::tvm_plugin {
namespace {

using opencl::Error;
using tvm::ffi::Function;
using tvm::ffi::Module;
using tvm::ffi::String;

// TVM's code generator writes this line before each kernel.
constexpr std::string_view kDelimiter = "// Function: ";

// Removes the declarations of all kernels that TVM writes before each kernel, though none calls
// another; with a hundred kernels they are nearly all of the text.  A declaration is one line.
std::string WithoutDeclarations(std::string_view text) {
  std::string kept;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    const size_t last = line.find_last_not_of(" \t\r\n");
    const bool declaration = line.starts_with("__kernel ") && last != std::string_view::npos &&
                             line[last] == ';' && line.find('{') == std::string_view::npos;
    if (!declaration) kept += line;
    text.remove_prefix(end);
  }
  return kept;
}

std::unordered_map<std::string, std::string> SplitKernels(std::string_view code) {
  std::unordered_map<std::string, std::string> kernels;
  size_t begin = code.find(kDelimiter);
  while (begin != std::string_view::npos) {
    const size_t name_begin = begin + kDelimiter.size();
    const size_t name_end = std::min(code.find('\n', name_begin), code.size());
    const size_t next = code.find(kDelimiter, name_end);
    const size_t text_begin = std::min(name_end + 1, code.size());
    const size_t text_end = std::min(next, code.size());
    kernels.emplace(code.substr(name_begin, name_end - name_begin),
                    WithoutDeclarations(code.substr(text_begin, text_end - text_begin)));
    begin = next;
  }
  return kernels;
}

}  // namespace

OpenClModule::OpenClModule(ModuleContents contents, tvm::ffi::Map<String, String> sources)
    : contents_(std::move(contents)), sources_(std::move(sources)) {
  if (contents_.format != "cl")
    throw Error("ValueError", "An OpenCL module of format '" + std::string(contents_.format) +
                                  "' was loaded; only OpenCL C source ('cl') is supported.");
  auto parsed = SplitKernels({contents_.code.data(), contents_.code.size()});
  std::vector<opencl::KernelSource> kernels;
  for (const auto& [name, info] : contents_.functions) {
    auto found = parsed.find(name);
    if (found == parsed.end())
      throw Error("ValueError", "The source of an OpenCL module has no kernel '" +
                                    std::string(name) + "', which its table of functions names.");
    indices_.emplace(name, kernels.size());
    kernels.push_back({name, std::move(found->second)});
  }
  program_ = std::make_unique<opencl::Program>(std::move(kernels));
}

tvm::ffi::Optional<Function> OpenClModule::GetFunction(const String& name) {
  auto found = indices_.find(name);
  if (found == indices_.end()) return std::nullopt;
  return Guard([&] {
    KernelLauncher launcher(program_.get(), found->second, *contents_.functions.at(name).get());
    // The function holds a reference to the module, which owns the program.
    Module self = tvm::ffi::GetRef<Module>(this);
    return Function::FromPacked([self, launcher = std::move(launcher)](
                                    const tvm::ffi::AnyView* args, int32_t count, tvm::ffi::Any*) {
      Guard([&] { launcher(args, count); });
    });
  });
}

String OpenClModule::InspectSource(const String& format) const {
  if (auto it = sources_.find(format); it != sources_.end()) return (*it).second;
  if (format.empty() || format == "cl") return String(contents_.code.data(), contents_.code.size());
  return String();
}

}  // namespace tvmflow::tvm_plugin
