// Plain kernels that take the place of others, and the order of launches that follows from it.
#ifndef TVMFLOW_STANDALONE_ALTERNATIVES_H
#define TVMFLOW_STANDALONE_ALTERNATIVES_H

#include "model.h"

// A call of a function: its launches, or those of its alternative.
typedef struct tf_call {
  uint32_t first;
  uint32_t count;
  uint32_t alternative;  // TF_NONE: it has none
} tf_call;

// Returns the call that begins with a launch of a shape; a launch without an alternative is a call.
tf_call tf_call_at(const tvmflow_model* model, uint32_t launch);
// Returns the launches that compute a call now.
tf_call tf_call_used(const tvmflow_model* model, tf_call call);

// Makes the kernels and memory of the alternatives that an earlier start used, or of all if the
// driver's faults demand them, and the order of launches.
tvmflow_status tf_alternatives_create(tvmflow_model* model);
void tf_alternatives_destroy(tvmflow_model* model);
// Uses an alternative from now on.
tvmflow_status tf_use_alternative(tvmflow_model* model, uint32_t alternative);
uint32_t tf_alternatives_used(const tvmflow_model* model);
// Orders the launches of the chosen shape.
void tf_order(tvmflow_model* model);

#endif
