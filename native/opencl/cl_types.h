// The part of OpenCL's C interface that this runtime uses: types, constants and
// structures, declared from the specification (OpenCL 1.2, section numbers below).
// The library is opened at run time, so no OpenCL SDK is needed to compile this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tvmflow::opencl {

// Handles are pointers to structures whose first member is the driver's dispatch
// table (the convention of cl_khr_icd); nothing else of them is known here.
struct ClObject {
  void** dispatch;
};
using cl_platform_id = ClObject*;
using cl_device_id = ClObject*;
using cl_context = ClObject*;
using cl_command_queue = ClObject*;
using cl_mem = ClObject*;
using cl_program = ClObject*;
using cl_kernel = ClObject*;
using cl_event = ClObject*;

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;

struct cl_image_format {
  cl_uint image_channel_order;
  cl_uint image_channel_data_type;
};

struct cl_image_desc {
  cl_uint image_type;
  size_t image_width;
  size_t image_height;
  size_t image_depth;
  size_t image_array_size;
  size_t image_row_pitch;
  size_t image_slice_pitch;
  cl_uint num_mip_levels;
  cl_uint num_samples;
  cl_mem buffer;
};

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_FOUND = -1;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_int CL_PLATFORM_NOT_FOUND_KHR = -1001;

constexpr cl_bool CL_FALSE = 0;
constexpr cl_bool CL_TRUE = 1;

// 4.1 and 4.2: platforms and devices.
constexpr cl_uint CL_PLATFORM_VERSION = 0x0901;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;
constexpr cl_uint CL_PLATFORM_VENDOR = 0x0903;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011;
constexpr cl_uint CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012;
constexpr cl_uint CL_DEVICE_IMAGE_SUPPORT = 0x1016;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_AVAILABLE = 0x1027;
constexpr cl_uint CL_DEVICE_COMPILER_AVAILABLE = 0x1028;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A;
constexpr cl_uint CL_DEVICE_OPENCL_C_VERSION = 0x103D;
constexpr cl_uint CL_DEVICE_IMAGE_MAX_ARRAY_SIZE = 0x1041;
constexpr cl_uint CL_DEVICE_IMAGE_PITCH_ALIGNMENT = 0x104A;
constexpr cl_uint CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108;
constexpr cl_uint CL_DEVICE_WARP_SIZE_NV = 0x4003;
constexpr cl_uint CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;

// 4.4 and 5.1: contexts and queues.
constexpr intptr_t CL_CONTEXT_PLATFORM = 0x1084;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;

// 5.2 and 5.3: memory objects.
constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_uint CL_MEM_OBJECT_IMAGE2D_ARRAY = 0x10F3;
constexpr cl_uint CL_RGBA = 0x10B5;
constexpr cl_uint CL_SIGNED_INT8 = 0x10D7;
constexpr cl_uint CL_SIGNED_INT16 = 0x10D8;
constexpr cl_uint CL_SIGNED_INT32 = 0x10D9;
constexpr cl_uint CL_UNSIGNED_INT8 = 0x10DA;
constexpr cl_uint CL_UNSIGNED_INT16 = 0x10DB;
constexpr cl_uint CL_UNSIGNED_INT32 = 0x10DC;
constexpr cl_uint CL_HALF_FLOAT = 0x10DD;
constexpr cl_uint CL_FLOAT = 0x10DE;

// 5.6 and 5.7: programs and kernels.
constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
constexpr cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;

// 5.12: profiling.
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;

}  // namespace tvmflow::opencl
