// build_kernels OPTIONS FILE...: compile each file of OpenCL C separately for the first device.
//
// The driver's compiler prints its machine code if environment variables say so; lines of this
// program, which begin with @@, identify the file.  It also runs with a driver of another system or
// machine (`tvmflow isa`), so it needs no header and no library but C's.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cl_types.h"

typedef struct Api {
  cl_int (*GetPlatformIDs)(cl_uint, cl_platform_id*, cl_uint*);
  cl_int (*GetDeviceIDs)(cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*);
  cl_int (*GetDeviceInfo)(cl_device_id, cl_uint, size_t, void*, size_t*);
  cl_context (*CreateContext)(const intptr_t*, cl_uint, const cl_device_id*, void*, void*, cl_int*);
  cl_program (*CreateProgramWithSource)(cl_context, cl_uint, const char**, const size_t*, cl_int*);
  cl_int (*BuildProgram)(cl_program, cl_uint, const cl_device_id*, const char*, void*, void*);
  cl_int (*GetProgramBuildInfo)(cl_program, cl_device_id, cl_uint, size_t, void*, size_t*);
  cl_int (*CreateKernelsInProgram)(cl_program, cl_uint, cl_kernel*, cl_uint*);
  cl_int (*ReleaseKernel)(cl_kernel);
  cl_int (*ReleaseProgram)(cl_program);
} Api;

enum { kAllDevices = -1, kDeviceName = 0x102B, kDriverVersion = 0x102D, kBuildLog = 0x1183 };
enum { kMaxKernels = 64 };

static char text[1 << 16];

static int open_library(Api* api) {
  void* library = dlopen("libOpenCL.so.1", RTLD_NOW);
  if (!library) return 0;
  const char* names[] = {"clGetPlatformIDs",          "clGetDeviceIDs",
                         "clGetDeviceInfo",           "clCreateContext",
                         "clCreateProgramWithSource", "clBuildProgram",
                         "clGetProgramBuildInfo",     "clCreateKernelsInProgram",
                         "clReleaseKernel",           "clReleaseProgram"};
  void** functions = (void**)api;
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    functions[i] = dlsym(library, names[i]);
    if (!functions[i]) return 0;
  }
  return 1;
}

static char* read_file(const char* name) {
  FILE* file = fopen(name, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  rewind(file);
  char* content = size < 0 ? NULL : malloc((size_t)size + 1);
  if (content) content[fread(content, 1, (size_t)size, file)] = 0;
  fclose(file);
  return content;
}

static void build(const Api* api, cl_context context, cl_device_id device, const char* options,
                  const char* name) {
  printf("@@ file %s\n", name);
  char* source = read_file(name);
  if (!source) {
    printf("@@ failed: the file cannot be read\n");
    return;
  }
  cl_int error = CL_SUCCESS;
  const char* sources[] = {source};
  cl_program program = api->CreateProgramWithSource(context, 1, sources, NULL, &error);
  if (!error) error = api->BuildProgram(program, 1, &device, options, NULL, NULL);
  cl_uint count = 0;
  cl_kernel kernels[kMaxKernels];
  if (error) {
    text[0] = 0;
    if (program) {
      api->GetProgramBuildInfo(program, device, kBuildLog, sizeof text, text, NULL);
    }
    printf("@@ failed: OpenCL error %d\n%s\n", error, text);
  } else if ((error = api->CreateKernelsInProgram(program, kMaxKernels, kernels, &count))) {
    // Some drivers generate a kernel's machine code only when it is created.
    printf("@@ failed: OpenCL error %d of clCreateKernelsInProgram\n", error);
  }
  for (cl_uint i = 0; i < count && !error; ++i) api->ReleaseKernel(kernels[i]);
  if (program) api->ReleaseProgram(program);
  free(source);
  printf("@@ end\n");
}

int main(int count, char** arguments) {
  // Without buffers, the output of the driver and of this program stay in order, even in a crash.
  setvbuf(stdout, NULL, _IONBF, 0);
  Api api;
  if (!open_library(&api)) {
    printf("@@ failed: %s\n", dlerror());
    return 2;
  }
  cl_platform_id platform;
  cl_device_id device;
  cl_uint found = 0;
  if (api.GetPlatformIDs(1, &platform, &found) || !found) {
    printf("@@ failed: the driver offers no platform\n");
    return 3;
  }
  if (api.GetDeviceIDs(platform, (cl_bitfield)(cl_uint)kAllDevices, 1, &device, &found) || !found) {
    printf("@@ failed: the driver offers no device\n");
    return 4;
  }
  api.GetDeviceInfo(device, kDeviceName, sizeof text, text, NULL);
  printf("@@ device %s\n", text);
  api.GetDeviceInfo(device, kDriverVersion, sizeof text, text, NULL);
  printf("@@ driver %s\n", text);
  cl_int error = CL_SUCCESS;
  cl_context context = api.CreateContext(NULL, 1, &device, NULL, NULL, &error);
  if (error) {
    printf("@@ failed: OpenCL error %d of clCreateContext\n", error);
    return 5;
  }
  for (int i = 2; i < count; ++i) build(&api, context, device, arguments[1], arguments[i]);
  return 0;
}
