// A run: its launches are enqueued one by one, or replayed from a recording.
#ifndef TVMFLOW_STANDALONE_RUN_H
#define TVMFLOW_STANDALONE_RUN_H

#include "model.h"

// run.c: enqueues all launches; with `events`, one by one with an event for each.
tvmflow_status tf_enqueue(tvmflow_model* model, cl_event* events);
// Waits for what was enqueued.
tvmflow_status tf_finish(tvmflow_model* model);
// Returns once the end of the run has been reported to the application, or is reported without the
// model.
void tf_notice_end(tvmflow_model* model);

// recording.c: records all steps.  NULL: the driver cannot or the options forbid it, and the steps
// are enqueued one by one.
tf_recording* tf_recording_begin(const tvmflow_model* model);
// Enqueues the recording.  `begun`: a part of it was enqueued, also after a failure.
cl_int tf_recording_enqueue(const tvmflow_model* model, const tf_recording* recording, bool* begun);
void tf_recording_end(tf_recording* recording);
// Returns the name of the extension that is used.
const char* tf_recording_name(const tf_recording* recording);

#endif
