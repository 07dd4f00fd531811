// Pictures as inputs: check them, copy them to the device, and have a kernel write the network's
// input.

#include "picture.h"

#include <stdlib.h>
#include <string.h>

#include "../core/device.h"
#include "entry.h"
#include "model.h"
#include "programs.h"

struct tf_picture_state {
  cl_kernel kernel;        // reads a buffer; on the CPU the application's memory
  cl_kernel image_kernel;  // reads an image; NULL: there is none
  bool grouped;            // in work-groups of GROUP x GROUP; otherwise the driver chooses
  cl_mem arguments;        // the geometry; on the CPU the whole job
  cl_mem pixels;           // a copy of pixels in this process's memory
  size_t bytes;            // of `pixels`
  bool set;                // the input is a picture
  tf_picture_job job;      // of the last picture
};
enum { GROUP = 8 };

static const struct {
  const char* name;
  uint32_t planes;
  uint32_t bytes;  // of a pixel in the first plane
} formats[] = {
    {"rgba8", 1, 4}, {"bgra8", 1, 4},  {"rgb8", 1, 3}, {"grey8", 1, 1}, {"nv12", 2, 1},
    {"nv21", 2, 1},  {"yuv420", 3, 1}, {"i420", 3, 1}, {"yv12", 3, 1},
};

// The places of a picture's samples.
typedef struct placed_planes {
  uint32_t format;
  unsigned count;
  const uint8_t* memory[3];  // in this process; NULL: it is OpenCL's
  size_t offsets[3];
  uint32_t strides[3];
  uint32_t pixels[3];  // bytes from one sample to the next
  size_t bytes[3];     // from the first to the last present one
  bool is_cut;         // the last sample of pairs is missing
  size_t end;          // offset after the last byte
} placed_planes;

// -- creation --------------------------------------------------------------------------------

static tvmflow_status make_state(tvmflow_model* m, const tf_picture* how, tf_picture_state* s) {
  const tf_opencl* const api = &m->device.api;
  const char* const second = m->plan.strings + how->image_kernel;
  tvmflow_status status =
      tf_kernel_create(m, how->program, m->plan.strings + how->kernel, &s->kernel);
  if (!status && *second && m->device.largest_image[0])
    status = tf_kernel_create(m, how->program, second, &s->image_kernel);
  if (status) return status;
  const size_t group = GROUP * GROUP;
  s->grouped = m->device.largest_local[0] >= GROUP && m->device.largest_local[1] >= GROUP;
  for (unsigned i = 0; i < 2; ++i) {
    const cl_kernel kernel = i ? s->image_kernel : s->kernel;
    size_t largest = 0;
    if (kernel && (api->clGetKernelWorkGroupInfo(kernel, m->device.id, CL_KERNEL_WORK_GROUP_SIZE,
                                                 sizeof(largest), &largest, NULL) != CL_SUCCESS ||
                   largest < group))
      s->grouped = false;
  }
  cl_int code = CL_SUCCESS;
  s->arguments = api->clCreateBuffer(m->context, CL_MEM_READ_ONLY, sizeof(s->job), NULL, &code);
  if (code == CL_SUCCESS) return TVMFLOW_OK;
  s->arguments = NULL;
  return tf_fail_opencl(&m->message, code,
                        "Allocating the arguments of a picture's kernel on device '%s'",
                        m->device.name);
}

tvmflow_status tf_pictures_create(tvmflow_model* m) {
  const uint32_t count = tf_count(&m->plan, TF_PICTURES);
  if (!count) return TVMFLOW_OK;
  m->pictures = calloc(count, sizeof(tf_picture_state));
  if (!m->pictures) return tf_fail(&m->message, TVMFLOW_ERROR_MEMORY, "No memory for pictures.");
  tvmflow_status status = TVMFLOW_OK;
  for (uint32_t i = 0; !status && i < count; ++i)
    status = make_state(m, &m->plan.pictures[i], &m->pictures[i]);
  return status;
}

