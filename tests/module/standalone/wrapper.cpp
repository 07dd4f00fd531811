// Uses tvmflow.hpp in every way on the mock model, with and without exceptions.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tvmflow.hpp"

#define CHECK(condition)                                                                           \
  if (!(condition)) {                                                                              \
    std::printf("line %d: %s is not so\n", __LINE__, #condition);                                  \
    std::exit(1);                                                                                  \
  }

// Both ways of reporting a failure, as one: the status and the message.
template <typename Action>
std::pair<tvmflow_status, std::string> Failure(tvmflow::Model* model, Action action) {
#ifdef TVMFLOW_NO_EXCEPTIONS
  const tvmflow_status status = action();
  return {status, model->message()};
#else
  try {
    action();
  } catch (const tvmflow::Error& error) {
    CHECK(model == nullptr || model->status() == error.status());
    return {error.status(), error.what()};
  }
  return {TVMFLOW_OK, ""};
#endif
}

tvmflow::Model Open(const char* path, const tvmflow_options& options = {}) {
#ifdef LINKED
  static_cast<void>(path);
  return tvmflow::Model(tvmflow::Linked{}, options);
#else
  return tvmflow::Model(path, options);
#endif
}

void CheckOpeningFails(const char* path, const char* how, tvmflow_status wanted) {
  tvmflow_options options{};
  options.opencl_library = how;
#ifdef TVMFLOW_NO_EXCEPTIONS
  tvmflow::Model model = Open(path, options);
  CHECK(!model && model.status() == wanted);
  CHECK(model.message().find("Remedy: Ask for 0.") != std::string::npos);
  // It can be used like one that works, and says again why it does not.
  CHECK(model.Run() == TVMFLOW_ERROR_ARGUMENT);
  CHECK(model.message().find("Creating the model failed") == 0);
  CHECK(model.input_count() == 0 && model.Describe().empty() && model.Output<float>(0).empty());
#else
  const auto failure = Failure(nullptr, [&] { Open(path, options); });
  CHECK(failure.first == wanted);
  CHECK(failure.second.find("Remedy: Ask for 0.") != std::string::npos);
#endif
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  static_assert(tvmflow::DType<float>() == TVMFLOW_FLOAT32);
  static_assert(tvmflow::DType<double>() == TVMFLOW_FLOAT64);
  static_assert(tvmflow::DType<bool>() == TVMFLOW_BOOL);
  static_assert(tvmflow::DType<int8_t>() == TVMFLOW_INT8);
  static_assert(tvmflow::DType<uint16_t>() == TVMFLOW_UINT16);
  static_assert(tvmflow::DType<long long>() == TVMFLOW_INT64);

  tvmflow::Model model = Open(argv[1]);
  CHECK(model && model.input_count() == 2 && model.output_count() == 1);
  CHECK(model.Describe().find("sum 1") != std::string::npos);
  const tvmflow_tensor info = model.InputInfo(1);
  CHECK(std::strcmp(info.name, "b/𝄞") == 0 && info.dimensions == 2 && info.shape[1] == 3);

  const std::array<float, 6> a{1, 2, 3, 4, 5, 6};
  const std::vector<float> b{0.5F, -2, 7, 1e6F, 0, -6};
  const std::vector<float> sum{1.5F, 0, 10, 1000004, 5, 0};
  CHECK(model.SetInput(0, a) == TVMFLOW_OK && model.SetInput(1, b.data(), b.size()) == TVMFLOW_OK);
  CHECK(model.Run() == TVMFLOW_OK);
  CHECK(model.Output<float>(0) == sum);
  float got[6];
  CHECK(model.GetOutput(0, got) == TVMFLOW_OK && got[3] == 1000004);
  const float* const there = model.OutputData<float>(0);
  CHECK(there != nullptr && std::equal(sum.begin(), sum.end(), there));

  // Wrong size, dtype and index.
  auto failure = Failure(&model, [&] { return model.SetInput(0, b.data(), 5); });
  CHECK(failure.first == TVMFLOW_ERROR_ARGUMENT && failure.second.find("Setting") == 0);
  failure = Failure(&model, [&] { return model.SetInput(0, std::vector<int>(6)); });
  CHECK(failure.first == TVMFLOW_ERROR_ARGUMENT);
  failure = Failure(&model, [&] { return model.GetOutput(1, got); });
  CHECK(failure.second.find("Getting an output failed") == 0);
  failure = Failure(&model, [&] { return model.UseInput(5, nullptr); });
  CHECK(failure.first == TVMFLOW_ERROR_ARGUMENT);
  CHECK(model.UseOutput(0, nullptr) == TVMFLOW_OK && model.status() == TVMFLOW_OK);

  // Pictures.
  CHECK(model.ImageInfo(0).format == TVMFLOW_GREY8 && model.ImageInfo(0).width == 6);
  const std::array<unsigned char, 6> levels{60, 50, 40, 30, 20, 10};
  tvmflow_image image{};
  image.width = 6;
  image.height = 1;
  image.rotation = 180;
  image.strides[0] = 64;
  image.planes[0] = levels.data();
  CHECK(model.SetImage(0, image) == TVMFLOW_OK && model.Run() == TVMFLOW_OK);
  CHECK(model.Output<float>(0)[1] == 18);
  failure = Failure(&model, [&] { return model.SetImage(1, image); });
  CHECK(failure.second.find("Setting a picture failed") == 0);
  double scale[2];
  double offset[2];
  CHECK(model.ImagePlace(0, scale, offset) == TVMFLOW_OK && scale[1] == 3 && offset[0] == -4);
  CHECK(model.SetInput(0, a) == TVMFLOW_OK);

  // By name, and what there is.
  CHECK(model.FindInput("b/𝄞") == 1 && model.FindOutput("sum") == 0);
  failure = Failure(&model, [&] { return model.FindInput("c") ? model.status() : model.status(); });
  CHECK(failure.second.find("Looking failed") == 0);
  CHECK(model.Memory().tensors == 200 && model.Memory().weights_shared == 1);
  CHECK(model.OpenCL().context == nullptr);

  // Told of the end.
  int told = -1;
  tvmflow_run_options run{};
  run.user = &told;
  run.done = [](void* user, tvmflow_status status) { *static_cast<int*>(user) = status; };
  CHECK(model.RunAsync(run) == TVMFLOW_OK && told == TVMFLOW_OK);
  CHECK(model.Wait() == TVMFLOW_OK);

  // Asynchronous.
  CHECK(model.Start() == TVMFLOW_OK);
  failure = Failure(&model, [&] { return model.Start(); });
  CHECK(failure.first == TVMFLOW_ERROR_BUSY);
  CHECK(model.Wait() == TVMFLOW_OK);

  tvmflow_test test{};
  CHECK(model.SelfTest(&test) == TVMFLOW_OK && test.compared == 6);
  CHECK(model.Tune(100) == TVMFLOW_OK && model.TuneWait() == TVMFLOW_OK);
  CHECK(model.TuneReport() == "{\"used\":3}");
  failure = Failure(&model, [&] {
    model.Profile();
    return model.status();
  });
  CHECK(failure.second.find("Profiling failed") == 0);
  tvmflow_options options{};
  options.flags = TVMFLOW_PROFILE;
  tvmflow::Model profiled = Open(argv[1], options);
  CHECK(profiled.Profile().size() == 2 && profiled.Profile()[1].end_ns == 6000);

  // Two libraries, and models that move.
  std::vector<tvmflow::Model> models;
  models.push_back(std::move(model));
  models.emplace_back(argv[2]);
  models.push_back(std::move(profiled));
  failure = Failure(&model, [&] { return model.Run(); });
  CHECK(!model && failure.second.find("it was moved") != std::string::npos);
  for (tvmflow::Model& each : models) {
    each.SetInput(0, a);
    each.SetInput(1, b);
    each.Run();
  }
  CHECK(models[0].Output<float>(0) == sum && models[1].Output<float>(0)[2] == 100);
  models[0] = std::move(models[1]);
  CHECK(models[0].Output<float>(0)[2] == 100);

  for (int status = 2; status < 9; ++status)
    CheckOpeningFails(argv[1], ("fail create " + std::to_string(status)).c_str(),
                      static_cast<tvmflow_status>(status));
#ifdef TVMFLOW_NO_EXCEPTIONS
  const tvmflow::Model none("/none.so");
  CHECK(!none && none.status() == TVMFLOW_ERROR_DAMAGED && none.message().find("/none.so") > 0);
#else
  failure = Failure(nullptr, [&] { tvmflow::Model none("/none.so"); });
  CHECK(failure.second.find("Opening the library /none.so failed: ") == 0);
#endif
  std::puts("passed");
}
