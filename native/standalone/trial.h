// One self-test: what is compared, and what is found.
#ifndef TVMFLOW_STANDALONE_TRIAL_H
#define TVMFLOW_STANDALONE_TRIAL_H

#include "model.h"

// A function whose result is wrong or differs between runs.
typedef struct tf_finding {
  uint32_t tensor;  // its test tensor
  double tolerance_used;
  bool differs;  // between runs
  bool replaced;
  bool right;            // with what replaces it
  uint32_t alternative;  // that replaces it; TF_NONE: its own kernels, instead of a choice
} tf_finding;

typedef struct tf_trial {
  tvmflow_test_options options;
  const atomic_bool* stopped;  // NULL: only the budget ends it
  uint64_t begin;              // in nanoseconds
  tvmflow_test result;
  tf_finding* findings;  // as many as there are test tensors, at most
  uint32_t found;
  uint32_t runs;           // repeated ones, of all shapes
  uint32_t different;      // of them
  uint32_t unlocated;      // shapes whose runs differ, while no function was found that does
  bool without_recording;  // results were right only when kernels were enqueued one by one
} tf_trial;

static inline bool tf_trial_stopped(const tf_trial* trial) {
  return trial->stopped && atomic_load(trial->stopped);
}

// test_kernels.c: runs the functions of the chosen shape one by one, and compares their tensors
// with the expected values; those that are wrong are replaced where they have an alternative.
tvmflow_status tf_test_kernels(tvmflow_model* model, tf_trial* trial);
// Runs each function several times, and replaces those whose results differ.
tvmflow_status tf_find_unsteady(tvmflow_model* model, tf_trial* trial);

// Compares the tensors that a range of launches completes with the expected values, and sets the
// largest share of its tolerance that one uses; infinity if none is compared.
tvmflow_status tf_compare_tensors(tvmflow_model* model, uint32_t first, uint32_t count,
                                  double* used);

// test_report.c: writes the report.
tvmflow_status tf_report(tvmflow_model* model, const tf_trial* trial);

// trial.c: sets the inputs of the chosen shape's self-test.
tvmflow_status tf_set_test_inputs(tvmflow_model* model);
// Tests all shapes.
tvmflow_status tf_try(tvmflow_model* model, tf_trial* trial);

#endif
