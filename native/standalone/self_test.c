// The self-test that applications call.
#include <string.h>

#include "companion.h"
#include "entry.h"
#include "model.h"
#include "trial.h"

tvmflow_status tf_do_self_test_with(tvmflow_model* m, const tvmflow_test_options* options,
                                    tvmflow_test* result) {
  tvmflow_status status = tf_check_idle(m, "Self-test");
  if (status) return status;
  if (!tf_count(&m->plan, TF_TEST_OUTPUTS))
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "Self-test: the library carries none. Remedy: compile the network with one.");
  if (options && options->struct_size < offsetof(tvmflow_test_options, flags))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Self-test: the options' struct_size is %zu, expected "
                   "sizeof(tvmflow_test_options). Remedy: set it.",
                   options->struct_size);
  tf_trial trial = {0};
  // An application may be older than the library, or newer.
  const size_t known = sizeof(trial.options);
  if (options)
    memcpy(&trial.options, options, options->struct_size < known ? options->struct_size : known);
  const bool two = trial.options.flags & TVMFLOW_TEST_SECOND_INSTANCE;
  tf_companion* const second = two ? tf_companion_begin(m, TF_KEEP_BUSY, (tf_tune_order){0}) : NULL;
  if (two && !second)
    return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY,
                   "Self-test: no memory for a second instance of the network.");
  status = tf_try(m, &trial);
  tf_companion_end(second);
  if (result) *result = trial.result;
  return status;
}

tvmflow_status tf_do_self_test(tvmflow_model* m, tvmflow_test* result) {
  return tf_do_self_test_with(m, NULL, result);
}