void tf_pictures_destroy(tvmflow_model* m) {
  const tf_opencl* const api = &m->device.api;
  for (uint32_t i = 0; m->pictures && i < tf_count(&m->plan, TF_PICTURES); ++i) {
    tf_picture_state* const s = &m->pictures[i];
    if (s->kernel) (void)api->clReleaseKernel(s->kernel);
    if (s->image_kernel) (void)api->clReleaseKernel(s->image_kernel);
    if (s->arguments) (void)api->clReleaseMemObject(s->arguments);
    if (s->pixels) (void)api->clReleaseMemObject(s->pixels);
  }
  free(m->pictures);
}

// -- the application's picture -----------------------------------------------------------------

// Returns the columns or rows of a plane.
static uint32_t samples(uint32_t pixels, unsigned plane) {
  return plane ? (pixels + 1) / 2 : pixels;
}

// Returns the bytes of a sample; a pair of chroma is one sample.
static uint32_t sample_bytes(uint32_t format, unsigned plane) {
  return plane && formats[format].planes == 2 ? 2 : formats[format].bytes;
}

// Returns whether one kernel reads both formats.
static bool are_alike(uint32_t format, uint32_t other) {
  const bool has_chroma = formats[format].planes > 1;
  return has_chroma == (formats[other].planes > 1) &&
         (has_chroma || formats[format].bytes == formats[other].bytes);
}

static tvmflow_status find(tvmflow_model* m, uint32_t index, const char* attempt,
                           uint32_t* number) {
  const uint32_t count = tf_count_each(&m->plan, TF_INPUTS);
  if (index >= count)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "%s: there is no input %u: the network has %u, counted from 0.", attempt, index,
                   count);
  const tf_picture* const found = tf_picture_of(&m->plan, index);
  if (found) {
    *number = (uint32_t)(found - m->plan.pictures);
    return TVMFLOW_OK;
  }
  const char* const name = m->plan.strings + tf_inputs(m)[index].name;
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "%s: input '%s' takes no pictures. Remedy: compile the network with "
                 "--image-input %s=rgba8 or another format, or call tvmflow_set_input.",
                 attempt, name, name);
}

// Copies the structure, which is shorter if the application is older than the library.
static tvmflow_status read_image(tvmflow_model* m, const char* name, const tvmflow_image* given,
                                 tvmflow_image* image) {
  memset(image, 0, sizeof(*image));
  if (!given || given->struct_size < offsetof(tvmflow_image, cl_memory))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected a structure whose struct_size is "
                   "sizeof(tvmflow_image), got %s.",
                   name, given ? "a smaller one" : "NULL");
  memcpy(image, given, given->struct_size < sizeof(*image) ? given->struct_size : sizeof(*image));
  const int sources =
      (image->planes[0] != NULL) + (image->cl_memory != NULL) + (image->hardware_buffer != NULL);
  if (sources != 1)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected one of planes, cl_memory and "
                   "hardware_buffer, got %s.",
                   name, sources ? "more" : "none");
  return TVMFLOW_OK;
}

static tvmflow_status check_size(tvmflow_model* m, const char* name, const tf_picture* how,
                                 const tvmflow_image* image) {
  if (how->width && (image->width != how->width || image->height != how->height))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected %ux%u pixels, as the library was compiled, "
                   "got %ux%u. Remedy: compile it with size=any.",
                   name, how->width, how->height, image->width, image->height);
  if (!image->width || !image->height || image->width > TF_LARGEST_PICTURE ||
      image->height > TF_LARGEST_PICTURE)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected 1 to %d pixels a side, got %ux%u.", name,
                   TF_LARGEST_PICTURE, image->width, image->height);
  if (image->rotation > 270 || image->rotation % 90)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected a rotation of 0, 90, 180 or 270 degrees, "
                   "got %u.",
                   name, image->rotation);
  return TVMFLOW_OK;
}

