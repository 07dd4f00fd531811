// Table of OpenCL's error codes, with their names, usual causes and remedies, for messages.
#pragma once

#define TVMFLOW_OPENCL_CODES(ROW)                                                                  \
  ROW(0, "CL_SUCCESS", "")                                                                         \
  ROW(-1, "CL_DEVICE_NOT_FOUND", "the platform has no device of the requested type")               \
  ROW(-2, "CL_DEVICE_NOT_AVAILABLE", "another process may hold the device")                        \
  ROW(-3, "CL_COMPILER_NOT_AVAILABLE", "the driver was installed without its compiler")            \
  ROW(-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", "the device has not enough free memory")             \
  ROW(-5, "CL_OUT_OF_RESOURCES",                                                                   \
      "the kernel needs more registers, local memory or time than the device grants, or"           \
      " accessed memory out of bounds")                                                            \
  ROW(-6, "CL_OUT_OF_HOST_MEMORY", "the host has not enough free memory")                          \
  ROW(-7, "CL_PROFILING_INFO_NOT_AVAILABLE", "the driver does not tell when kernels ran")          \
  ROW(-8, "CL_MEM_COPY_OVERLAP", "source and destination overlap")                                 \
  ROW(-9, "CL_IMAGE_FORMAT_MISMATCH", "the two images differ in their channel format")             \
  ROW(-10, "CL_IMAGE_FORMAT_NOT_SUPPORTED",                                                        \
      "the device has no images of this channel format; use buffer storage")                       \
  ROW(-11, "CL_BUILD_PROGRAM_FAILURE", "")                                                         \
  ROW(-12, "CL_MAP_FAILURE", "")                                                                   \
  ROW(-13, "CL_MISALIGNED_SUB_BUFFER_OFFSET", "")                                                  \
  ROW(-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "an earlier command failed")            \
  ROW(-15, "CL_COMPILE_PROGRAM_FAILURE", "")                                                       \
  ROW(-16, "CL_LINKER_NOT_AVAILABLE", "")                                                          \
  ROW(-17, "CL_LINK_PROGRAM_FAILURE", "")                                                          \
  ROW(-18, "CL_DEVICE_PARTITION_FAILED", "")                                                       \
  ROW(-19, "CL_KERNEL_ARG_INFO_NOT_AVAILABLE", "")                                                 \
  ROW(-30, "CL_INVALID_VALUE", "")                                                                 \
  ROW(-31, "CL_INVALID_DEVICE_TYPE", "")                                                           \
  ROW(-32, "CL_INVALID_PLATFORM", "")                                                              \
  ROW(-33, "CL_INVALID_DEVICE", "")                                                                \
  ROW(-34, "CL_INVALID_CONTEXT", "")                                                               \
  ROW(-35, "CL_INVALID_QUEUE_PROPERTIES", "the device has no such queues")                         \
  ROW(-36, "CL_INVALID_COMMAND_QUEUE", "an earlier command may have crashed the queue")            \
  ROW(-37, "CL_INVALID_HOST_PTR", "")                                                              \
  ROW(-38, "CL_INVALID_MEM_OBJECT",                                                                \
      "a tensor of another device, or one that was released, was passed")                          \
  ROW(-39, "CL_INVALID_IMAGE_FORMAT_DESCRIPTOR", "")                                               \
  ROW(-40, "CL_INVALID_IMAGE_SIZE",                                                                \
      "the image exceeds the device's limits; use buffer storage for this tensor")                 \
  ROW(-41, "CL_INVALID_SAMPLER", "")                                                               \
  ROW(-42, "CL_INVALID_BINARY", "")                                                                \
  ROW(-43, "CL_INVALID_BUILD_OPTIONS", "the driver does not know a build option")                  \
  ROW(-44, "CL_INVALID_PROGRAM", "")                                                               \
  ROW(-45, "CL_INVALID_PROGRAM_EXECUTABLE", "")                                                    \
  ROW(-46, "CL_INVALID_KERNEL_NAME", "the program has no kernel of this name")                     \
  ROW(-47, "CL_INVALID_KERNEL_DEFINITION", "")                                                     \
  ROW(-48, "CL_INVALID_KERNEL", "")                                                                \
  ROW(-49, "CL_INVALID_ARG_INDEX", "more arguments were passed than the kernel declares")          \
  ROW(-50, "CL_INVALID_ARG_VALUE",                                                                 \
      "the argument's storage (buffer or image) differs from the kernel's declaration")            \
  ROW(-51, "CL_INVALID_ARG_SIZE", "the argument's type differs from the declaration")              \
  ROW(-52, "CL_INVALID_KERNEL_ARGS", "fewer arguments were passed than declared")                  \
  ROW(-53, "CL_INVALID_WORK_DIMENSION", "")                                                        \
  ROW(-54, "CL_INVALID_WORK_GROUP_SIZE", "the work-group exceeds what the device allows")          \
  ROW(-55, "CL_INVALID_WORK_ITEM_SIZE", "one extent of the work-group is too large")               \
  ROW(-56, "CL_INVALID_GLOBAL_OFFSET", "")                                                         \
  ROW(-57, "CL_INVALID_EVENT_WAIT_LIST", "")                                                       \
  ROW(-58, "CL_INVALID_EVENT", "")                                                                 \
  ROW(-59, "CL_INVALID_OPERATION", "the device lacks this feature")                                \
  ROW(-60, "CL_INVALID_GL_OBJECT", "")                                                             \
  ROW(-61, "CL_INVALID_BUFFER_SIZE",                                                               \
      "the buffer is empty or larger than the device's largest allocation")                        \
  ROW(-62, "CL_INVALID_MIP_LEVEL", "")                                                             \
  ROW(-63, "CL_INVALID_GLOBAL_WORK_SIZE", "the global work size is zero or too large")             \
  ROW(-64, "CL_INVALID_PROPERTY", "")                                                              \
  ROW(-65, "CL_INVALID_IMAGE_DESCRIPTOR", "the device has no such images")                         \
  ROW(-66, "CL_INVALID_COMPILER_OPTIONS", "")                                                      \
  ROW(-67, "CL_INVALID_LINKER_OPTIONS", "")                                                        \
  ROW(-68, "CL_INVALID_DEVICE_PARTITION_COUNT", "")                                                \
  ROW(-69, "CL_INVALID_PIPE_SIZE", "")                                                             \
  ROW(-70, "CL_INVALID_DEVICE_QUEUE", "")                                                          \
  ROW(-71, "CL_INVALID_SPEC_ID", "")                                                               \
  ROW(-72, "CL_MAX_SIZE_RESTRICTION_EXCEEDED", "")                                                 \
  ROW(-1001, "CL_PLATFORM_NOT_FOUND_KHR", "no driver is registered with the loader")               \
  ROW(-9999, "NVIDIA: illegal read or write to a buffer", "a kernel accessed memory out of bounds")
