// Tuning in the application: alternatives are timed next to what they would replace.
#ifndef TVMFLOW_STANDALONE_TUNE_H
#define TVMFLOW_STANDALONE_TUNE_H

#include "model.h"

// Why a tuning ended.
typedef enum tf_tuning_end {
  TF_TUNED = 0,           // nothing is left to time
  TF_BUDGET_SPENT = 1,    // the next tuning goes on
  TF_TOO_HOT = 2,         // the system reports that it limits clocks
  TF_TUNING_STOPPED = 3,  // the instance was destroyed, or its device failed
} tf_tuning_end;

typedef struct tf_tuning {
  uint32_t budget_ms;  // of time on the device and in its compiler
  tvmflow_tune_progress progress;
  void* user;
  const tvmflow_model* application;  // instance whose runs must not be disturbed or measured
  const atomic_bool* stopped;
  // The result.
  tf_tuning_end end;
  uint64_t spent;  // in nanoseconds
  // For each alternative: microseconds of what was in use, which is an alternative or TF_NONE, and
  // its own; 0: it was not timed.
  double* own;
  double* other;
  uint32_t* base;
  double network[2];  // microseconds of a run as before, and as chosen; 0: nothing changed
  uint8_t* before;    // standings
} tf_tuning;

// time_choices.c: times the alternatives of the chosen shape that have not been tried, where they
// are in a run, and uses those that are right and faster by more than noise.  The inputs become
// those of the self-test; the instance measures kernels (TVMFLOW_PROFILE).
tvmflow_status tf_tune(tvmflow_model* model, tf_tuning* tuning);
void tf_tuning_free(tf_tuning* tuning);

// tune_report.c: returns the result as JSON, which the caller frees; NULL without memory.
char* tf_tune_report(const tvmflow_model* model, const tf_tuning* tuning);

// heat.c: returns whether the system reports that the device is hot; false where it cannot say.
bool tf_is_hot(void);

#endif
