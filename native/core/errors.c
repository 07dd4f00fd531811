#include "errors.h"

#include <stddef.h>

typedef struct tf_code {
  cl_int code;
  const char* name;
  const char* hint;
} tf_code;

static const tf_code codes[] = {
    {0, "CL_SUCCESS", ""},
    {-1, "CL_DEVICE_NOT_FOUND", "the platform has no device of the requested type"},
    {-2, "CL_DEVICE_NOT_AVAILABLE", "another process may hold the device"},
    {-3, "CL_COMPILER_NOT_AVAILABLE", "the driver was installed without its compiler"},
    {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has not enough free memory"},
    {-5, "CL_OUT_OF_RESOURCES",
     "the kernel needs more registers, local memory or time than the device grants, or"
     " accessed memory out of bounds"},
    {-6, "CL_OUT_OF_HOST_MEMORY", "the host has not enough free memory"},
    {-7, "CL_PROFILING_INFO_NOT_AVAILABLE", "the driver does not tell when kernels ran"},
    {-8, "CL_MEM_COPY_OVERLAP", "source and destination overlap"},
    {-9, "CL_IMAGE_FORMAT_MISMATCH", "the two images differ in their channel format"},
    {-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED",
     "the device has no images of this channel format; use buffer storage"},
    {-11, "CL_BUILD_PROGRAM_FAILURE", ""},
    {-12, "CL_MAP_FAILURE", ""},
    {-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET", ""},
    {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "an earlier command failed"},
    {-15, "CL_COMPILE_PROGRAM_FAILURE", ""},
    {-16, "CL_LINKER_NOT_AVAILABLE", ""},
    {-17, "CL_LINK_PROGRAM_FAILURE", ""},
    {-18, "CL_DEVICE_PARTITION_FAILED", ""},
    {-19, "CL_KERNEL_ARG_INFO_NOT_AVAILABLE", ""},
    {-30, "CL_INVALID_VALUE", ""},
    {-31, "CL_INVALID_DEVICE_TYPE", ""},
    {-32, "CL_INVALID_PLATFORM", ""},
    {-33, "CL_INVALID_DEVICE", ""},
    {-34, "CL_INVALID_CONTEXT", ""},
    {-35, "CL_INVALID_QUEUE_PROPERTIES", "the device has no such queues"},
    {-36, "CL_INVALID_COMMAND_QUEUE", "an earlier command may have crashed the queue"},
    {-37, "CL_INVALID_HOST_PTR", ""},
    {-38, "CL_INVALID_MEM_OBJECT",
     "a tensor of another device, or one that was released, was passed"},
    {-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR", ""},
    {-40, "CL_INVALID_IMAGE_SIZE",
     "the image exceeds the device's limits; use buffer storage for this tensor"},
    {-41, "CL_INVALID_SAMPLER", ""},
    {-42, "CL_INVALID_BINARY", ""},
    {-43, "CL_INVALID_BUILD_OPTIONS", "the driver does not know a build option"},
    {-44, "CL_INVALID_PROGRAM", ""},
    {-45, "CL_INVALID_PROGRAM_EXECUTABLE", ""},
    {-46, "CL_INVALID_KERNEL_NAME", "the program has no kernel of this name"},
    {-47, "CL_INVALID_KERNEL_DEFINITION", ""},
    {-48, "CL_INVALID_KERNEL", ""},
    {-49, "CL_INVALID_ARG_INDEX", "more arguments were passed than the kernel declares"},
    {-50, "CL_INVALID_ARG_VALUE",
     "the argument's storage (buffer or image) differs from the kernel's declaration"},
    {-51, "CL_INVALID_ARG_SIZE", "the argument's type differs from the declaration"},
    {-52, "CL_INVALID_KERNEL_ARGS", "fewer arguments were passed than declared"},
    {-53, "CL_INVALID_WORK_DIMENSION", ""},
    {-54, "CL_INVALID_WORK_GROUP_SIZE", "the work-group exceeds what the device allows"},
    {-55, "CL_INVALID_WORK_ITEM_SIZE", "one extent of the work-group is too large"},
    {-56, "CL_INVALID_GLOBAL_OFFSET", ""},
    {-57, "CL_INVALID_EVENT_WAIT_LIST", ""},
    {-58, "CL_INVALID_EVENT", ""},
    {-59, "CL_INVALID_OPERATION", "the device lacks this feature"},
    {-60, "CL_INVALID_GL_OBJECT", ""},
    {-61, "CL_INVALID_BUFFER_SIZE",
     "the buffer is empty or larger than the device's largest allocation"},
    {-62, "CL_INVALID_MIP_LEVEL", ""},
    {-63, "CL_INVALID_GLOBAL_WORK_SIZE", "the global work size is zero or too large"},
    {-64, "CL_INVALID_PROPERTY", ""},
    {-65, "CL_INVALID_IMAGE_DESCRIPTOR", "the device has no such images"},
    {-66, "CL_INVALID_COMPILER_OPTIONS", ""},
    {-67, "CL_INVALID_LINKER_OPTIONS", ""},
    {-68, "CL_INVALID_DEVICE_PARTITION_COUNT", ""},
    {-69, "CL_INVALID_PIPE_SIZE", ""},
    {-70, "CL_INVALID_DEVICE_QUEUE", ""},
    {-71, "CL_INVALID_SPEC_ID", ""},
    {-72, "CL_MAX_SIZE_RESTRICTION_EXCEEDED", ""},
    {-1001, "CL_PLATFORM_NOT_FOUND_KHR", "no driver is registered with the loader"},
    {-9999, "NVIDIA: illegal read or write to a buffer", "a kernel accessed memory out of bounds"},
};

const char* tf_error_name(cl_int code, const char** hint) {
  *hint = "";
  for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); ++i) {
    if (codes[i].code != code) continue;
    *hint = codes[i].hint;
    return codes[i].name;
  }
  return "an unknown OpenCL error";
}
