// A second instance of a network, which runs in a thread of its own.
#ifndef TVMFLOW_STANDALONE_COMPANION_H
#define TVMFLOW_STANDALONE_COMPANION_H

#include "model.h"

// Repeated runs with equal outputs after which a device counts as steady, at one start or several:
// with one wrong run in ten, 64 miss it with a probability of 0.1 %.
enum { TF_STEADY_RUNS = 64 };

// Begins a second instance on the same device: `busy`, it runs the network again and again;
// otherwise it tests it with the repeated runs that are still missing, and keeps the verdict for
// later starts.  NULL: there is no memory.
tf_companion* tf_companion_begin(const tvmflow_model* model, bool busy);
// Ends it after the run that is under way; it may be NULL.
void tf_companion_end(tf_companion* companion);

// Follows the verdict of the model's companion, if it has one and that has ended.
tvmflow_status tf_companion_follow(tvmflow_model* model);

#endif