static tvmflow_status check_format(tvmflow_model* m, const char* name, const tf_picture* how,
                                   const tvmflow_image* image, uint32_t* format) {
  *format = image->has_format ? image->format : how->format;
  const bool is_known = *format < sizeof(formats) / sizeof(formats[0]);
  if (!is_known || !are_alike(*format, how->format))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': the library was compiled for %s%s, and a picture of "
                   "%s was given. Remedy: compile it for that format.",
                   name, formats[how->format].name,
                   formats[how->format].planes > 1 ? " and takes all formats with chroma"
                   : how->format <= TVMFLOW_BGRA8  ? " and takes rgba8 and bgra8"
                                                   : "",
                   is_known ? formats[*format].name : "an unknown format");
  if (formats[*format].planes == 3 && !image->planes[1] != !image->planes[2])
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected three planes of %s, or one that the others "
                   "follow, got two.",
                   name, formats[*format].name);
  return TVMFLOW_OK;
}

// Returns the bytes of a plane, starting at its first one; SIZE_MAX: the application does not say.
static size_t known_bytes(const tvmflow_image* image, const placed_planes* p, unsigned plane) {
  if (image->bytes[plane]) return image->bytes[plane];
  // Planes that follow the first one are within its bytes.
  if (!image->bytes[0] || !image->planes[0] || image->planes[1]) return SIZE_MAX;
  const size_t before = p->offsets[plane] - p->offsets[0];
  return image->bytes[0] > before ? image->bytes[0] - before : 0;
}

static tvmflow_status place_plane(tvmflow_model* m, const char* name, const tvmflow_image* image,
                                  placed_planes* p, unsigned i) {
  const char* const format = formats[p->format].name;
  const uint32_t bytes = sample_bytes(p->format, i);
  const uint32_t columns = samples(image->width, i), rows = samples(image->height, i);
  p->pixels[i] = image->pixel_strides[i] ? image->pixel_strides[i] : bytes;
  if (p->count < 3 && p->pixels[i] != bytes)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected pixels of %s without gaps, %u bytes from "
                   "one to the next, got %u.",
                   name, format, bytes, p->pixels[i]);
  const uint64_t row = (uint64_t)p->pixels[i] * (columns - 1) + bytes;
  const uint32_t given = image->strides[i];
  const uint64_t stride = given ? given : (uint64_t)p->pixels[i] * columns;
  if (stride < row)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected a stride of at least %llu bytes for rows "
                   "of %u pixels of %s, got %u.",
                   name, (unsigned long long)row, image->width, format, given);
  p->offsets[i] = image->offsets[i];
  if (i && !p->offsets[i])
    p->offsets[i] = p->offsets[i - 1] + (size_t)p->strides[i - 1] * samples(image->height, i - 1);
  const uint64_t last = stride * (rows - 1) + row;
  if (p->offsets[i] > INT32_MAX || stride > INT32_MAX || last > INT32_MAX - p->offsets[i])
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': its %ux%u pixels with a stride of %llu bytes reach "
                   "beyond 2 GiB.",
                   name, image->width, image->height, (unsigned long long)stride);
  p->strides[i] = (uint32_t)stride;
  p->bytes[i] = (size_t)last;
  const size_t known = known_bytes(image, p, i);
  // The sample before it can replace the missing last byte.
  if (bytes == 2 && known == last - 1 && last > 2) {
    p->is_cut = true;
    --p->bytes[i];
  } else if (known < last) {
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "A picture for input '%s': expected %llu bytes of plane %u for %ux%u pixels "
                   "of %s with a stride of %u, got %zu.",
                   name, (unsigned long long)last, i, image->width, image->height, format,
                   p->strides[i], known);
  }
  if (p->offsets[i] + p->bytes[i] > p->end) p->end = p->offsets[i] + p->bytes[i];
  return TVMFLOW_OK;
}

// Joins interleaved planes of U and V to one plane of pairs, which is copied once.
static void join_planes(placed_planes* p) {
  const uintptr_t u = (uintptr_t)p->memory[1], v = (uintptr_t)p->memory[2];
  if (p->count < 3 || !p->memory[0] || p->pixels[1] != 2 || p->pixels[2] != 2 ||
      p->strides[1] != p->strides[2] || (u + 1 != v && v + 1 != u))
    return;
  p->format = (u < v) == (p->format != TVMFLOW_YV12) ? TVMFLOW_NV12 : TVMFLOW_NV21;
  p->count = 2;
  p->memory[1] = p->memory[u < v ? 1 : 2];
  ++p->bytes[1];
}

