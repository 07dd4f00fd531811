// SPDX-License-Identifier: Apache-2.0
// C++17 interface of compiled networks: `tvmflow.h` with destructors, containers and exceptions.
//
//   tvmflow::Model model("./libmobilenet.so");     // any number of libraries in one program
//   model.SetInput(0, image);                      // a std::vector<float>, std::array, ...
//   model.Run();
//   std::vector<float> scores = model.Output<float>(0);
//
// A program that is linked to its library writes `tvmflow::Model model(tvmflow::Linked{})`.
// If exceptions are disabled, or TVMFLOW_NO_EXCEPTIONS is defined, nothing is thrown: calls
// return a status other than TVMFLOW_OK, and `status()` and `message()` return the last failure.
#ifndef TVMFLOW_HPP
#define TVMFLOW_HPP

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tvmflow_library.h"

#if !defined(TVMFLOW_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define TVMFLOW_NO_EXCEPTIONS
#endif

namespace tvmflow {

// Failure of a library's function.
class Error : public std::runtime_error {
 public:
  Error(tvmflow_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  tvmflow_status status() const noexcept { return status_; }

 private:
  tvmflow_status status_;
};

// Chooses the library that the program is linked to.
struct Linked {};

// Code of an element type; C++17 has no types for float16 and bfloat16, see `SetInputBytes`.
template <typename T>
constexpr tvmflow_dtype DType() {
  if constexpr (std::is_same_v<T, bool>) {
    return TVMFLOW_BOOL;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "networks have floats of 32 and 64 bits");
    return sizeof(T) == 4 ? TVMFLOW_FLOAT32 : TVMFLOW_FLOAT64;
  } else {
    static_assert(std::is_integral_v<T>, "tensors have elements of arithmetic types");
    constexpr tvmflow_dtype kSigned[] = {TVMFLOW_INT8, TVMFLOW_INT16, TVMFLOW_INT32, TVMFLOW_INT64};
    constexpr tvmflow_dtype kUnsigned[] = {TVMFLOW_UINT8, TVMFLOW_UINT16, TVMFLOW_UINT32,
                                           TVMFLOW_UINT64};
    constexpr int kLog = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? kSigned[kLog] : kUnsigned[kLog];
  }
}

// Instance of a network, which one thread may use at a time.
class Model {
 public:
  // Opens a library by its path, or by its bare name in the loader's folders.  Sets the size in the
  // options.
  explicit Model(const std::string& path, const tvmflow_options& options = {}) {
    auto opened = std::unique_ptr<tvmflow_library, Closer>(new tvmflow_library());
    if (const char* reason = tvmflow_library_open(opened.get(), path.c_str())) {
      Report(TVMFLOW_ERROR_DAMAGED, "Opening the library " + path + " failed: " + reason);
      return;
    }
    library_ = std::move(opened);
    Create(options);
  }

  explicit Model(Linked /*tag*/, const tvmflow_options& options = {}) {
    library_.reset(new tvmflow_library());
#define TVMFLOW_TAKE(name) library_->name = &tvmflow_##name;
    TVMFLOW_EACH_FUNCTION(TVMFLOW_TAKE)
#undef TVMFLOW_TAKE
    Create(options);
  }

  Model(Model&& other) noexcept
      : library_(std::move(other.library_)),
        model_(std::exchange(other.model_, nullptr)),
        status_(std::exchange(other.status_, TVMFLOW_ERROR_ARGUMENT)),
        message_(std::move(other.message_)) {}

  Model& operator=(Model&& other) noexcept {
    Model taken(std::move(other));
    std::swap(library_, taken.library_);
    std::swap(model_, taken.model_);
    std::swap(status_, taken.status_);
    std::swap(message_, taken.message_);
    return *this;
  }

  ~Model() {
    if (model_ != nullptr) library_->destroy(model_);
  }

  // Returns whether the model is open; needed only without exceptions.
  explicit operator bool() const noexcept { return model_ != nullptr; }

  // Return the status of the last call, and the message of the last failure.
  tvmflow_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }

  std::string Describe() const { return model_ ? library_->describe(model_) : ""; }
  tvmflow_backend backend() const { return model_ ? library_->backend_used(model_) : TVMFLOW_AUTO; }
  uint32_t input_count() const { return model_ ? library_->input_count(model_) : 0; }
  uint32_t output_count() const { return model_ ? library_->output_count(model_) : 0; }

