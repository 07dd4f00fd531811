// The functions of an instance that applications call, from one thread at a time.
#include "entry.h"

#include "companion.h"
#include "model.h"
#include "open.h"

// Enters a call.  Returns false if another thread is in one.
static bool enter(tvmflow_model* m) {
  tf_adopt(m);
  const bool alone = !atomic_exchange(&m->entered, true);
  atomic_store(&m->refused, !alone);
  return alone;
}

// Replaces kernels or a device that were found wrong, and a device that has failed, before a call
// that uses it.
static tvmflow_status prepare(tvmflow_model* m, bool uses_device) {
  if (!uses_device || m->failed) return TVMFLOW_OK;
  const tvmflow_status status = m->started ? TVMFLOW_OK : tf_companion_follow(m);
  return !status && m->broken ? tf_backend_replace(m) : status;
}

#define TF_DEFINE(name, uses_device, parameters, arguments)                                        \
  tvmflow_status tvmflow_##name parameters {                                                       \
    if (!m) return TVMFLOW_ERROR_ARGUMENT;                                                         \
    if (!enter(m)) return TVMFLOW_ERROR_BUSY;                                                      \
    tvmflow_status status = prepare(m, uses_device);                                               \
    if (!status) status = tf_do_##name arguments;                                                  \
    atomic_store(&m->entered, false);                                                              \
    return status;                                                                                 \
  }
TF_ENTRIES(TF_DEFINE)
#undef TF_DEFINE

const char* tvmflow_message(const tvmflow_model* m) {
  if (!m) return "There is no instance: no memory was left for it.";
  // The other thread may be writing the message.
  if (atomic_load(&m->refused))
    return "Another thread is in a call of this model. Remedy: use a model from one thread at a "
           "time, or create one for each thread.";
  return m->message.text;
}

void tvmflow_cancel(tvmflow_model* m) {
  if (!m || m->failed) return;
  if (atomic_load(&m->stop.running)) atomic_store(&m->stop.cancelled, true);
}
