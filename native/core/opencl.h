// OpenCL, opened at run time from a loader (libOpenCL) or a driver's own library.
#pragma once

#include <stdbool.h>

#include "api_table.h"

#ifdef __cplusplus
extern "C" {
#endif

// Stands for a library that is in the process already: linked, preloaded (as the oclgrind command
// does), or opened globally by another part of the application.
#define TF_IN_PROCESS "(in the process)"

// Entry points of one platform, each under its name in OpenCL.
typedef struct tf_opencl {
#define TF_MEMBER(name, index, result, parameters) result(*name) parameters;
  TVMFLOW_OPENCL_ENTRY_POINTS(TF_MEMBER)
  TVMFLOW_OPENCL_OPTIONAL_ENTRY_POINTS(TF_MEMBER)
  TVMFLOW_OPENCL_2_ENTRY_POINTS(TF_MEMBER)
#undef TF_MEMBER
  void* library;
  bool has_tables;  // objects begin with a table of the driver's functions (cl_khr_icd)
} tf_opencl;

// A library that has been opened.  It stays open: drivers keep threads and do not survive being
// unloaded.
typedef struct tf_library {
  void* handle;
  cl_int (*get_platforms)(cl_uint, cl_platform_id*, cl_uint*);
  bool exported;  // its functions are symbols, and not only in its objects' dispatch tables
} tf_library;

// Opens a library.  Returns false if it does not exist or is not OpenCL, and adds why to the text.
bool tf_library_open(tf_library* library, const char* name, char* text, size_t bytes);

// Finds the entry points.  Returns the name of one of OpenCL 1.2 that is missing; NULL: none is.
const char* tf_opencl_resolve(tf_opencl* api, const tf_library* library, cl_platform_id platform);

// Returns a text that clGetPlatformInfo or clGetDeviceInfo answers; the caller frees it.  NULL:
// there is none.
char* tf_query_text(cl_int (*ask)(ClObject*, cl_uint, size_t, void*, size_t*), ClObject* object,
                    cl_uint what);

// Returns an extension's function; NULL: there is none.
void* tf_opencl_extension(const tf_opencl* api, cl_platform_id platform, const char* name);

#ifdef __cplusplus
}
#endif
