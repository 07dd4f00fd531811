// The table of entry points that every object begins with (cl_khr_icd), for those who do not
// use the exported symbols.
#include "api_table.h"
#include "fake.h"

void* fake_dispatch[160];

#define DECLARE(name, index, result, parameters) result name parameters;
#define FILL(name, index, result, parameters) fake_dispatch[index] = (void*)name;
#define MORE(ROW)                                                                                  \
  ROW(clRetainContext, 6, cl_int, (cl_context))                                                    \
  ROW(clRetainMemObject, 17, cl_int, (cl_mem))                                                     \
  ROW(clGetMemObjectInfo, 20, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))                   \
  ROW(clGetImageInfo, 21, cl_int, (cl_mem, cl_uint, size_t, void*, size_t*))
TVMFLOW_OPENCL_ENTRY_POINTS(DECLARE)
MORE(DECLARE)

__attribute__((constructor)) static void fill(void) {
  TVMFLOW_OPENCL_ENTRY_POINTS(FILL)
  MORE(FILL)
}
