// Bandwidth of an OpenCL device by loops that were written by hand, to check `tvmflow probe`.
//
//     gcc -O2 -Inative/core benchmarks/bandwidth_loop.c -o bandwidth_loop -l:libOpenCL.so.1
//     ./bandwidth_loop [MIB [ROUNDS]]
//
// It prints the median rates in GB/s of a buffer's copy (bytes read and written) and of reading an
// image array of fp32 texels, by the clock of the host, on the first device of the first platform.
// It shares no code with the package: only names of types and constants are its.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cl_types.h"

cl_int clGetPlatformIDs(cl_uint, cl_platform_id*, cl_uint*);
cl_int clGetDeviceIDs(cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*);
cl_int clGetDeviceInfo(cl_device_id, cl_uint, size_t, void*, size_t*);
cl_context clCreateContext(const intptr_t*, cl_uint, const cl_device_id*, void*, void*, cl_int*);
cl_command_queue clCreateCommandQueue(cl_context, cl_device_id, cl_bitfield, cl_int*);
cl_mem clCreateBuffer(cl_context, cl_bitfield, size_t, void*, cl_int*);
cl_mem clCreateImage(cl_context, cl_bitfield, const cl_image_format*, const cl_image_desc*, void*,
                     cl_int*);
cl_program clCreateProgramWithSource(cl_context, cl_uint, const char**, const size_t*, cl_int*);
cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id*, const char*, void*, void*);
cl_kernel clCreateKernel(cl_program, const char*, cl_int*);
cl_int clSetKernelArg(cl_kernel, cl_uint, size_t, const void*);
cl_int clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*,
                              const size_t*, cl_uint, const cl_event*, cl_event*);
cl_int clEnqueueReadBuffer(cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint,
                           const cl_event*, cl_event*);
cl_int clFinish(cl_command_queue);

enum { WIDTH = 1024, HEIGHT = 1024, MOST_ROUNDS = 1000, TEXEL = 16, MIB = 1 << 20 };
enum { RGBA = 0x10B5, FLOATS = 0x10DE, IMAGE_ARRAY = 0x10F3, COPY_HOST = 1 << 5, UNITS = 0x1002 };

static const char source[] =
    "kernel void copy(global const float4* from, global float4* to, ulong count) {\n"
    "  const ulong each = count / get_global_size(0), first = get_global_id(0) * each;\n"
    "  for (ulong i = first; i < first + each; ++i) to[i] = from[i];\n"
    "}\n"
    "constant sampler_t nearest = CLK_FILTER_NEAREST | CLK_ADDRESS_NONE;\n"
    "kernel void total(read_only image2d_array_t image, global float4* sums, int width) {\n"
    "  const int row = get_global_id(0), layer = get_global_id(1);\n"
    "  float4 even = 0, odd = 0;\n"
    "  for (int column = 0; column < width; column += 2) {\n"
    "    even += read_imagef(image, nearest, (int4)(column, row, layer, 0));\n"
    "    odd += read_imagef(image, nearest, (int4)(column + 1, row, layer, 0));\n"
    "  }\n"
    "  sums[layer * get_global_size(0) + row] = even + odd;\n"
    "}\n";

