// Prints what small parts of the runtime compute, one line for each line of input:
//
//   sha256 PIECE TEXT   the digest of TEXT given in pieces of that many bytes
//   half VALUE          the bits of VALUE in half precision
//   json TEXT           TEXT as JSON
//   version TEXT MINOR  whether TEXT is OpenCL 1.MINOR or newer
//   lines LOG SOURCE    the message for a build log; "|" stands for a line's end
//
// Arguments are separated by tabs.
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../../native/core/half.h"
#include "../../native/core/version.h"
#include "../../native/opencl/build_log.h"
#include "../../native/opencl/json_writer.h"
#include "../../native/opencl/sha256.h"

using namespace tvmflow::opencl;

namespace {

std::string Digest(const std::string& text, size_t piece) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += piece)
    hash.Update(text.data() + i, std::min(piece, text.size() - i));
  char hex[65];
  for (size_t i = 0; const uint8_t byte : hash.Finish())
    std::snprintf(hex + 2 * i++, sizeof("00"), "%02x", byte);
  return hex;
}

std::string Lines(std::string text) {
  for (char& c : text) {
    if (c == '|') c = '\n';
  }
  return text;
}

std::string Answer(const std::vector<std::string>& words) {
  const std::string& what = words.at(0);
  if (what == "sha256") return Digest(words.at(2), std::stoul(words.at(1)));
  if (what == "half") return std::to_string(ToHalf(std::strtof(words.at(1).c_str(), nullptr)));
  if (what == "json") return JsonWriter().Text(words.at(1)).str();
  if (what == "version")
    return IsAtLeast(words.at(1).c_str(), 1, std::stoul(words.at(2))) ? "yes" : "no";
  std::string text =
      DescribeBuildFailure("k", "d", "CODE", "", Lines(words.at(1)), Lines(words.at(2)));
  for (char& c : text) {
    if (c == '\n') c = '\x1f';
  }
  return text;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words;
    std::istringstream reader(line);
    for (std::string word; std::getline(reader, word, '\t');) words.push_back(word);
    words.resize(3);
    std::cout << Answer(words) << "\n";
  }
}
