// Runs any number of models in one program, each from its library:
//
//     c++ -std=c++17 -I../../native/bindings main.cpp -ldl -o run
//     ./run ./libmobilenet.so ./libsqueezenet.so
#include <cstdio>
#include <exception>
#include <vector>

#include "tvmflow.hpp"

namespace {

void Use(tvmflow::Model& model) {
  tvmflow_test test{};
  model.SelfTest(&test);
  std::printf("self-test passed: %.3g of the tolerance used\n", test.tolerance_used);
  for (uint32_t index = 0; index < model.input_count(); ++index) {
    const tvmflow_tensor info = model.InputInfo(index);
    // Here an application has its image.
    const std::vector<std::byte> zeros(info.bytes);
    model.SetInputBytes(index, info.dtype, zeros.data(), zeros.size());
  }
  model.Run();
  for (uint32_t index = 0; index < model.output_count(); ++index) {
    const tvmflow_tensor info = model.OutputInfo(index);
    if (info.dtype != TVMFLOW_FLOAT32) continue;
    const std::vector<float> values = model.Output<float>(index);
    std::printf("%s: %zu values, the first is %g\n", info.name, values.size(), values.at(0));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<tvmflow::Model> models;
    for (int i = 1; i < argc; ++i) models.emplace_back(argv[i]);
    for (tvmflow::Model& model : models) Use(model);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "Error: %s\n", error.what());
    return 1;
  }
}
