// Tables of the OpenCL entry points that the runtimes use.
#pragma once

#include "cl_types.h"

// Entry points of OpenCL 1.2, which every driver must have: name, index in the dispatch table of
// cl_khr_icd, return type, parameters.  A driver that is opened without a loader exports no clXxx
// symbols; its entry points are then read from that table by index.
#define TVMFLOW_OPENCL_ENTRY_POINTS(ROW)                                                           \
  ROW(clGetPlatformInfo, 1, cl_int, (cl_platform_id, cl_uint, size_t, void*, size_t*))             \
  ROW(clGetDeviceIDs, 2, cl_int, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))  \
  ROW(clGetDeviceInfo, 3, cl_int, (cl_device_id, cl_uint, size_t, void*, size_t*))                 \
  ROW(clCreateContext, 4, cl_context,                                                              \
      (const intptr_t*, cl_uint, const cl_device_id*,                                              \
       void (*)(const char*, const void*, size_t, void*), void*, cl_int*))                         \
  ROW(clRetainContext, 6, cl_int, (cl_context))                                                    \
  ROW(clReleaseContext, 7, cl_int, (cl_context))                                                   \
  ROW(clCreateCommandQueue, 9, cl_command_queue, (cl_context, cl_device_id, cl_bitfield, cl_int*)) \
  ROW(clReleaseCommandQueue, 11, cl_int, (cl_command_queue))                                       \
  ROW(clCreateBuffer, 14, cl_mem, (cl_context, cl_bitfield, size_t, void*, cl_int*))               \
  ROW(clRetainMemObject, 17, cl_int, (cl_mem))                                                     \
  ROW(clReleaseMemObject, 18, cl_int, (cl_mem))                                                    \
  ROW(clGetMemObjectInfo, 20, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))                   \
  ROW(clGetImageInfo, 21, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))                       \
  ROW(clCreateProgramWithSource, 26, cl_program,                                                   \
      (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                 \
  ROW(clCreateProgramWithBinary, 27, cl_program,                                                   \
      (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*,    \
       cl_int*))                                                                                   \
  ROW(clReleaseProgram, 29, cl_int, (cl_program))                                                  \
  ROW(clBuildProgram, 30, cl_int,                                                                  \
      (cl_program, cl_uint, const cl_device_id*, const char*, void (*)(cl_program, void*), void*)) \
  ROW(clGetProgramInfo, 32, cl_int, (cl_program, cl_uint, size_t, void*, size_t*))                 \
  ROW(clGetProgramBuildInfo, 33, cl_int,                                                           \
      (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                                 \
  ROW(clCreateKernel, 34, cl_kernel, (cl_program, const char*, cl_int*))                           \
  ROW(clReleaseKernel, 37, cl_int, (cl_kernel))                                                    \
  ROW(clSetKernelArg, 38, cl_int, (cl_kernel, cl_uint, size_t, const void*))                       \
  ROW(clGetKernelWorkGroupInfo, 40, cl_int,                                                        \
      (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                                  \
  ROW(clWaitForEvents, 41, cl_int, (cl_uint, const cl_event*))                                     \
  ROW(clReleaseEvent, 44, cl_int, (cl_event))                                                      \
  ROW(clGetEventProfilingInfo, 45, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))            \
  ROW(clFlush, 46, cl_int, (cl_command_queue))                                                     \
  ROW(clFinish, 47, cl_int, (cl_command_queue))                                                    \
  ROW(clEnqueueReadBuffer, 48, cl_int,                                                             \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*,         \
       cl_event*))                                                                                 \
  ROW(clEnqueueWriteBuffer, 49, cl_int,                                                            \
      (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*,   \
       cl_event*))                                                                                 \
  ROW(clEnqueueCopyBuffer, 50, cl_int,                                                             \
      (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,         \
       cl_event*))                                                                                 \
  ROW(clEnqueueReadImage, 51, cl_int,                                                              \
      (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t, void*,     \
       cl_uint, const cl_event*, cl_event*))                                                       \
  ROW(clEnqueueWriteImage, 52, cl_int,                                                             \
      (cl_command_queue, cl_mem, cl_bool, const size_t*, const size_t*, size_t, size_t,            \
       const void*, cl_uint, const cl_event*, cl_event*))                                          \
  ROW(clEnqueueCopyImage, 53, cl_int,                                                              \
      (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, const size_t*, cl_uint,     \
       const cl_event*, cl_event*))                                                                \
  ROW(clEnqueueCopyImageToBuffer, 54, cl_int,                                                      \
      (cl_command_queue, cl_mem, cl_mem, const size_t*, const size_t*, size_t, cl_uint,            \
       const cl_event*, cl_event*))                                                                \
  ROW(clEnqueueCopyBufferToImage, 55, cl_int,                                                      \
      (cl_command_queue, cl_mem, cl_mem, size_t, const size_t*, const size_t*, cl_uint,            \
       const cl_event*, cl_event*))                                                                \
  ROW(clEnqueueNDRangeKernel, 59, cl_int,                                                          \
      (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, \
       const cl_event*, cl_event*))                                                                \
  ROW(clCreateImage, 96, cl_mem,                                                                   \
      (cl_context, cl_bitfield, const cl_image_format*, const cl_image_desc*, void*, cl_int*))

// Entry points for extensions and events; NULL if the driver lacks them.
#define TVMFLOW_OPENCL_OPTIONAL_ENTRY_POINTS(ROW)                                                  \
  ROW(clSetEventCallback, 81, cl_int,                                                              \
      (cl_event, cl_int, void (*)(cl_event, cl_int, void*), void*))                                \
  ROW(clEnqueueMarkerWithWaitList, 105, cl_int,                                                    \
      (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                     \
  ROW(clEnqueueBarrierWithWaitList, 106, cl_int,                                                   \
      (cl_command_queue, cl_uint, const cl_event*, cl_event*))                                     \
  ROW(clGetExtensionFunctionAddress, 65, void*, (const char*))                                     \
  ROW(clGetExtensionFunctionAddressForPlatform, 107, void*, (cl_platform_id, const char*))

// Entry points of OpenCL 2.0; NULL if the driver lacks them.
#define TVMFLOW_OPENCL_2_ENTRY_POINTS(ROW)                                                         \
  ROW(clSVMAlloc, 126, void*, (cl_context, cl_bitfield, size_t, cl_uint))                          \
  ROW(clSVMFree, 127, void, (cl_context, void*))
