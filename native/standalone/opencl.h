// The device's OpenCL, opened at run time: a loader (libOpenCL) or a driver's own library.
#ifndef TVMFLOW_STANDALONE_OPENCL_H
#define TVMFLOW_STANDALONE_OPENCL_H

#include <stdbool.h>

#include "../opencl/api_table.h"

// What the applications' own memory and contexts need, besides what networks need.
#define TF_MORE_ENTRY_POINTS(ROW)                                                                  \
  ROW(clRetainContext, 6, cl_int, (cl_context))                                                    \
  ROW(clGetMemObjectInfo, 20, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))                   \
  ROW(clGetImageInfo, 21, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))

// For extensions; NULL where the library has none.
#define TF_OPTIONAL_ENTRY_POINTS(ROW)                                                              \
  ROW(clGetExtensionFunctionAddress, 65, void*, (const char*))                                     \
  ROW(clGetExtensionFunctionAddressForPlatform, 107, void*, (cl_platform_id, const char*))

// Entry points of one platform, each under its name in OpenCL.
typedef struct tf_opencl {
#define TF_MEMBER(name, index, result, parameters) result(*name) parameters;
  TVMFLOW_OPENCL_ENTRY_POINTS(TF_MEMBER)
  TF_MORE_ENTRY_POINTS(TF_MEMBER)
  TF_OPTIONAL_ENTRY_POINTS(TF_MEMBER)
#undef TF_MEMBER
  void* library;
} tf_opencl;

// A library that has been opened.  It stays open: drivers keep threads and do not survive
// being unloaded.
typedef struct tf_library {
  void* handle;
  cl_int (*get_platforms)(cl_uint, cl_platform_id*, cl_uint*);
  bool exported;  // its functions are symbols, and not only in its objects' dispatch tables
} tf_library;

// Name of the `index`-th library to try, NULL after the last.  `only`: the option's path.
const char* tf_library_name(const char* only, unsigned index);

// False where there is no such library or it is not OpenCL; the reason is added to the text.
bool tf_library_open(tf_library* library, const char* name, char* text, size_t bytes);

// An extension's function, NULL where there is none.
void* tf_opencl_extension(const tf_opencl* api, cl_platform_id platform, const char* name);

// False where functions of OpenCL 1.2 are missing.
bool tf_opencl_resolve(tf_opencl* api, const tf_library* library, cl_platform_id platform);

#endif
