// The functions that applications call: entry.c lets in one thread at a time, and calls `tf_do_*`.
#ifndef TVMFLOW_STANDALONE_ENTRY_H
#define TVMFLOW_STANDALONE_ENTRY_H

#include "message.h"

// Name, whether it uses the device, parameters and arguments of each function.
#define TF_ENTRIES(ROW)                                                                            \
  ROW(input, false, (tvmflow_model * m, uint32_t index, tvmflow_tensor* info), (m, index, info))   \
  ROW(output, false, (tvmflow_model * m, uint32_t index, tvmflow_tensor* info), (m, index, info))  \
  ROW(find_input, false, (tvmflow_model * m, const char* name, uint32_t* index), (m, name, index)) \
  ROW(find_output, false, (tvmflow_model * m, const char* name, uint32_t* index),                  \
      (m, name, index))                                                                            \
  ROW(opencl, false, (tvmflow_model * m, tvmflow_opencl_info * info), (m, info))                   \
  ROW(memory, false, (tvmflow_model * m, tvmflow_memory_info * info), (m, info))                   \
  ROW(set_input, true,                                                                             \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, const void* data, size_t bytes),    \
      (m, index, dtype, data, bytes))                                                              \
  ROW(get_output, false,                                                                           \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, void* data, size_t bytes),          \
      (m, index, dtype, data, bytes))                                                              \
  ROW(output_data, false,                                                                          \
      (tvmflow_model * m, uint32_t index, tvmflow_dtype dtype, const void** data, size_t bytes),   \
      (m, index, dtype, data, bytes))                                                              \
  ROW(use_input, true, (tvmflow_model * m, uint32_t index, void* memory), (m, index, memory))      \
  ROW(use_output, true, (tvmflow_model * m, uint32_t index, void* memory), (m, index, memory))     \
  ROW(image_input, false, (tvmflow_model * m, uint32_t index, tvmflow_image_info* info),           \
      (m, index, info))                                                                            \
  ROW(set_image, true, (tvmflow_model * m, uint32_t index, const tvmflow_image* image),            \
      (m, index, image))                                                                           \
  ROW(image_place, false, (tvmflow_model * m, uint32_t index, double scale[2], double offset[2]),  \
      (m, index, scale, offset))                                                                   \
  ROW(choose_shape, true, (tvmflow_model * m, uint32_t index), (m, index))                         \
  ROW(set_shape, true, (tvmflow_model * m, uint32_t input, const int64_t* dims, uint32_t count),   \
      (m, input, dims, count))                                                                     \
  ROW(warm_up, true, (tvmflow_model * m), (m))                                                     \
  ROW(run, true, (tvmflow_model * m), (m))                                                         \
  ROW(start, true, (tvmflow_model * m), (m))                                                       \
  ROW(run_async, true, (tvmflow_model * m, const tvmflow_run_options* options), (m, options))      \
  ROW(wait, false, (tvmflow_model * m), (m))                                                       \
  ROW(profile, true, (tvmflow_model * m, const tvmflow_kernel** kernels, uint32_t* count),         \
      (m, kernels, count))                                                                         \
  ROW(self_test, true, (tvmflow_model * m, tvmflow_test * result), (m, result))                    \
  ROW(self_test_with, true,                                                                        \
      (tvmflow_model * m, const tvmflow_test_options* options, tvmflow_test* result),              \
      (m, options, result))                                                                        \
  ROW(tune, true,                                                                                  \
      (tvmflow_model * m, uint32_t budget_ms, tvmflow_tune_progress progress, void* user),         \
      (m, budget_ms, progress, user))                                                              \
  ROW(tune_wait, true, (tvmflow_model * m), (m))
#define TF_DECLARE(name, uses_device, parameters, arguments) tvmflow_status tf_do_##name parameters;
TF_ENTRIES(TF_DECLARE)
#undef TF_DECLARE

#endif
