// Pictures as inputs: the arguments of their kernels, and the kernel of this machine's processors.
#ifndef TVMFLOW_STANDALONE_PICTURE_H
#define TVMFLOW_STANDALONE_PICTURE_H

#include "plan.h"

// How a picture is put into the network's input; pairs are of columns and rows.  Kernels have the
// same structure (tvmflow/module/standalone/pictures.py).
typedef struct tf_geometry {
  int32_t size[2];  // of the input
  int32_t from[2];  // the part of the input that the picture covers
  int32_t to[2];
  int32_t upright[2];  // width and height of the upright picture
  // Its pixel (x, y) is first + x * column + y * row of the picture in memory.
  int32_t first[2];
  int32_t column[2];
  int32_t row[2];
  // In bytes, for luma, U and V; formats of one plane use the first.
  int32_t offset[3];  // of the first sample
  int32_t stride[3];  // from one row to the next
  int32_t pixel[3];   // from one sample of a row to the next
  int32_t last[2];    // for U and V: from the first sample to the last one that is read
  int32_t swapped;    // 1: blue before red
  float origin[2];    // of the upright picture at `from`
  float step[2];      // pixels of the upright picture for one of the input
} tf_geometry;

// The arguments of the processors' kernel; OpenCL's kernels have some of them in their text.
typedef struct tf_picture_job {
  tf_geometry geometry;
  tf_picture how;
  uint32_t dtype;            // of the network's input
  const uint8_t* planes[3];  // the first samples of luma, U and V
} tf_picture_job;

// picture.c: makes and releases the kernels that convert pictures.
tvmflow_status tf_pictures_create(tvmflow_model* model);
void tf_pictures_destroy(tvmflow_model* model);
// Returns the bytes of memory that pictures take.
uint64_t tf_picture_bytes(const tvmflow_model* model);
// Records that the input has other data than a picture now.
void tf_picture_replaced(tvmflow_model* model, uint32_t input);
// Brings an output's boxes, which may lie at any address, to where the picture has them.
void tf_picture_boxes(const tvmflow_model* model, uint32_t output, float* data);
// Returns whether an output has boxes that are brought there.
bool tf_has_picture_boxes(const tvmflow_model* model, uint32_t output);

// picture_cpu.c: writes the network's input.  Returns 0, or 1 where no memory is left.
int tf_picture_convert(const tf_picture_job* job, void* input);

#endif
