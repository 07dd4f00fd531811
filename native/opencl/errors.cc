#include "errors.h"

#include <array>

namespace tvmflow::opencl {
namespace {

struct CodeName {
  cl_int code;
  const char* name;
  // What usually causes the code, and what to do about it.
  const char* hint;
};

constexpr std::array kCodes = {
    CodeName{0, "CL_SUCCESS", ""},
    CodeName{-1, "CL_DEVICE_NOT_FOUND", "the platform has no device of the requested type"},
    CodeName{-2, "CL_DEVICE_NOT_AVAILABLE", "another process may hold the device"},
    CodeName{-3, "CL_COMPILER_NOT_AVAILABLE", "the driver was installed without its compiler"},
    CodeName{-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has not enough free memory"},
    CodeName{-5, "CL_OUT_OF_RESOURCES",
             "the kernel needs more registers, local memory or time than the device grants, or "
             "accessed memory out of bounds"},
    CodeName{-6, "CL_OUT_OF_HOST_MEMORY", "the host has not enough free memory"},
    CodeName{-7, "CL_PROFILING_INFO_NOT_AVAILABLE", ""},
    CodeName{-8, "CL_MEM_COPY_OVERLAP", "source and destination overlap"},
    CodeName{-9, "CL_IMAGE_FORMAT_MISMATCH", "the two images differ in their channel format"},
    CodeName{-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED",
             "the device has no images of this channel format; use buffer storage"},
    CodeName{-11, "CL_BUILD_PROGRAM_FAILURE", ""},
    CodeName{-12, "CL_MAP_FAILURE", ""},
    CodeName{-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET", ""},
    CodeName{-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "an earlier command failed"},
    CodeName{-15, "CL_COMPILE_PROGRAM_FAILURE", ""},
    CodeName{-16, "CL_LINKER_NOT_AVAILABLE", ""},
    CodeName{-17, "CL_LINK_PROGRAM_FAILURE", ""},
    CodeName{-18, "CL_DEVICE_PARTITION_FAILED", ""},
    CodeName{-19, "CL_KERNEL_ARG_INFO_NOT_AVAILABLE", ""},
    CodeName{-30, "CL_INVALID_VALUE", ""},
    CodeName{-31, "CL_INVALID_DEVICE_TYPE", ""},
    CodeName{-32, "CL_INVALID_PLATFORM", ""},
    CodeName{-33, "CL_INVALID_DEVICE", ""},
    CodeName{-34, "CL_INVALID_CONTEXT", ""},
    CodeName{-35, "CL_INVALID_QUEUE_PROPERTIES", ""},
    CodeName{-36, "CL_INVALID_COMMAND_QUEUE", "an earlier command may have crashed the queue"},
    CodeName{-37, "CL_INVALID_HOST_PTR", ""},
    CodeName{-38, "CL_INVALID_MEM_OBJECT",
             "a tensor of another device, or one that was released, was passed"},
    CodeName{-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR", ""},
    CodeName{-40, "CL_INVALID_IMAGE_SIZE",
             "the image exceeds the device's limits; use buffer storage for this tensor"},
    CodeName{-41, "CL_INVALID_SAMPLER", ""},
    CodeName{-42, "CL_INVALID_BINARY", ""},
    CodeName{-43, "CL_INVALID_BUILD_OPTIONS", "the driver does not know a build option"},
    CodeName{-44, "CL_INVALID_PROGRAM", ""},
    CodeName{-45, "CL_INVALID_PROGRAM_EXECUTABLE", ""},
    CodeName{-46, "CL_INVALID_KERNEL_NAME", "the program has no kernel of this name"},
    CodeName{-47, "CL_INVALID_KERNEL_DEFINITION", ""},
    CodeName{-48, "CL_INVALID_KERNEL", ""},
    CodeName{-49, "CL_INVALID_ARG_INDEX", "more arguments were passed than the kernel declares"},
    CodeName{-50, "CL_INVALID_ARG_VALUE",
             "the argument's storage (buffer or image) differs from the kernel's declaration"},
    CodeName{-51, "CL_INVALID_ARG_SIZE", "the argument's type differs from the declaration"},
    CodeName{-52, "CL_INVALID_KERNEL_ARGS", "fewer arguments were passed than declared"},
    CodeName{-53, "CL_INVALID_WORK_DIMENSION", ""},
    CodeName{-54, "CL_INVALID_WORK_GROUP_SIZE", "the work-group exceeds what the device allows"},
    CodeName{-55, "CL_INVALID_WORK_ITEM_SIZE", "one extent of the work-group is too large"},
    CodeName{-56, "CL_INVALID_GLOBAL_OFFSET", ""},
    CodeName{-57, "CL_INVALID_EVENT_WAIT_LIST", ""},
    CodeName{-58, "CL_INVALID_EVENT", ""},
    CodeName{-59, "CL_INVALID_OPERATION", "the device lacks this feature"},
    CodeName{-60, "CL_INVALID_GL_OBJECT", ""},
    CodeName{-61, "CL_INVALID_BUFFER_SIZE",
             "the buffer is empty or larger than the device's largest allocation"},
    CodeName{-62, "CL_INVALID_MIP_LEVEL", ""},
    CodeName{-63, "CL_INVALID_GLOBAL_WORK_SIZE", "the global work size is zero or too large"},
    CodeName{-64, "CL_INVALID_PROPERTY", ""},
    CodeName{-65, "CL_INVALID_IMAGE_DESCRIPTOR", "the device has no such images"},
    CodeName{-66, "CL_INVALID_COMPILER_OPTIONS", ""},
    CodeName{-67, "CL_INVALID_LINKER_OPTIONS", ""},
    CodeName{-68, "CL_INVALID_DEVICE_PARTITION_COUNT", ""},
    CodeName{-69, "CL_INVALID_PIPE_SIZE", ""},
    CodeName{-70, "CL_INVALID_DEVICE_QUEUE", ""},
    CodeName{-71, "CL_INVALID_SPEC_ID", ""},
    CodeName{-72, "CL_MAX_SIZE_RESTRICTION_EXCEEDED", ""},
    CodeName{-1001, "CL_PLATFORM_NOT_FOUND_KHR", "no driver is registered with the loader"},
    CodeName{-9999, "NVIDIA: illegal read or write to a buffer",
             "a kernel accessed memory out of bounds"},
};

const CodeName* Find(cl_int code) {
  for (const CodeName& row : kCodes) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

}  // namespace

std::string ErrorName(cl_int code) {
  const CodeName* row = Find(code);
  return row ? row->name : "an unknown OpenCL error";
}

void ThrowDriverError(cl_int code, const std::string& attempt) {
  std::string message =
      attempt + " failed with " + ErrorName(code) + " (" + std::to_string(code) + ")";
  if (const CodeName* row = Find(code); row && *row->hint) message += std::string(": ") + row->hint;
  throw DriverError(code, message + ".");
}

}  // namespace tvmflow::opencl
