// The weights: in the library, or in a file that is mapped.
#ifndef TVMFLOW_STANDALONE_WEIGHTS_H
#define TVMFLOW_STANDALONE_WEIGHTS_H

#include "message.h"
#include "plan.h"

typedef struct tf_weights {
  const uint8_t* data;  // with their header
  size_t bytes;
  void* mapping;  // of the file; NULL: they are in the library
} tf_weights;

// Whether the library's file holds all that the program headers say: what lies behind the end
// of a file that was cut short must not be touched.
tvmflow_status tf_library_check(tf_message* message);

// The weights of the plan, checked for length and identity.  `path`: of the file, when they are
// not in the library; NULL: beside it.
tvmflow_status tf_weights_open(tf_weights* weights, const tf_plan* plan, const char* path,
                               tf_message* message);
void tf_weights_close(tf_weights* weights);

// Path of the library with `suffix` behind it; false where it is not known.
bool tf_library_path(char* path, size_t bytes, const char* suffix);

// The plan in the library.
const void* tf_library_plan(size_t* bytes);

#endif
