// A second instance of a network, which runs in a thread of its own.
#ifndef TVMFLOW_STANDALONE_COMPANION_H
#define TVMFLOW_STANDALONE_COMPANION_H

#include "model.h"

// Repeated runs with equal outputs after which a device counts as steady, at one start or several:
// with one wrong run in ten, 64 miss it with a probability of 0.1 %.
enum { TF_STEADY_RUNS = 64 };

typedef enum tf_companion_task {
  TF_KEEP_BUSY = 0,  // runs the network again and again
  TF_TEST = 1,       // tests it with the repeated runs that are still missing
  TF_TUNE = 2,       // times alternatives
} tf_companion_task;

// What a tuning is given (tune.h).
typedef struct tf_tune_order {
  uint32_t budget_ms;
  tvmflow_tune_progress progress;
  void* user;
} tf_tune_order;

// Begins a second instance on the same device; it keeps what it finds for later starts.  NULL:
// there is no memory.
tf_companion* tf_companion_begin(tvmflow_model* model, tf_companion_task task, tf_tune_order order);
// Ends it after the run that is under way; it may be NULL.
void tf_companion_end(tf_companion* companion);

// Follows what the model's companion has found, if it has one and that has ended.
tvmflow_status tf_companion_follow(tvmflow_model* model);
// Returns whether the model's companion tunes.
bool tf_companion_tunes(const tvmflow_model* model);
// Waits until such a companion has ended, and follows it.
tvmflow_status tf_companion_wait(tvmflow_model* model);

#endif