static tvmflow_status place_planes(tvmflow_model* m, const char* name, uint32_t format,
                                   const tvmflow_image* image, placed_planes* p) {
  memset(p, 0, sizeof(*p));
  p->format = format;
  p->count = formats[format].planes;
  for (unsigned i = 0; i < p->count; ++i) {
    const tvmflow_status status = place_plane(m, name, image, p, i);
    if (status) return status;
    const uint8_t* const first = image->planes[0];
    if (first)
      p->memory[i] = image->planes[i] ? image->planes[i] : first + (p->offsets[i] - p->offsets[0]);
  }
  join_planes(p);
  return TVMFLOW_OK;
}

// -- the geometry ------------------------------------------------------------------------------

// Returns the middle part of `all` that is `wanted` long.
static void in_the_middle(int32_t all, int32_t wanted, int32_t* from, int32_t* to) {
  *from = (all - wanted) / 2;
  *to = *from + wanted;
}

static int32_t rounded(double value, int32_t largest) {
  const int32_t found = (int32_t)(value + 0.5);
  return found < 1 ? 1 : found > largest ? largest : found;
}

static void fit(tf_geometry* g, uint32_t how) {
  const double steps[2] = {(double)g->upright[0] / g->size[0], (double)g->upright[1] / g->size[1]};
  const double smaller = steps[0] < steps[1] ? steps[0] : steps[1];
  const double larger = steps[0] < steps[1] ? steps[1] : steps[0];
  for (unsigned i = 0; i < 2; ++i) {
    g->from[i] = 0;
    g->to[i] = g->size[i];
    if (how == TF_LETTERBOX)
      in_the_middle(g->size[i], rounded(g->upright[i] / larger, g->size[i]), &g->from[i],
                    &g->to[i]);
    const int32_t covered = g->to[i] - g->from[i];
    const double step = how == TF_CROP ? smaller : (double)g->upright[i] / covered;
    g->step[i] = (float)step;
    g->origin[i] = (float)((g->upright[i] - step * covered) / 2);
  }
}

static void turn(tf_geometry* g, uint32_t degrees, const tvmflow_image* image) {
  const int32_t width = (int32_t)image->width, height = (int32_t)image->height;
  const bool lies = degrees == 90 || degrees == 270;
  g->upright[0] = lies ? height : width;
  g->upright[1] = lies ? width : height;
  // The place of the pixel (0, 0), and the steps to the right and down.
  g->first[0] = degrees >= 180 ? width - 1 : 0;
  g->first[1] = degrees == 90 || degrees == 180 ? height - 1 : 0;
  g->column[0] = degrees == 0 ? 1 : degrees == 180 ? -1 : 0;
  g->column[1] = degrees == 90 ? -1 : degrees == 270 ? 1 : 0;
  g->row[0] = degrees == 90 ? 1 : degrees == 270 ? -1 : 0;
  g->row[1] = degrees == 0 ? 1 : degrees == 180 ? -1 : 0;
}

// Sets the places of the samples of luma, U and V.
static void describe_planes(tf_picture_job* job, const placed_planes* p,
                            const tvmflow_image* image) {
  tf_geometry* const g = &job->geometry;
  for (unsigned c = 0; c < (p->count > 1 ? 3u : 1u); ++c) {
    unsigned plane = c, lane = 0;
    if (p->count == 2 && c) plane = 1, lane = (c == 2) == (p->format == TVMFLOW_NV12);
    if (p->format == TVMFLOW_YV12 && c) plane = 3 - c;
    g->offset[c] = (int32_t)(p->offsets[plane] + lane);
    g->stride[c] = (int32_t)p->strides[plane];
    g->pixel[c] = (int32_t)p->pixels[plane];
    if (p->memory[plane]) job->planes[c] = p->memory[plane] + lane;
    if (!c) continue;
    const int32_t columns = (int32_t)samples(image->width, 1);
    int32_t last =
        (int32_t)(samples(image->height, 1) - 1) * g->stride[c] + (columns - 1) * g->pixel[c];
    // The neighbour to the left, or the one above, replaces a missing sample.
    if (p->is_cut && lane) last -= columns > 1 ? g->pixel[c] : g->stride[c];
    g->last[c - 1] = last;
  }
  g->swapped = p->format == TVMFLOW_BGRA8;
}

