#include "dot_products.h"

#include <stdlib.h>
#include <string.h>

#include "../core/commands.h"
#include "../core/compile.h"
#include "../core/sha256_state.h"

// Qualcomm's function takes signed bytes first, then unsigned ones; some drivers take both as
// unsigned, and some that list the extension refuse it.  So its result is compared once for each
// driver.
static const char source[] =
    "#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable\n"
    "__kernel void tvmflow_dot8(__global int* result, uint w, uint x) {\n"
    "  result[0] = qcom_dot8_acc(w, x, 5);\n"
    "}\n";
static const uint32_t signed_bytes = 0x80FF7F01u;    // 1, 127, -1, -128
static const uint32_t unsigned_bytes = 0xFF80FF02u;  // 2, 255, 128, 255
static const int32_t expected = 5 + 1 * 2 + 127 * 255 - 1 * 128 - 128 * 255;

static bool run(tvmflow_model* m, cl_kernel kernel, cl_mem result) {
  const tf_opencl* const api = &m->device.api;
  const size_t one = 1;
  int32_t got = 0;
  return !api->clSetKernelArg(kernel, 0, sizeof(result), &result) &&
         !api->clSetKernelArg(kernel, 1, sizeof(signed_bytes), &signed_bytes) &&
         !api->clSetKernelArg(kernel, 2, sizeof(unsigned_bytes), &unsigned_bytes) &&
         !api->clEnqueueNDRangeKernel(m->queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL) &&
         !tf_read(&m->device, m->queue, result, NULL, 0, sizeof(got), &got) && got == expected;
}

static bool is_right(tvmflow_model* m) {
  const tf_opencl* const api = &m->device.api;
  cl_int code = CL_SUCCESS;
  bool right = false;
  const cl_program program =
      tf_compile(&m->device, m->context, source, sizeof(source) - 1, m->fault_options, &code);
  const cl_kernel kernel =
      program && !code ? api->clCreateKernel(program, "tvmflow_dot8", &code) : NULL;
  if (kernel && !code) {
    const cl_mem result =
        api->clCreateBuffer(m->context, CL_MEM_READ_WRITE, sizeof(expected), NULL, &code);
    if (!code) {
      right = run(m, kernel, result);
      (void)api->clReleaseMemObject(result);
    }
    (void)api->clReleaseKernel(kernel);
  }
  if (program) (void)api->clReleaseProgram(program);
  return right;
}

const char* tf_dot_options(tvmflow_model* m) {
  if (m->avoided & TF_AVOID_DOT_PRODUCTS) return " -DTVMFLOW_NO_DOT_PRODUCTS";
  if (!tf_device_has(&m->device, "cl_qcom_dot_product8")) return "";
  uint8_t key[32];
  Sha256State hash;
  Sha256Begin(&hash);
  const char* const texts[] = {"tvmflow dot products 1", m->device.name, m->device.driver,
                               m->device.platform_version, m->fault_options};
  for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i)
    Sha256Add(&hash, texts[i], strlen(texts[i]) + 1);
  Sha256End(&hash, key);
  size_t bytes = 0;
  bool shipped;
  uint8_t* const found = tf_cache_load(&m->cache, key, &bytes, &shipped);
  const bool known = found && bytes == 1;
  const uint8_t right = known ? *found : is_right(m);
  free(found);
  if (!known) tf_cache_store(&m->cache, key, &right, 1);
  return right ? " -DTVMFLOW_QCOM_DOT8" : "";
}