static void require(cl_int code, const char* what) {
  if (code == CL_SUCCESS) return;
  fprintf(stderr, "%s failed with %d\n", what, code);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// Returns the median time of a kernel, after one run that is not counted.
static double median(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                     const size_t* global, const size_t* local, int rounds) {
  static double times[MOST_ROUNDS];
  for (int round = -1; round < rounds; ++round) {
    const double began = now();
    require(clEnqueueNDRangeKernel(queue, kernel, dimensions, NULL, global, local, 0, NULL, NULL),
            "clEnqueueNDRangeKernel");
    require(clFinish(queue), "clFinish");
    if (round >= 0) times[round] = now() - began;
  }
  qsort(times, (size_t)rounds, sizeof(double), compare);
  return times[rounds / 2];
}

int main(int count, char** words) {
  const size_t bytes = (size_t)(count > 1 ? atoi(words[1]) : 128) * MIB;
  const int rounds = count > 2 ? atoi(words[2]) : 11;
  const size_t layers = bytes / (WIDTH * HEIGHT * TEXEL);
  if (!layers || rounds < 1 || rounds > MOST_ROUNDS) {
    fprintf(stderr, "usage: %s [MIB, at least 16 [ROUNDS]]\n", words[0]);
    return 1;
  }
  cl_platform_id platform;
  cl_device_id device;
  cl_uint units = 0;
  cl_int code;
  require(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
  require(clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL), "clGetDeviceIDs");
  require(clGetDeviceInfo(device, UNITS, sizeof(units), &units, NULL), "clGetDeviceInfo");
  const cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &code);
  require(code, "clCreateContext");
  const cl_command_queue queue = clCreateCommandQueue(context, device, 0, &code);
  require(code, "clCreateCommandQueue");
  const char* text = source;
  const cl_program program = clCreateProgramWithSource(context, 1, &text, NULL, &code);
  require(code, "clCreateProgramWithSource");
  require(clBuildProgram(program, 1, &device, "", NULL, NULL), "clBuildProgram");

  float* const data = malloc(bytes);
  if (!data) return 1;
  for (size_t i = 0; i < bytes / sizeof(float); ++i) data[i] = (float)(i % 3);
  const cl_mem from = clCreateBuffer(context, 1 | COPY_HOST, bytes, data, &code);
  require(code, "clCreateBuffer");
  const cl_mem to = clCreateBuffer(context, 1, bytes, NULL, &code);
  require(code, "clCreateBuffer");
  const cl_kernel copy = clCreateKernel(program, "copy", &code);
  require(code, "clCreateKernel");
  const cl_ulong vectors = bytes / TEXEL;
  require(clSetKernelArg(copy, 0, sizeof(from), &from), "clSetKernelArg");
  require(clSetKernelArg(copy, 1, sizeof(to), &to), "clSetKernelArg");
  require(clSetKernelArg(copy, 2, sizeof(vectors), &vectors), "clSetKernelArg");
  const size_t items[] = {64 * (size_t)(units ? units : 1)}, one[] = {1, 1};
  // Work-items of a power of two divide the vectors.
  size_t parts[] = {1};
  while (2 * parts[0] <= items[0]) parts[0] *= 2;
  const double copying = median(queue, copy, 1, parts, one, rounds);
  float* const copied = calloc(bytes, 1);
  if (!copied) return 1;
  require(clEnqueueReadBuffer(queue, to, 1, 0, bytes, copied, 0, NULL, NULL),
          "clEnqueueReadBuffer");
  if (memcmp(copied, data, bytes) != 0) {
    fprintf(stderr, "The copy is wrong.\n");
    return 1;
  }

  const cl_image_format format = {RGBA, FLOATS};
  const cl_image_desc about = {.image_type = IMAGE_ARRAY,
                               .image_width = WIDTH,
                               .image_height = HEIGHT,
                               .image_array_size = layers};
  const cl_mem image = clCreateImage(context, 1 | COPY_HOST, &format, &about, data, &code);
  require(code, "clCreateImage");
  const cl_kernel total = clCreateKernel(program, "total", &code);
  require(code, "clCreateKernel");
  const cl_int width = WIDTH;
  require(clSetKernelArg(total, 0, sizeof(image), &image), "clSetKernelArg");
  require(clSetKernelArg(total, 1, sizeof(to), &to), "clSetKernelArg");
  require(clSetKernelArg(total, 2, sizeof(width), &width), "clSetKernelArg");
  const size_t rows[] = {HEIGHT, layers};
  const double reading = median(queue, total, 2, rows, one, rounds);
  const size_t sums = HEIGHT * layers * 4;
  require(clEnqueueReadBuffer(queue, to, 1, 0, sums * sizeof(float), copied, 0, NULL, NULL),
          "clEnqueueReadBuffer");
  double found = 0, expected = 0;
  for (size_t i = 0; i < sums; ++i) found += copied[i];
  for (size_t i = 0; i < layers * WIDTH * HEIGHT * 4; ++i) expected += data[i];
  if (found != expected) {
    fprintf(stderr, "The sum is %g, expected %g.\n", found, expected);
    return 1;
  }
  printf("buffer_gbps %.3f\n", 2e-9 * (double)bytes / copying);
  printf("image_gbps %.3f\n", 1e-9 * (double)(layers * WIDTH * HEIGHT * TEXEL) / reading);
  return 0;
}