static tf_picture_job describe(const tvmflow_model* m, const tf_picture* how,
                               const tvmflow_image* image, const placed_planes* planes) {
  const tf_interface* const input = &tf_inputs(m)[how->input];
  tf_picture_job job;
  memset(&job, 0, sizeof(job));
  job.how = *how;
  job.how.format = planes->format;
  job.dtype = input->dtype;
  for (unsigned i = 0; i < 2; ++i) job.geometry.size[i] = (int32_t)tf_picture_extent(how, input, i);
  describe_planes(&job, planes, image);
  turn(&job.geometry, (how->rotation + image->rotation) % 360, image);
  fit(&job.geometry, how->fit);
  return job;
}

// -- the copy ----------------------------------------------------------------------------------

// Copies the planes to a buffer of the device, which grows, and sets their offsets in it.
static cl_int upload(tvmflow_model* m, tf_picture_state* s, placed_planes* p) {
  const tf_opencl* const api = &m->device.api;
  size_t all = 0;
  for (unsigned i = 0; i < p->count; ++i) {
    p->offsets[i] = (all + 63) / 64 * 64;
    all = p->offsets[i] + p->bytes[i];
  }
  cl_int code = CL_SUCCESS;
  if (all > s->bytes) {
    if (s->pixels) (void)api->clReleaseMemObject(s->pixels);
    s->bytes = 0;
    s->pixels = api->clCreateBuffer(m->context, CL_MEM_READ_ONLY, all, NULL, &code);
    if (code != CL_SUCCESS) s->pixels = NULL;
    if (code == CL_SUCCESS) s->bytes = all;
  }
  for (unsigned i = 0; code == CL_SUCCESS && i < p->count; ++i)
    code = api->clEnqueueWriteBuffer(m->queue, s->pixels, CL_TRUE, p->offsets[i], p->bytes[i],
                                     p->memory[i], 0, NULL, NULL);
  return code;
}

// Checks that the application's memory object fits the picture, and whether it is an image.
static tvmflow_status check_memory(tvmflow_model* m, const char* name, const tf_picture* how,
                                   const tvmflow_image* image, placed_planes* planes, cl_mem memory,
                                   bool* is_image) {
  const tf_opencl* const api = &m->device.api;
  cl_uint type = 0;
  size_t bytes = 0, width = 0, height = 0;
  cl_context context = NULL;
  cl_image_format format = {0, 0};
  cl_int code = api->clGetMemObjectInfo(memory, CL_MEM_TYPE, sizeof(type), &type, NULL);
  if (code == CL_SUCCESS)
    code = api->clGetMemObjectInfo(memory, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL);
  if (code == CL_SUCCESS)
    code = api->clGetMemObjectInfo(memory, CL_MEM_CONTEXT, sizeof(context), &context, NULL);
  *is_image = type == CL_MEM_OBJECT_IMAGE2D;
  if (code == CL_SUCCESS && *is_image)
    code = api->clGetImageInfo(memory, CL_IMAGE_FORMAT, sizeof(format), &format, NULL);
  if (code == CL_SUCCESS && *is_image)
    code = api->clGetImageInfo(memory, CL_IMAGE_WIDTH, sizeof(width), &width, NULL);
  if (code == CL_SUCCESS && *is_image)
    code = api->clGetImageInfo(memory, CL_IMAGE_HEIGHT, sizeof(height), &height, NULL);
  if (code != CL_SUCCESS) {
    tf_fail_opencl(&m->message, code, "Looking at the picture for input '%s'", name);
    return TVMFLOW_ERROR_ARGUMENT;
  }
  if (context != m->context)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The picture for input '%s' belongs to another cl_context. Remedy: give that "
                   "context to tvmflow_create.",
                   name);
  if (type == CL_MEM_OBJECT_BUFFER && bytes + 1 == planes->end && planes->count == 2 &&
      planes->bytes[1] > 2 && !planes->is_cut &&
      planes->offsets[1] + planes->bytes[1] == planes->end)
    planes->is_cut = true;
  else if (type == CL_MEM_OBJECT_BUFFER && bytes < planes->end)
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "The picture for input '%s': expected a buffer of at least %zu bytes, got one "
                   "of %zu.",
                   name, planes->end, bytes);
  if (type == CL_MEM_OBJECT_BUFFER) return TVMFLOW_OK;
  const uint32_t index = (uint32_t)(how - m->plan.pictures);
  if (*is_image && m->pictures[index].image_kernel && width >= image->width &&
      height >= image->height && format.image_channel_data_type == CL_UNORM_INT8 &&
      (format.image_channel_order == CL_RGBA || format.image_channel_order == CL_BGRA))
    return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                 "The picture for input '%s': expected a buffer%s of at least %ux%u pixels of %s, "
                 "got another object of OpenCL.",
                 name,
                 m->pictures[index].image_kernel
                     ? ", or an image2d of CL_RGBA or CL_BGRA and CL_UNORM_INT8,"
                     : "",
                 image->width, image->height, formats[how->format].name);
}

