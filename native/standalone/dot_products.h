// Instructions for dot products of bytes, which kernels of 8-bit networks use.
#ifndef TVMFLOW_STANDALONE_DOT_PRODUCTS_H
#define TVMFLOW_STANDALONE_DOT_PRODUCTS_H

#include "model.h"

// Option in the plan of programs that have dot products.
#define TF_DOTS "-DTVMFLOW_DOTS"

// Returns options for such programs: what the device and its driver can be trusted with.  The
// functions are in tvmflow/codegen/dot_products.py.
const char* tf_dot_options(tvmflow_model* model);

#endif
