// Other kernels that may take the place of a shape's launches, and the order that follows from it.
#ifndef TVMFLOW_STANDALONE_ALTERNATIVES_H
#define TVMFLOW_STANDALONE_ALTERNATIVES_H

#include "model.h"

// What is known of an alternative on this device.
typedef enum tf_standing { TF_UNTRIED = 0, TF_USED = 1, TF_SLOWER = 2, TF_WRONG = 3 } tf_standing;

// Launches of a shape, and the alternative that computes them; TF_NONE: they run themselves.
typedef struct tf_part {
  uint32_t first;
  uint32_t count;
  uint32_t alternative;
} tf_part;

// Returns the first alternative that begins at this launch or a later one.
uint32_t tf_alternatives_from(const tvmflow_model* model, uint32_t launch);
// Returns what runs from a launch on: the widest alternative in use, or one call; a launch without
// alternatives is a call.
tf_part tf_part_at(const tvmflow_model* model, uint32_t launch);
// Enqueues launches of the chosen shape as they run now; `first` begins a part.
tvmflow_status tf_enqueue_range(tvmflow_model* model, uint32_t first, uint32_t count);
// The same, and waits for them.
tvmflow_status tf_run_range(tvmflow_model* model, uint32_t first, uint32_t count);

// Makes the kernels and memory of the alternatives that an earlier start used, or of all plain
// kernels if the driver's faults demand them, and the order of launches.
tvmflow_status tf_alternatives_create(tvmflow_model* model);
void tf_alternatives_destroy(tvmflow_model* model);
// Makes the kernels and memory of an alternative.
tvmflow_status tf_alternative_prepare(tvmflow_model* model, uint32_t alternative);
// Notes that an alternative is in use, instead of others of the same launches.
void tf_alternative_select(tvmflow_model* model, uint32_t alternative);
// Makes an alternative, and uses it from now on.
tvmflow_status tf_alternative_use(tvmflow_model* model, uint32_t alternative);
// Does not use an alternative any more, for the reason given as its standing.
void tf_alternative_reject(tvmflow_model* model, uint32_t alternative, tf_standing standing);
// Replaces a part whose results are wrong.  `own_wrong`: its own launches were found wrong before.
// Sets the alternative in use, TF_NONE for the own launches.  Returns false if nothing is left.
bool tf_part_replace(tvmflow_model* model, tf_part part, bool own_wrong, uint32_t* alternative,
                     tvmflow_status* status);
// Counts the alternatives of a kind, and those of them that are in use.
uint32_t tf_alternatives_count(const tvmflow_model* model, tf_alternative_kind kind, bool used);
// Orders the launches of the chosen shape.
void tf_order(tvmflow_model* model);

#endif