// Values from the specifications of cl_arm_import_memory and
// cl_qcom_android_ahardwarebuffer_host_ptr.
typedef cl_mem (*import_memory_arm)(cl_context, cl_bitfield, const intptr_t*, void*, size_t,
                                    cl_int*);
enum { IMPORT_TYPE_ARM = 0x40B2, IMPORT_TYPE_ANDROID_HARDWARE_BUFFER_ARM = 0x41E2 };
enum { ANDROID_AHARDWAREBUFFER_HOST_PTR_QCOM = 0x4119, HOST_WRITEBACK_QCOM = 0x40A5 };
static const cl_bitfield mem_ext_host_ptr_qcom = 1u << 29;
typedef struct hardware_buffer_qcom {
  cl_uint allocation_type;
  cl_uint host_cache_policy;
  void* hardware_buffer;
} hardware_buffer_qcom;

// Imports Android's buffer as memory of the device, without a copy; the caller releases it.
static tvmflow_status import(tvmflow_model* m, const char* name, const tf_picture* how,
                             const tvmflow_image* image, const placed_planes* planes,
                             cl_mem* memory) {
  const tf_opencl* const api = &m->device.api;
  cl_int code = CL_SUCCESS;
  *memory = NULL;
  // Newer drivers list the import of these buffers under a name of its own.
  if (tf_device_has(&m->device, "cl_arm_import_memory") ||
      tf_device_has(&m->device, "cl_arm_import_memory_android_hardware_buffer")) {
    const import_memory_arm function =
        (import_memory_arm)tf_opencl_extension(api, m->device.platform, "clImportMemoryARM");
    const intptr_t properties[] = {IMPORT_TYPE_ARM, IMPORT_TYPE_ANDROID_HARDWARE_BUFFER_ARM, 0};
    if (function)
      *memory = function(m->context, CL_MEM_READ_ONLY, properties, image->hardware_buffer, SIZE_MAX,
                         &code);
  }
  if (!*memory && code == CL_SUCCESS &&
      tf_device_has(&m->device, "cl_qcom_android_ahardwarebuffer_host_ptr")) {
    hardware_buffer_qcom host = {ANDROID_AHARDWAREBUFFER_HOST_PTR_QCOM, HOST_WRITEBACK_QCOM,
                                 image->hardware_buffer};
    const cl_bitfield flags = CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR | mem_ext_host_ptr_qcom;
    const cl_image_format format = {planes->format == TVMFLOW_BGRA8 ? CL_BGRA : CL_RGBA,
                                    CL_UNORM_INT8};
    const cl_image_desc layout = {.image_type = CL_MEM_OBJECT_IMAGE2D,
                                  .image_width = image->width,
                                  .image_height = image->height};
    // Other formats come in buffers without a format (AHARDWAREBUFFER_FORMAT_BLOB).
    if (how->format <= TVMFLOW_BGRA8)
      *memory = api->clCreateImage(m->context, flags, &format, &layout, &host, &code);
    else
      *memory = api->clCreateBuffer(m->context, flags, planes->end, &host, &code);
  }
  if (code != CL_SUCCESS) {
    *memory = NULL;
    return tf_fail_opencl(&m->message, code, "Importing the AHardwareBuffer for input '%s'", name);
  }
  if (*memory) return TVMFLOW_OK;
  return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                 "The picture for input '%s' is an AHardwareBuffer, which device '%s' cannot "
                 "import: it has neither cl_arm_import_memory nor "
                 "cl_qcom_android_ahardwarebuffer_host_ptr. Remedy: lock the buffer "
                 "(AHardwareBuffer_lock) and give its pixels as planes.",
                 name, m->device.name);
}

