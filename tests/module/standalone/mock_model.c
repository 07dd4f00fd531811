// A model without OpenCL, for tests of the languages: "sum" is SCALE * ("a" + "b").
//
// The option `opencl_library` chooses what goes wrong: "fail create 4" makes `tvmflow_create`
// return status 4, "fail run 7" the same for runs, "fail test 9" for the self-test; with "integers"
// the sum is of 32-bit integers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvmflow.h"

#ifndef SCALE
#define SCALE 1
#endif
#ifndef VERSION
#define VERSION TVMFLOW_API_VERSION
#endif
#define ELEMENTS 6
#define TEXT_(value) #value
#define TEXT(value) TEXT_(value)

struct tvmflow_model {
  float values[3][ELEMENTS];  // a, b, sum
  int fails_to_run, test_status, runs, busy, profiled, integers;
  uint32_t shape;
  char message[256];
  char description[512];
};

// Read by whoever looks for a plan in the file; the linker keeps it for this address.
extern const char plan[];
__asm__(
    ".section .rodata.plan, \"a\"\n"
    ".balign 64\n"
    "plan:\n"
#ifdef PLAN
    ".incbin \"" TEXT(PLAN) "\"\n"
#endif
    ".byte 0\n"
    ".previous\n");

static tvmflow_status fail(tvmflow_model* model, int status, const char* what) {
  snprintf(model->message, sizeof(model->message),
           "%s failed: status %d was asked for; naïve 𝄞. Remedy: Ask for 0.\nline 1\nline 2", what,
           status);
  return (tvmflow_status)status;
}

uint32_t tvmflow_api_version(void) { return VERSION; }

tvmflow_status tvmflow_create(const tvmflow_options* options, tvmflow_model** model) {
  if (model == NULL) return TVMFLOW_ERROR_ARGUMENT;
  tvmflow_model* made = *model = calloc(1, sizeof(**model));
  if (made == NULL) return TVMFLOW_ERROR_MEMORY;
  const char* library = options ? options->opencl_library : NULL;
  const char* cache = options && options->cache_folder ? options->cache_folder : "";
  int status = 0;
  made->profiled = options && (options->flags & TVMFLOW_PROFILE);
  snprintf(made->description, sizeof(made->description),
           "{\"name\": \"sum %d\", \"device\": {\"name\": \"mock\", \"index\": %u, \"backend\": "
           "%u, \"threads\": %u, \"flags\": %u}, "
           "\"cache\": \"%s\", \"plan\": %d, \"drivers\": %s}",
           SCALE, options ? options->device_index : 0, options ? options->backend : 0,
           options ? options->cpu_threads : 0, options ? options->flags : 0, cache, plan[0],
           options && options->drivers ? options->drivers : "[]");
  if (options && options->log)
    options->log(options->log_user, TVMFLOW_LOG_WARNING, "Grüße 𝄞: see tvmflow_set_input.");
  if (library && sscanf(library, "fail create %d", &status) == 1)
    return fail(made, status, "Creating the model");
  made->integers = library && !strcmp(library, "integers");
  if (library) sscanf(library, "fail run %d", &made->fails_to_run);
  if (library) sscanf(library, "fail test %d", &made->test_status);
  return TVMFLOW_OK;
}

void tvmflow_destroy(tvmflow_model* model) { free(model); }
const char* tvmflow_message(const tvmflow_model* model) { return model ? model->message : ""; }
const char* tvmflow_describe(const tvmflow_model* model) { return model->description; }
uint32_t tvmflow_input_count(const tvmflow_model* model) { return model ? 2 : 0; }
uint32_t tvmflow_output_count(const tvmflow_model* model) { return model ? 1 : 0; }

