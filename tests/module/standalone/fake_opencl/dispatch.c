// The table of entry points that every object begins with (cl_khr_icd), for those who do not
// use the exported symbols.
#include "api_table.h"
#include "fake.h"

void* fake_dispatch[160];

#define DECLARE(name, index, result, parameters) result name parameters;
#define FILL(name, index, result, parameters) fake_dispatch[index] = (void*)name;
TVMFLOW_OPENCL_ENTRY_POINTS(DECLARE)

__attribute__((constructor)) static void fill(void) { TVMFLOW_OPENCL_ENTRY_POINTS(FILL) }