static cl_int enqueue(tvmflow_model* m, tf_picture_state* s, const tf_picture_job* job,
                      cl_mem picture, bool is_image) {
  const tf_opencl* const api = &m->device.api;
  const bool inside = m->backend == TVMFLOW_CPU;
  const cl_kernel kernel = is_image ? s->image_kernel : s->kernel;
  const cl_mem input = m->bound[tf_inputs(m)[job->how.input].allocation];
  cl_int code = CL_SUCCESS;
  if (inside || !s->set || memcmp(&job->geometry, &s->job.geometry, sizeof(job->geometry)) != 0)
    code = api->clEnqueueWriteBuffer(m->queue, s->arguments, CL_TRUE, 0,
                                     inside ? sizeof(*job) : sizeof(job->geometry), job, 0, NULL,
                                     NULL);
  if (code == CL_SUCCESS) code = api->clSetKernelArg(kernel, 0, sizeof(input), &input);
  if (code == CL_SUCCESS)
    code = api->clSetKernelArg(kernel, 1, sizeof(s->arguments), &s->arguments);
  if (code == CL_SUCCESS && !inside)
    code = api->clSetKernelArg(kernel, 2, sizeof(picture), &picture);
  const size_t local[2] = {GROUP, GROUP};
  size_t global[2];
  for (unsigned i = 0; i < 2; ++i) {
    const size_t size = (size_t)job->geometry.size[i];
    global[i] = s->grouped ? (size + GROUP - 1) / GROUP * GROUP : size;
  }
  if (code == CL_SUCCESS)
    code = api->clEnqueueNDRangeKernel(m->queue, kernel, 2, NULL, global, s->grouped ? local : NULL,
                                       0, NULL, NULL);
  // The application may change its memory after this call.
  return code == CL_SUCCESS && inside ? api->clFinish(m->queue) : code;
}

tvmflow_status tf_do_set_image(tvmflow_model* m, uint32_t index, const tvmflow_image* given) {
  tvmflow_status status = tf_check_idle(m, "Setting a picture");
  uint32_t number = 0;
  if (!status) status = find(m, index, "Setting a picture", &number);
  if (status) return status;
  const tf_picture* const how = &m->plan.pictures[number];
  tf_picture_state* const s = &m->pictures[number];
  const char* const name = m->plan.strings + tf_inputs(m)[index].name;
  tvmflow_image image;
  placed_planes planes;
  uint32_t format = 0;
  status = read_image(m, name, given, &image);
  if (!status) status = check_size(m, name, how, &image);
  if (!status) status = check_format(m, name, how, &image, &format);
  if (!status) status = place_planes(m, name, format, &image, &planes);
  if (status) return status;
  if (!image.planes[0] && m->backend == TVMFLOW_CPU)
    return tf_fail(&m->message, TVMFLOW_ERROR_UNSUPPORTED,
                   "The picture for input '%s' is memory of OpenCL or Android, and the network "
                   "runs on the CPU. Remedy: give its pixels as planes.",
                   name);
  cl_mem picture = image.cl_memory, imported = NULL;
  bool is_image = false;
  cl_int code = CL_SUCCESS;
  if (image.hardware_buffer) {
    status = import(m, name, how, &image, &planes, &imported);
    picture = imported;
  }
  if (!status && picture) status = check_memory(m, name, how, &image, &planes, picture, &is_image);
  if (!status && image.planes[0] && m->backend == TVMFLOW_OPENCL) {
    code = upload(m, s, &planes);
    picture = s->pixels;
  }
  if (!status && code == CL_SUCCESS) {
    const tf_picture_job job = describe(m, how, &image, &planes);
    // Until the kernel is done, the input has neither its old content nor the picture.
    m->missing[index] = true;
    code = enqueue(m, s, &job, picture, is_image);
    s->job = job;
    s->set = code == CL_SUCCESS;
    m->missing[index] = code != CL_SUCCESS;
    m->given[index] = code == CL_SUCCESS;
  }
  if (imported) (void)m->device.api.clReleaseMemObject(imported);
  if (code == CL_SUCCESS) return status;
  return tf_device_failed(
      m, tf_fail_opencl(&m->message, code, "Putting a picture into input '%s' on device '%s'", name,
                        m->device.name));
}