static tvmflow_status tensor(tvmflow_model* model, const char* name, tvmflow_tensor* info) {
  if (info == NULL) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Describing a tensor");
  memset(info, 0, sizeof(*info));
  info->name = name;
  info->layout = "";
  info->dtype = TVMFLOW_FLOAT32;
  info->dimensions = 2;
  info->shape[0] = 2;
  info->shape[1] = ELEMENTS / 2;
  info->bytes = sizeof(model->values[0]);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_input(tvmflow_model* model, uint32_t index, tvmflow_tensor* info) {
  if (index > 1) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Describing an input");
  return tensor(model, index ? "b/𝄞" : "a", info);
}

tvmflow_status tvmflow_output(tvmflow_model* model, uint32_t index, tvmflow_tensor* info) {
  if (index > 0) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Describing an output");
  const tvmflow_status status = tensor(model, "sum", info);
  if (!status && model->integers) info->dtype = TVMFLOW_INT32;
  return status;
}

tvmflow_backend tvmflow_backend_used(const tvmflow_model* model) {
  return model ? TVMFLOW_CPU : TVMFLOW_AUTO;
}

// Two shapes that are alike, the second of which only has a number.
uint32_t tvmflow_shape_count(const tvmflow_model* model) { return model ? 2 : 0; }
uint32_t tvmflow_shape(const tvmflow_model* model) { return model ? model->shape : 0; }

tvmflow_status tvmflow_choose_shape(tvmflow_model* model, uint32_t index) {
  if (index > 1) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Choosing a shape");
  model->shape = index;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_set_shape(tvmflow_model* model, uint32_t input, const int64_t* dims,
                                 uint32_t count) {
  if (input > 1 || count != 2 || dims[0] != 2 || dims[1] != ELEMENTS / 2)
    return fail(model, TVMFLOW_ERROR_ARGUMENT, "Setting a shape");
  model->shape = 0;
  return TVMFLOW_OK;
}

static int fits(uint32_t index, uint32_t count, const void* data, size_t n) {
  return index < count && data && n == ELEMENTS * sizeof(float);
}

tvmflow_status tvmflow_set_input(tvmflow_model* model, uint32_t index, tvmflow_dtype dtype,
                                 const void* data, size_t bytes) {
  if (dtype != TVMFLOW_FLOAT32 || !fits(index, 2, data, bytes))
    return fail(model, TVMFLOW_ERROR_ARGUMENT, "Setting an input");
  memcpy(model->values[index], data, bytes);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_get_output(tvmflow_model* model, uint32_t index, tvmflow_dtype dtype,
                                  void* data, size_t bytes) {
  if (dtype != (model->integers ? TVMFLOW_INT32 : TVMFLOW_FLOAT32) || !fits(index, 1, data, bytes))
    return fail(model, TVMFLOW_ERROR_ARGUMENT, "Getting an output");
  model->busy = 0;
  if (model->integers)
    for (int i = 0; i < ELEMENTS; ++i) ((int32_t*)data)[i] = (int32_t)model->values[2][i];
  else
    memcpy(data, model->values[2], bytes);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_output_data(tvmflow_model* model, uint32_t index, tvmflow_dtype dtype,
                                   const void** data, size_t bytes) {
  if (model->integers || dtype != TVMFLOW_FLOAT32 || !fits(index, 1, data, bytes))
    return fail(model, TVMFLOW_ERROR_ARGUMENT, "Reading an output");
  model->busy = 0;
  *data = model->values[2];
  return TVMFLOW_OK;
}

const char* tvmflow_status_name(tvmflow_status status) { return status ? "bad" : "good"; }

// A picture of one row of grey levels, which are the first input's values; of YUV420 levels of luma
// and the first ones of U and V.
tvmflow_status tvmflow_image_input(tvmflow_model* model, uint32_t index, tvmflow_image_info* info) {
  if (index > 0) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Asking for pictures");
  info->format = TVMFLOW_GREY8;
  info->width = ELEMENTS;
  info->height = 1;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_set_image(tvmflow_model* model, uint32_t index, const tvmflow_image* image) {
  if (index == 0 && image->has_format && image->format == TVMFLOW_YUV420) {
    if (image->width != 4 || image->height != 2 || image->rotation != 90 ||
        image->strides[0] != 5 || image->strides[1] != 6 || image->strides[2] != 6 ||
        image->pixel_strides[0] != 1 || image->pixel_strides[1] != 2 ||
        image->pixel_strides[2] != 2 || image->bytes[0] != 9 || image->bytes[1] != 3 ||
        image->bytes[2] != 3)
      return fail(model, TVMFLOW_ERROR_ARGUMENT, "Setting planes");
    for (int i = 0; i < 4; ++i) model->values[0][i] = ((const unsigned char*)image->planes[0])[i];
    model->values[0][4] = ((const unsigned char*)image->planes[1])[2];
    model->values[0][5] = ((const unsigned char*)image->planes[2])[2];
    return TVMFLOW_OK;
  }
  if (index > 0 || image->struct_size != sizeof(*image) || image->width != ELEMENTS ||
      image->height != 1 || image->rotation != 180 || image->strides[0] != 64 ||
      !image->planes[0] || (image->bytes[0] && image->bytes[0] < ELEMENTS))
    return fail(model, TVMFLOW_ERROR_ARGUMENT, "Setting a picture");
  for (int i = 0; i < ELEMENTS; ++i)
    model->values[0][i] = ((const unsigned char*)image->planes[0])[ELEMENTS - 1 - i];
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_image_place(tvmflow_model* model, uint32_t index, double scale[2],
                                   double offset[2]) {
  if (index > 0) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Asking for a place");
  scale[0] = 2, scale[1] = 3, offset[0] = -4, offset[1] = 5;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_use_input(tvmflow_model* model, uint32_t index, void* cl_memory) {
  return index < 2 && !cl_memory ? TVMFLOW_OK : fail(model, TVMFLOW_ERROR_ARGUMENT, "Sharing");
}

tvmflow_status tvmflow_use_output(tvmflow_model* model, uint32_t index, void* cl_memory) {
  return index < 1 && !cl_memory ? TVMFLOW_OK : fail(model, TVMFLOW_ERROR_ARGUMENT, "Sharing");
}

tvmflow_status tvmflow_find_input(tvmflow_model* model, const char* name, uint32_t* index) {
  *index = strcmp(name, "a") ? 1 : 0;
  return *index && strcmp(name, "b/𝄞") ? fail(model, TVMFLOW_ERROR_ARGUMENT, "Looking") : 0;
}

tvmflow_status tvmflow_find_output(tvmflow_model* model, const char* name, uint32_t* index) {
  *index = 0;
  return strcmp(name, "sum") ? fail(model, TVMFLOW_ERROR_ARGUMENT, "Looking") : TVMFLOW_OK;
}

tvmflow_status tvmflow_opencl(tvmflow_model* model, tvmflow_opencl_info* info) {
  info->context = info->device = info->queue = NULL;
  info->library = NULL;
  return model ? TVMFLOW_OK : TVMFLOW_ERROR_ARGUMENT;
}

tvmflow_status tvmflow_memory(tvmflow_model* model, tvmflow_memory_info* info) {
  if (info->struct_size != sizeof(*info)) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Memory");
  info->weights = 1000, info->tensors = 200, info->pictures = 30, info->host = 4;
  info->weights_shared = 1;
  return TVMFLOW_OK;
}

// What is cancelled is the next run.
void tvmflow_cancel(tvmflow_model* model) { model->fails_to_run = TVMFLOW_ERROR_CANCELLED; }

tvmflow_status tvmflow_run_async(tvmflow_model* model, const tvmflow_run_options* options) {
  const tvmflow_status status = tvmflow_start(model);
  if (options && options->done) options->done(options->user, status);
  return status;
}

tvmflow_status tvmflow_start(tvmflow_model* model) {
  if (model->busy) return fail(model, TVMFLOW_ERROR_BUSY, "Starting");
  if (model->fails_to_run) return fail(model, model->fails_to_run, "Running");
  for (int i = 0; i < ELEMENTS; ++i)
    model->values[2][i] = SCALE * (model->values[0][i] + model->values[1][i]);
  model->runs += 1;
  model->busy = 1;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_wait(tvmflow_model* model) {
  model->busy = 0;
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_run(tvmflow_model* model) {
  tvmflow_status status = tvmflow_start(model);
  return status == TVMFLOW_OK ? tvmflow_wait(model) : status;
}

tvmflow_status tvmflow_warm_up(tvmflow_model* model) { return tvmflow_run(model); }

tvmflow_status tvmflow_profile(tvmflow_model* model, const tvmflow_kernel** kernels,
                               uint32_t* count) {
  static const tvmflow_kernel times[] = {{"add_kernel", "add", 1000, 4000},
                                         {"scale_kernel", "scale", 4500, 6000}};
  if (!model->profiled) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Profiling");
  tvmflow_status status = tvmflow_run(model);
  *kernels = times;
  *count = 2;
  return status;
}

tvmflow_status tvmflow_self_test_with(tvmflow_model* model, const tvmflow_test_options* options,
                                      tvmflow_test* result) {
  int wrong = model->test_status == TVMFLOW_ERROR_WRONG;
  if (result != NULL) *result = (tvmflow_test){wrong ? 3.5 : 0.25, wrong ? 14.0 : 0.5, 6};
  (void)options;
  return model->test_status ? fail(model, model->test_status, "The self-test") : TVMFLOW_OK;
}

tvmflow_status tvmflow_self_test(tvmflow_model* model, tvmflow_test* result) {
  return tvmflow_self_test_with(model, NULL, result);
}

tvmflow_status tvmflow_tune(tvmflow_model* model, uint32_t budget_ms,
                            tvmflow_tune_progress progress, void* user) {
  if (!budget_ms) return fail(model, TVMFLOW_ERROR_ARGUMENT, "Tuning");
  if (progress) progress(user, 0.75);
  return TVMFLOW_OK;
}

tvmflow_status tvmflow_tune_wait(tvmflow_model* model) {
  (void)model;
  return TVMFLOW_OK;
}

const char* tvmflow_tune_report(const tvmflow_model* model) {
  (void)model;
  return "{\"used\":3}";
}

const char* tvmflow_test_report(const tvmflow_model* model) {
  (void)model;
  return "{\"functions\":[]}";
}
