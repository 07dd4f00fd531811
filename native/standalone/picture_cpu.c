// Convert pictures on this machine's processors: unpack and resize the rows one after the other,
// then add up those that contribute to a row of the network's input.
//
// The filter is Pillow's bilinear one: a triangle as wide as two pixels of the picture, or of the
// input if the picture shrinks, so that every pixel of the picture counts.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../core/half.h"
#include "../core/threads.h"
#include "picture.h"

// A pixel as red, green and blue, or as grey three times.
typedef float pixel __attribute__((vector_size(16)));

static float at_most_255(float level) { return level < 0 ? 0 : level > 255 ? 255 : level; }

// Converts luma and chroma of JPEG (ITU-T T.871) or of video (ITU-R BT.601, 8 bits).
static pixel from_luma(float y, float u, float v, bool video) {
  if (video) {
    y = (y - 16) * (255.0f / 219);
    u = (u - 128) * (255.0f / 224) + 128;
    v = (v - 128) * (255.0f / 224) + 128;
  }
  return (pixel){at_most_255(y + 1.402f * (v - 128)),
                 at_most_255(y - 0.344136f * (u - 128) - 0.714136f * (v - 128)),
                 at_most_255(y + 1.772f * (u - 128)), 0};
}

// Unpacks pixels `begin` to `end` of a row of the upright picture, with the format as a constant.
static inline __attribute__((always_inline)) void unpack_as(const tf_picture_job* job, int32_t y,
                                                            int32_t begin, int32_t end, pixel* row,
                                                            tvmflow_image_format format) {
  const tf_geometry* const g = &job->geometry;
  int32_t px = g->first[0] + y * g->row[0] + begin * g->column[0];
  int32_t py = g->first[1] + y * g->row[1] + begin * g->column[1];
  for (int32_t x = begin; x < end; ++x, px += g->column[0], py += g->column[1]) {
    const uint8_t* const p = job->planes[0] + py * g->stride[0] + px * g->pixel[0];
    if (format == TVMFLOW_GREY8) {
      row[x] = (pixel){p[0], p[0], p[0], 0};
    } else if (format >= TVMFLOW_NV12) {
      const int32_t u = py / 2 * g->stride[1] + px / 2 * g->pixel[1];
      const int32_t v = py / 2 * g->stride[2] + px / 2 * g->pixel[2];
      row[x] = from_luma(p[0], job->planes[1][u < g->last[0] ? u : g->last[0]],
                         job->planes[2][v < g->last[1] ? v : g->last[1]], job->how.video);
    } else {
      const unsigned red = format == TVMFLOW_BGRA8 ? 2 : 0;
      row[x] = (pixel){p[red], p[1], p[2 - red], 0};
    }
  }
}

static void unpack(const tf_picture_job* job, int32_t y, int32_t begin, int32_t end, pixel* row) {
#define AS(format)                                                                                 \
  case format:                                                                                     \
    unpack_as(job, y, begin, end, row, format);                                                    \
    break;
  switch (job->how.format) {
    AS(TVMFLOW_RGBA8)
    AS(TVMFLOW_BGRA8)
    AS(TVMFLOW_RGB8)
    AS(TVMFLOW_GREY8)
    default:
      unpack_as(job, y, begin, end, row, TVMFLOW_NV12);
  }
#undef AS
}

// The pixels that contribute to each pixel of the input, in one direction.
typedef struct taps {
  int32_t width;  // number of `weights` for each pixel of the input
  int32_t* first;
  int32_t* count;
  float* weights;
} taps;

static bool make_taps(taps* t, const tf_geometry* g, unsigned axis) {
  const int32_t covered = g->to[axis] - g->from[axis];
  const double step = g->step[axis], reach = step > 1 ? step : 1;
  t->width = 2 * (int32_t)ceil(reach) + 1;
  t->first = malloc((size_t)covered * sizeof(int32_t));
  t->count = malloc((size_t)covered * sizeof(int32_t));
  t->weights = malloc((size_t)covered * (size_t)t->width * sizeof(float));
  if (!t->first || !t->count || !t->weights) return false;
  for (int32_t i = 0; i < covered; ++i) {
    const double center = g->origin[axis] + (i + 0.5) * step;
    const double low = center - reach + 0.5, high = center + reach + 0.5;
    const int32_t first = low > 0 ? (int32_t)low : 0;
    const int32_t end = high < g->upright[axis] ? (int32_t)high : g->upright[axis];
    float* const w = t->weights + (size_t)i * (size_t)t->width;
    double sum = 0;
    for (int32_t k = first; k < end; ++k) sum += fmax(1 - fabs(k - center + 0.5) / reach, 0);
    for (int32_t k = first; k < end; ++k)
      w[k - first] = (float)(fmax(1 - fabs(k - center + 0.5) / reach, 0) / sum);
    t->first[i] = first;
    t->count[i] = end - first;
  }
  return true;
}