tvmflow_status tf_do_image_input(tvmflow_model* m, uint32_t index, tvmflow_image_info* info) {
  uint32_t number = 0;
  tvmflow_status status = tf_check(m);
  if (!status) status = find(m, index, "Asking for an input's pictures", &number);
  if (status) return status;
  if (!info || info->struct_size < sizeof(*info))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT,
                   "Asking for an input's pictures: expected a structure whose struct_size is "
                   "sizeof(tvmflow_image_info).");
  const tf_picture* const how = &m->plan.pictures[number];
  info->format = how->format;
  info->width = how->width;
  info->height = how->height;
  return TVMFLOW_OK;
}

uint64_t tf_picture_bytes(const tvmflow_model* m) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_PICTURES); ++i)
    sum += m->pictures[i].bytes + sizeof(tf_picture_job);
  return sum;
}

void tf_picture_replaced(tvmflow_model* m, uint32_t index) {
  const tf_picture* const found = tf_picture_of(&m->plan, index);
  if (found) m->pictures[found - m->plan.pictures].set = false;
}

// -- boxes of the picture ----------------------------------------------------------------------

// Returns scale and offset from the input to the picture.  False: the input is no picture.
static bool place_of(const tf_picture_state* s, double scale[2], double offset[2]) {
  const tf_geometry* const g = &s->job.geometry;
  for (unsigned i = 0; i < 2; ++i) {
    scale[i] = g->step[i];
    offset[i] = g->origin[i] - (double)g->step[i] * g->from[i];
  }
  return s->set;
}

tvmflow_status tf_do_image_place(tvmflow_model* m, uint32_t index, double scale[2],
                                 double offset[2]) {
  uint32_t number = 0;
  tvmflow_status status = tf_check(m);
  if (!status) status = find(m, index, "Asking for a picture's place", &number);
  if (status) return status;
  if (!scale || !offset || !place_of(&m->pictures[number], scale, offset))
    return tf_fail(&m->message, TVMFLOW_ERROR_ARGUMENT, "Asking for a picture's place: %s.",
                   scale && offset ? "none has been set" : "scale or offset is NULL");
  return TVMFLOW_OK;
}

bool tf_has_picture_boxes(const tvmflow_model* m, uint32_t output) {
  bool has = false;
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_BOXES); ++i)
    has = has || m->plan.boxes[i].output == output;
  return has;
}

void tf_picture_boxes(const tvmflow_model* m, uint32_t output, float* data) {
  for (uint32_t i = 0; i < tf_count(&m->plan, TF_BOXES); ++i) {
    const tf_boxes* const b = &m->plan.boxes[i];
    const tf_picture_state* const s = &m->pictures[b->picture];
    double scale[2], offset[2];
    if (b->output != output || !place_of(s, scale, offset)) continue;
    const uint64_t count = tf_elements(&tf_outputs(m)[output]);
    for (uint64_t k = 0; k < count; ++k) {
      const unsigned axis = (unsigned)(k % 2) ^ (b->form == TF_CORNERS_OF_ROWS);
      const bool is_size = b->form >= TF_CORNER_AND_SIZE && k % 4 >= 2;
      double value;
      float stored;
      memcpy(&stored, data + k, sizeof(stored));
      value = b->unit ? (double)stored * s->job.geometry.size[axis] : (double)stored;
      stored = (float)(value * scale[axis] + (is_size ? 0 : offset[axis]));
      memcpy(data + k, &stored, sizeof(stored));
    }
  }
}
