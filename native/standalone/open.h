// The life of an instance: opened on a backend, adopted by a forked process, and released.
#ifndef TVMFLOW_STANDALONE_OPEN_H
#define TVMFLOW_STANDALONE_OPEN_H

#include "model.h"

// open.c: opens everything for one of the library's plans; the weights are opened only once.
tvmflow_status tf_open(tvmflow_model* model, const tvmflow_options* options,
                       tvmflow_backend backend);
// Closes everything but the weights.
void tf_close(tvmflow_model* model);
// Closes everything.
void tf_release(tvmflow_model* model);

// backend.c: opens the backend that the options ask for, or one that can be used.
tvmflow_status tf_backend_open(tvmflow_model* model, const tvmflow_options* options);
// Replaces a device that has failed by the CPU.
tvmflow_status tf_backend_replace(tvmflow_model* model);

// choice.c: refuses OpenCL if it was not chosen at an earlier start.
tvmflow_status tf_choice_recall(tvmflow_model* model);
// Stores the choice, and which alternatives are used, for later starts.
void tf_choice_store(tvmflow_model* model, bool cpu);

// adopt.c: makes the instance one of this process, if that was forked from the instance's process.
void tf_adopt(tvmflow_model* model);

// describe.c: allocates the description.
tvmflow_status tf_describe_create(tvmflow_model* model);
// Appends a member with a text to JSON: line breaks are escaped, other control characters left out.
void tf_describe_text(char* json, size_t bytes, const char* key, const char* text);

#endif
