#include "build_log.h"

#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

namespace tvmflow::opencl {
namespace {

constexpr size_t kNeighbours = 2;      // lines shown before and after a named one
constexpr size_t kOpeningLines = 40;   // shown when the log names no line
constexpr size_t kMaxNamedLines = 20;  // more than that help nobody

// Line numbers in a compiler's messages: "<file>:12:5: error", ":12:5: error",
// "<file>(12) : error" and "12:5: error" are the forms that drivers use.
std::set<size_t> LinesNamed(const std::string& log, size_t line_count) {
  std::set<size_t> lines;
  for (size_t i = 0; i < log.size() && lines.size() < kMaxNamedLines; ++i) {
    const bool starts = i == 0 || log[i - 1] == ':' || log[i - 1] == '(' || log[i - 1] == '\n';
    if (!starts || !std::isdigit(static_cast<unsigned char>(log[i]))) continue;
    size_t end = i;
    while (end < log.size() && std::isdigit(static_cast<unsigned char>(log[end]))) ++end;
    const bool opened_by_parenthesis = i > 0 && log[i - 1] == '(';
    const bool closes =
        end < log.size() &&
        (opened_by_parenthesis ? log[end] == ')' || log[end] == ',' : log[end] == ':');
    // The column follows the line: "12:5:" names line 12 only.
    const size_t line = std::strtoull(log.c_str() + i, nullptr, 10);
    if (closes && line >= 1 && line <= line_count) lines.insert(line);
    i = end;
    if (closes && !opened_by_parenthesis) {
      while (i + 1 < log.size() && std::isdigit(static_cast<unsigned char>(log[i + 1]))) ++i;
    }
  }
  return lines;
}

}  // namespace

std::string DescribeBuildFailure(const std::string& kernel, const std::string& device,
                                 const std::string& code, const std::string& options,
                                 const std::string& log, const std::string& source) {
  std::vector<std::string> lines;
  std::istringstream reader(source);
  for (std::string line; std::getline(reader, line);) lines.push_back(line);

  std::set<size_t> shown;
  for (size_t line : LinesNamed(log, lines.size())) {
    const size_t first = line > kNeighbours ? line - kNeighbours : 1;
    for (size_t i = first; i <= line + kNeighbours && i <= lines.size(); ++i) shown.insert(i);
  }
  if (shown.empty()) {
    for (size_t i = 1; i <= kOpeningLines && i <= lines.size(); ++i) shown.insert(i);
  }

  std::ostringstream text;
  text << "Kernel '" << kernel << "' does not build on device " << device << ": " << code
       << ".\nRemedy: update the device's driver, or compile the model for another device or "
          "storage.\nBuild options: "
       << (options.empty() ? "(none)" : options) << "\nBuild log:\n"
       << (log.empty() ? "(empty)" : log) << "\nSource:";
  size_t previous = 0;
  for (size_t i : shown) {
    if (previous != 0 && i != previous + 1) text << "\n  ...";
    text << "\n  " << i << " | " << lines[i - 1];
    previous = i;
  }
  return text.str();
}

}  // namespace tvmflow::opencl