  // Return zeros if there is no such input or output.
  tvmflow_tensor InputInfo(uint32_t index) { return Info(&tvmflow_library::input, index); }
  tvmflow_tensor OutputInfo(uint32_t index) { return Info(&tvmflow_library::output, index); }

  // Return the index of an input or output by its name in the ONNX model; 0 if there is none.
  uint32_t FindInput(const std::string& name) { return Find(&tvmflow_library::find_input, name); }
  uint32_t FindOutput(const std::string& name) { return Find(&tvmflow_library::find_output, name); }

  tvmflow_memory_info Memory() { return Sized<tvmflow_memory_info>(&tvmflow_library::memory); }
  // Returns the OpenCL objects, for another model's options; NULL on the CPU.
  tvmflow_opencl_info OpenCL() { return Sized<tvmflow_opencl_info>(&tvmflow_library::opencl); }

  // All calls refer to the chosen shape; after another one is chosen, inputs must be set again.
  uint32_t shape_count() const { return model_ ? library_->shape_count(model_) : 0; }
  uint32_t shape() const { return model_ ? library_->shape(model_) : 0; }
  tvmflow_status ChooseShape(uint32_t index) { return Call(&tvmflow_library::choose_shape, index); }
  // Chooses the shape in which an input has these extents.
  tvmflow_status SetShape(uint32_t input, const std::vector<int64_t>& extents) {
    return Call(&tvmflow_library::set_shape, input, extents.data(),
                static_cast<uint32_t>(extents.size()));
  }

  tvmflow_status SetInputBytes(uint32_t index, tvmflow_dtype dtype, const void* data,
                               size_t bytes) {
    return Call(&tvmflow_library::set_input, index, dtype, data, bytes);
  }
  template <typename T>
  tvmflow_status SetInput(uint32_t index, const T* data, size_t count) {
    return SetInputBytes(index, DType<T>(), data, count * sizeof(T));
  }
  // Copies from any container with std::data and std::size.
  template <typename Container>
  tvmflow_status SetInput(uint32_t index, const Container& values) {
    return SetInput(index, std::data(values), std::size(values));
  }

  // Sets a picture for an input compiled with `--image-input`.  Sets the size in the structure.
  tvmflow_status SetImage(uint32_t index, tvmflow_image image) {
    image.struct_size = sizeof(image);
    return Call(&tvmflow_library::set_image, index, &image);
  }
  tvmflow_image_info ImageInfo(uint32_t index) {
    tvmflow_image_info info{};
    info.struct_size = sizeof(info);
    Call(&tvmflow_library::image_input, index, &info);
    return info;
  }
  // Sets the mapping from the input to the last picture: point (x, y) of the input is
  // (x * scale[0] + offset[0], y * scale[1] + offset[1]) in the picture.
  tvmflow_status ImagePlace(uint32_t index, double scale[2], double offset[2]) {
    return Call(&tvmflow_library::image_place, index, scale, offset);
  }

  tvmflow_status GetOutputBytes(uint32_t index, tvmflow_dtype dtype, void* data, size_t bytes) {
    return Call(&tvmflow_library::get_output, index, dtype, data, bytes);
  }
  template <typename T>
  tvmflow_status GetOutput(uint32_t index, T* data, size_t count) {
    return GetOutputBytes(index, DType<T>(), data, count * sizeof(T));
  }
  template <typename Container>
  tvmflow_status GetOutput(uint32_t index, Container& values) {
    return GetOutput(index, std::data(values), std::size(values));
  }
  // Returns the result on the CPU without a copy, valid until the next run; nullptr on failure.
  template <typename T>
  const T* OutputData(uint32_t index) {
    const void* data = nullptr;
    const size_t bytes = OutputInfo(index).bytes;
    if (status_ != TVMFLOW_OK ||
        Call(&tvmflow_library::output_data, index, DType<T>(), &data, bytes) != TVMFLOW_OK)
      return nullptr;
    return static_cast<const T*>(data);
  }
  // Returns an output in a new vector, which is empty on failure.
  template <typename T>
  std::vector<T> Output(uint32_t index) {
    static_assert(!std::is_same_v<T, bool>, "std::vector<bool> has no array of bytes behind it");
    std::vector<T> values(OutputInfo(index).bytes / sizeof(T));
    if (status_ != TVMFLOW_OK || GetOutput(index, values) != TVMFLOW_OK) values.clear();
    return values;
  }

  // Use the application's cl_mem as input or output; nullptr restores the network's own memory.
  tvmflow_status UseInput(uint32_t index, void* cl_memory) {
    return Call(&tvmflow_library::use_input, index, cl_memory);
  }
  tvmflow_status UseOutput(uint32_t index, void* cl_memory) {
    return Call(&tvmflow_library::use_output, index, cl_memory);
  }

