// The memory of a network's tensors: allocated, bound to memory of the application, and copied.
#ifndef TVMFLOW_STANDALONE_TENSORS_H
#define TVMFLOW_STANDALONE_TENSORS_H

#include "model.h"

// memory.c: allocates the tensors and uploads the weights.
tvmflow_status tf_memory_create(tvmflow_model* model);
void tf_memory_destroy(tvmflow_model* model);
// Allocates memory that only an alternative uses.
tvmflow_status tf_memory_spare(tvmflow_model* model, uint32_t allocation);

// Retain and release memory of the application that is used for an allocation; the network's own
// memory stays as it is.
tvmflow_status tf_memory_hold(tvmflow_model* model, uint32_t allocation, cl_mem memory);
void tf_memory_release(tvmflow_model* model, uint32_t allocation, cl_mem memory);

// Copies between the host and a buffer, or with `part` a part of an image, and waits for the end.
cl_int tf_transfer(const tvmflow_model* model, cl_mem memory, const tf_region* part, void* host,
                   size_t bytes, bool to_device);

// interface.c: sets an input that is not in use to data in the layout that kernels read.
tvmflow_status tf_set_packed(tvmflow_model* model, uint32_t index, const void* data);
// Binds the network's own memory to all inputs and outputs of the chosen shape.
tvmflow_status tf_reset_bindings(tvmflow_model* model);

#endif
