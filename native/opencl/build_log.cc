#include "build_log.h"

#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

namespace tvmflow::opencl {
namespace {

constexpr size_t kNeighbours = 2;      // lines shown before and after a named one
constexpr size_t kOpeningLines = 40;   // shown if the log names no line
constexpr size_t kMaxNamedLines = 20;  // more do not help

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Returns whether the number at [begin, end) is a line number, in one of the forms that
// drivers use: "<file>:12:5: error", ":12:5: error", "12:5: error",
// "<file>(12) : error" and "<file>, line 12: error".
bool IsLineNumber(const std::string& log, size_t begin, size_t end) {
  const char before = begin == 0 ? '\n' : log[begin - 1];
  const char after = end < log.size() ? log[end] : '\n';
  if (before == ':' || before == '\n') return after == ':';
  if (before == '(') return after == ')' || after == ',';
  return begin >= 5 && log.compare(begin - 5, 5, "line ") == 0;
}

std::set<size_t> LinesNamed(const std::string& log, size_t line_count) {
  std::set<size_t> lines;
  for (size_t i = 0; i < log.size() && lines.size() < kMaxNamedLines;) {
    if (!IsDigit(log[i])) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < log.size() && IsDigit(log[end])) ++end;
    const size_t line = std::strtoull(log.c_str() + i, nullptr, 10);
    const bool named = IsLineNumber(log, i, end);
    if (named && line >= 1 && line <= line_count) lines.insert(line);
    // The number after the line number is the column.
    if (named && end < log.size() && log[end] == ':') {
      ++end;
      while (end < log.size() && IsDigit(log[end])) ++end;
    }
    i = end;
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
       << ".\nRemedy: Update the device's driver, or compile the model for another device or "
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