  tvmflow_status WarmUp() { return Call(&tvmflow_library::warm_up); }
  tvmflow_status Run() { return Call(&tvmflow_library::run); }
  tvmflow_status Start() { return Call(&tvmflow_library::start); }
  tvmflow_status Wait() { return Call(&tvmflow_library::wait); }
  // Starts a run.  Sets the size in the structure.
  tvmflow_status RunAsync(tvmflow_run_options options) {
    options.struct_size = sizeof(options);
    return Call(&tvmflow_library::run_async, &options);
  }
  // Cancels the current run; may be called from any thread.
  void Cancel() noexcept {
    if (model_ != nullptr) library_->cancel(model_);
  }

  // Runs once and returns the times of all kernels; their names are valid until the next call.
  std::vector<tvmflow_kernel> Profile() {
    const tvmflow_kernel* kernels = nullptr;
    uint32_t count = 0;
    if (Call(&tvmflow_library::profile, &kernels, &count) != TVMFLOW_OK) return {};
    return {kernels, kernels + count};
  }

  tvmflow_status SelfTest(tvmflow_test* result = nullptr) {
    return Call(&tvmflow_library::self_test, result);
  }
  // The options' struct_size is set here.
  tvmflow_status SelfTest(tvmflow_test_options options, tvmflow_test* result = nullptr) {
    options.struct_size = sizeof(options);
    return Call(&tvmflow_library::self_test_with, &options, result);
  }
  // Returns what the last self-test found, as JSON.
  std::string TestReport() const { return model_ ? library_->test_report(model_) : ""; }

  // Begins to time the choices in the library, and waits for the end.
  tvmflow_status Tune(uint32_t budget_ms, tvmflow_tune_progress progress = nullptr,
                      void* user = nullptr) {
    return Call(&tvmflow_library::tune, budget_ms, progress, user);
  }
  tvmflow_status TuneWait() { return Call(&tvmflow_library::tune_wait); }
  // Returns the result of the last tuning that has ended, as JSON.
  std::string TuneReport() const { return model_ ? library_->tune_report(model_) : ""; }

 private:
  struct Closer {
    void operator()(tvmflow_library* library) const {
      tvmflow_library_close(library);
      delete library;
    }
  };

  void Create(tvmflow_options options) {
    options.struct_size = sizeof(options);
    tvmflow_model* model = nullptr;
    const tvmflow_status status = library_->create(&options, &model);
    if (status == TVMFLOW_OK) {
      model_ = model;
      return;
    }
    // After a failure, the instance only has a message.
    const std::string message =
        model ? library_->message(model) : "Opening the model failed: there is no memory for it.";
    library_->destroy(model);
    Report(status, message);
  }

  template <typename... Parameters, typename... Arguments>
  tvmflow_status Call(tvmflow_status (*tvmflow_library::*function)(tvmflow_model*, Parameters...),
                      Arguments... arguments) {
    if (model_ == nullptr)
      return Report(TVMFLOW_ERROR_ARGUMENT, message_.empty()
                                                ? "Using the model failed: it was moved to another."
                                                : message_);
    const tvmflow_status status = (library_.get()->*function)(model_, arguments...);
    if (status != TVMFLOW_OK) return Report(status, library_->message(model_));
    return status_ = TVMFLOW_OK;
  }

  template <typename Structure, typename Member>
  Structure Sized(Member function) {
    Structure info{};
    info.struct_size = sizeof(info);
    Call(function, &info);
    return info;
  }

  template <typename Member>
  uint32_t Find(Member function, const std::string& name) {
    uint32_t index = 0;
    Call(function, name.c_str(), &index);
    return index;
  }

  template <typename Member>
  tvmflow_tensor Info(Member function, uint32_t index) {
    tvmflow_tensor info{};
    Call(function, index, &info);
    return info;
  }

  tvmflow_status Report(tvmflow_status status, const std::string& message) {
#ifdef TVMFLOW_NO_EXCEPTIONS
    status_ = status;
    message_ = message;
    return status;
#else
    status_ = status;
    message_ = message;
    throw Error(status, message);
#endif
  }

  std::unique_ptr<tvmflow_library, Closer> library_;
  tvmflow_model* model_ = nullptr;
  tvmflow_status status_ = TVMFLOW_OK;
  std::string message_;
};

}  // namespace tvmflow

#endif
