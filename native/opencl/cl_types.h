// The part of OpenCL's C interface that the runtimes use: types, constants and structures,
// declared from the specification (OpenCL 1.2, section numbers below).  The library is opened
// at run time, so no OpenCL SDK is needed to compile this.
//
// It is used by C++ (native/opencl) and C (native/standalone).
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define TVMFLOW_CONSTANT constexpr
namespace tvmflow::opencl {
#else
#define TVMFLOW_CONSTANT static const
#endif

// Handles are pointers to structures whose first member is the driver's dispatch
// table (the convention of cl_khr_icd); their other members are unknown here.
typedef struct ClObject {
  void** dispatch;
} ClObject;
typedef ClObject* cl_platform_id;
typedef ClObject* cl_device_id;
typedef ClObject* cl_context;
typedef ClObject* cl_command_queue;
typedef ClObject* cl_mem;
typedef ClObject* cl_program;
typedef ClObject* cl_kernel;
typedef ClObject* cl_event;

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef cl_uint cl_bool;
typedef cl_ulong cl_bitfield;

typedef struct cl_image_format {
  cl_uint image_channel_order;
  cl_uint image_channel_data_type;
} cl_image_format;

typedef struct cl_image_desc {
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
} cl_image_desc;

TVMFLOW_CONSTANT cl_int CL_SUCCESS = 0;
TVMFLOW_CONSTANT cl_int CL_COMPLETE = 0;
TVMFLOW_CONSTANT cl_int CL_DEVICE_NOT_FOUND = -1;
TVMFLOW_CONSTANT cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
TVMFLOW_CONSTANT cl_int CL_OUT_OF_RESOURCES = -5;
TVMFLOW_CONSTANT cl_int CL_OUT_OF_HOST_MEMORY = -6;
TVMFLOW_CONSTANT cl_int CL_PROFILING_INFO_NOT_AVAILABLE = -7;
TVMFLOW_CONSTANT cl_int CL_INVALID_VALUE = -30;
TVMFLOW_CONSTANT cl_int CL_INVALID_QUEUE_PROPERTIES = -35;
TVMFLOW_CONSTANT cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
TVMFLOW_CONSTANT cl_int CL_PLATFORM_NOT_FOUND_KHR = -1001;

TVMFLOW_CONSTANT cl_bool CL_FALSE = 0;
TVMFLOW_CONSTANT cl_bool CL_TRUE = 1;

// 4.1 and 4.2: platforms and devices.
TVMFLOW_CONSTANT cl_uint CL_PLATFORM_VERSION = 0x0901;
TVMFLOW_CONSTANT cl_uint CL_PLATFORM_NAME = 0x0902;
TVMFLOW_CONSTANT cl_uint CL_PLATFORM_VENDOR = 0x0903;
TVMFLOW_CONSTANT cl_uint CL_PLATFORM_EXTENSIONS = 0x0904;

TVMFLOW_CONSTANT cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
TVMFLOW_CONSTANT cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
TVMFLOW_CONSTANT cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
TVMFLOW_CONSTANT cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

TVMFLOW_CONSTANT cl_uint CL_DEVICE_TYPE = 0x1000;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_IMAGE2D_MAX_WIDTH = 0x1011;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_IMAGE2D_MAX_HEIGHT = 0x1012;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_IMAGE_SUPPORT = 0x1016;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_AVAILABLE = 0x1027;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_COMPILER_AVAILABLE = 0x1028;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_NAME = 0x102B;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_VENDOR = 0x102C;
TVMFLOW_CONSTANT cl_uint CL_DRIVER_VERSION = 0x102D;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_VERSION = 0x102F;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_OPENCL_C_VERSION = 0x103D;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_IMAGE_MAX_ARRAY_SIZE = 0x1041;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_IMAGE_PITCH_ALIGNMENT = 0x104A;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_SVM_CAPABILITIES = 0x1053;
TVMFLOW_CONSTANT cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_WARP_SIZE_NV = 0x4003;
TVMFLOW_CONSTANT cl_uint CL_DEVICE_WAVEFRONT_WIDTH_AMD = 0x4043;

// 4.4 and 5.1: contexts and queues.
TVMFLOW_CONSTANT intptr_t CL_CONTEXT_PLATFORM = 0x1084;
TVMFLOW_CONSTANT cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;

// 5.2 and 5.3: memory objects.
TVMFLOW_CONSTANT cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
TVMFLOW_CONSTANT cl_bitfield CL_MEM_READ_ONLY = 1 << 2;
TVMFLOW_CONSTANT cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
TVMFLOW_CONSTANT cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
TVMFLOW_CONSTANT cl_uint CL_MEM_OBJECT_BUFFER = 0x10F0;
TVMFLOW_CONSTANT cl_uint CL_MEM_OBJECT_IMAGE2D = 0x10F1;
TVMFLOW_CONSTANT cl_uint CL_MEM_OBJECT_IMAGE2D_ARRAY = 0x10F3;
TVMFLOW_CONSTANT cl_uint CL_RGBA = 0x10B5;
TVMFLOW_CONSTANT cl_uint CL_BGRA = 0x10B6;
TVMFLOW_CONSTANT cl_uint CL_UNORM_INT8 = 0x10D2;
TVMFLOW_CONSTANT cl_uint CL_SIGNED_INT8 = 0x10D7;
TVMFLOW_CONSTANT cl_uint CL_SIGNED_INT16 = 0x10D8;
TVMFLOW_CONSTANT cl_uint CL_SIGNED_INT32 = 0x10D9;
TVMFLOW_CONSTANT cl_uint CL_UNSIGNED_INT8 = 0x10DA;
TVMFLOW_CONSTANT cl_uint CL_UNSIGNED_INT16 = 0x10DB;
TVMFLOW_CONSTANT cl_uint CL_UNSIGNED_INT32 = 0x10DC;
TVMFLOW_CONSTANT cl_uint CL_HALF_FLOAT = 0x10DD;
TVMFLOW_CONSTANT cl_uint CL_FLOAT = 0x10DE;
TVMFLOW_CONSTANT cl_uint CL_MEM_TYPE = 0x1100;
TVMFLOW_CONSTANT cl_uint CL_MEM_SIZE = 0x1102;
TVMFLOW_CONSTANT cl_uint CL_MEM_CONTEXT = 0x1106;
TVMFLOW_CONSTANT cl_uint CL_IMAGE_FORMAT = 0x1110;
TVMFLOW_CONSTANT cl_uint CL_IMAGE_WIDTH = 0x1114;
TVMFLOW_CONSTANT cl_uint CL_IMAGE_HEIGHT = 0x1115;
TVMFLOW_CONSTANT cl_uint CL_IMAGE_ARRAY_SIZE = 0x1117;

// 5.6 and 5.7: programs and kernels.
TVMFLOW_CONSTANT cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
TVMFLOW_CONSTANT cl_uint CL_PROGRAM_BINARIES = 0x1166;
TVMFLOW_CONSTANT cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
TVMFLOW_CONSTANT cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;

// 5.12: profiling.
TVMFLOW_CONSTANT cl_uint CL_PROFILING_COMMAND_START = 0x1282;
TVMFLOW_CONSTANT cl_uint CL_PROFILING_COMMAND_END = 0x1283;

#ifdef __cplusplus
}  // namespace tvmflow::opencl
#endif
