// Swaps the file at a path for one of two others, fifty times, while threads call what is open:
// PATH LIBRARY LIBRARY-WITH-TENFOLD-RESULTS.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "tvmflow.hpp"

namespace {

constexpr int kSwaps = 50;

void Replace(const char* source, const std::string& path) {
  std::filesystem::copy_file(source, path + ".new");
  std::filesystem::rename(path + ".new", path);
}

void Check(tvmflow::Model& model, float answer) {
  const std::vector<float> a{1, 2, 3, 4, 5, 6};
  model.SetInput(0, a);
  model.SetInput(1, a);
  model.Run();
  if (model.Output<float>(0)[1] == answer) return;
  std::puts("another version answered");
  std::exit(1);
}

}  // namespace

int main(int count, char** names) {
  if (count != 4) return 2;
  const std::string path = names[1];
  std::atomic<bool> ended = false;
  std::vector<std::thread> callers;
  for (int version = 0; version < 2; ++version) {
    Replace(names[2 + version], path);
    callers.emplace_back(
        [&ended, answer = version != 0 ? 40.0F : 4.0F](tvmflow::Model model) {
          while (!ended) Check(model, answer);
        },
        tvmflow::Model(path));
  }
  std::pair<tvmflow::Model, float> last{tvmflow::Model(path), 40.0F};
  for (int swap = 0; swap < kSwaps; ++swap) {
    Replace(names[2 + swap % 2], path);
    std::pair<tvmflow::Model, float> next{tvmflow::Model(path), swap % 2 != 0 ? 40.0F : 4.0F};
    Check(next.first, next.second);
    Check(last.first, last.second);
    last = std::move(next);
  }
  ended = true;
  for (std::thread& caller : callers) caller.join();
  std::puts("passed");
  return 0;
}