static void free_taps(taps* t) {
  free(t->first);
  free(t->count);
  free(t->weights);
}

static void write_number(const tf_picture_job* job, void* input, size_t at, uint32_t channel,
                         float level) {
  const float value = level * job->how.scale[channel] + job->how.shift[channel];
  if (job->dtype == TVMFLOW_FLOAT32)
    ((float*)input)[at] = value;
  else if (job->dtype == TVMFLOW_FLOAT16)
    ((uint16_t*)input)[at] = ToHalf(value);
  else
    ((uint8_t*)input)[at] = (uint8_t)rintf(at_most_255(value));
}

static void write_pixel(const tf_picture_job* job, void* input, int32_t x, int32_t y, pixel p) {
  const uint32_t channels = job->how.channels;
  const size_t width = (size_t)job->geometry.size[0];
  const size_t all = width * (size_t)job->geometry.size[1];
  const size_t at = (size_t)y * width + (size_t)x;
  const bool side_by_side = job->how.arrangement == TF_NHWC;
  if (channels == 1)
    // For a grey picture this is the level itself, except for rounding.
    p[0] = job->how.format == TVMFLOW_GREY8 ? p[0] : 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2];
  for (uint32_t c = 0; c < channels; ++c)
    write_number(job, input, side_by_side ? at * channels + c : c * all + at, c,
                 p[job->how.swapped ? channels - 1 - c : c]);
}

typedef struct work {
  const tf_picture_job* job;
  void* input;
  taps columns;
  taps rows;
} work;

// Returns a resized row of the picture, which is kept in `held`.
static void resize_row(const work* w, int32_t y, pixel* unpacked, pixel* held) {
  const taps* const t = &w->columns;
  const tf_geometry* const g = &w->job->geometry;
  const int32_t covered = g->to[0] - g->from[0];
  unpack(w->job, y, t->first[0], t->first[covered - 1] + t->count[covered - 1], unpacked);
  for (int32_t x = 0; x < covered; ++x) {
    const float* const weights = t->weights + (size_t)x * (size_t)t->width;
    const pixel* const from = unpacked + t->first[x];
    pixel sum = {0, 0, 0, 0};
    for (int32_t k = 0; k < t->count[x]; ++k) sum += weights[k] * from[k];
    held[x] = sum;
  }
}

// Converts a part of the input's rows.
static int convert_rows(int number, tf_task_group* group, void* data) {
  const work* const w = data;
  const tf_picture_job* const job = w->job;
  const tf_geometry* const g = &job->geometry;
  const int32_t begin = (int32_t)((int64_t)g->size[1] * number / group->tasks);
  const int32_t end = (int32_t)((int64_t)g->size[1] * (number + 1) / group->tasks);
  const int32_t covered = g->to[0] - g->from[0], kept = w->rows.width;
  const size_t pixels = (size_t)g->upright[0] + (size_t)(kept + 1) * (size_t)covered;
  pixel* const room = malloc(pixels * sizeof(pixel));
  // The numbers of the rows of the picture that are kept.
  int32_t* const numbers = malloc((size_t)kept * sizeof(int32_t));
  if (!room || !numbers) {
    free(room);
    free(numbers);
    return 1;
  }
  for (int32_t i = 0; i < kept; ++i) numbers[i] = -1;
  pixel* const sums = room + g->upright[0];
  pixel* const held = sums + covered;
  const float padding = job->how.padding;
  const pixel empty = {padding, padding, padding, 0};
  for (int32_t y = begin; y < end; ++y) {
    const bool inside = y >= g->from[1] && y < g->to[1];
    const int32_t i = y - g->from[1];
    for (int32_t k = 0; inside && k < w->rows.count[i]; ++k) {
      const int32_t line = w->rows.first[i] + k, place = line % kept;
      pixel* const resized = held + (size_t)place * (size_t)covered;
      if (numbers[place] != line) resize_row(w, line, room, resized);
      numbers[place] = line;
      const float weight = w->rows.weights[(size_t)i * (size_t)kept + (size_t)k];
      for (int32_t x = 0; x < covered; ++x)
        sums[x] = k ? sums[x] + weight * resized[x] : weight * resized[x];
    }
    for (int32_t x = 0; x < g->size[0]; ++x) {
      const bool shown = inside && x >= g->from[0] && x < g->to[0];
      write_pixel(job, w->input, x, y, shown ? sums[x - g->from[0]] : empty);
    }
  }
  free(room);
  free(numbers);
  return 0;
}

int tf_picture_convert(const tf_picture_job* job, void* input) {
  work w = {.job = job, .input = input};
  const bool made =
      make_taps(&w.columns, &job->geometry, 0) && make_taps(&w.rows, &job->geometry, 1);
  const int failed = !made || tf_threads_run(convert_rows, &w, 0);
  free_taps(&w.columns);
  free_taps(&w.rows);
  return failed;
}
