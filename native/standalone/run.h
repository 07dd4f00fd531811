// A run: its launches are enqueued one by one, or replayed from a recording.
#ifndef TVMFLOW_STANDALONE_RUN_H
#define TVMFLOW_STANDALONE_RUN_H

#include "model.h"

// run.c: enqueues all launches; with `events`, one by one with an event for each.
tvmflow_status tf_enqueue(tvmflow_model* model, cl_event* events);
// Enqueues launches of the plan one by one.
tvmflow_status tf_enqueue_launches(tvmflow_model* model, uint32_t first, uint32_t count);
// Waits until the queue is empty.
tvmflow_status tf_drain(tvmflow_model* model);
// Waits for what was enqueued.
tvmflow_status tf_finish(tvmflow_model* model);
// Returns once the end of the run has been reported to the application, or is reported without the
// model.
void tf_notice_end(tvmflow_model* model);

#endif
