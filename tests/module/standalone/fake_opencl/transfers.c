// Transfers between memory objects and the host.
#include <string.h>

#include "fake.h"

// One side of a transfer, as the command wants it.
typedef struct side {
  fake_memory_object* memory;  // NULL: the host
  size_t begin, row_pitch, slice_pitch;
} side;

// Checks that a box lies inside a memory object and says where; "" is good.
static const char* place(const void* handle, bool image, const size_t* origin, const size_t* region,
                         side* found) {
  fake_memory_object* memory = (fake_memory_object*)handle;
  if (!fake_alive(handle, FAKE_MEMORY)) return "the memory object is not alive";
  if (memory->is_image != image) return image ? "this is no image" : "this is no buffer";
  for (int i = 0; i < 3; ++i)
    if (region[i] == 0 || region[i] > memory->size[i] || origin[i] > memory->size[i] - region[i])
      return "it does not lie inside the memory object";
  *found = (side){
      memory,
      origin[0] * memory->texel + origin[1] * memory->row_pitch + origin[2] * memory->slice_pitch,
      memory->row_pitch, memory->slice_pitch};
  return "";
}

static cl_int transfer(const char* function, cl_command_queue handle, side source, side destination,
                       void* host, const size_t extent[3], bool blocking, cl_uint count,
                       const cl_event* waited, cl_event* event) {
  fake_queue* queue = (fake_queue*)handle;
  if (!fake_alive(handle, FAKE_QUEUE) || queue->properties & FAKE_QUEUE_RECORDABLE)
    return fake_wrong(function, CL_INVALID_COMMAND_QUEUE, "no queue for transfers");
  for (int i = 0; i < 2; ++i) {
    const fake_memory_object* memory = i ? source.memory : destination.memory;
    if (memory && memory->object.context != queue->object.context)
      return fake_wrong(function, CL_INVALID_CONTEXT, "of another context than the queue");
  }
  const cl_int wrong = fake_check_wait_list(function, count, waited);
  if (wrong) return wrong;
  fake_command* command = fake_new_command(queue, event);
  if (!command) return CL_OUT_OF_HOST_MEMORY;
  command->what = FAKE_COPY;
  command->source = source.memory;
  command->destination = destination.memory;
  command->host = host;
  command->source_begin = source.begin;
  command->destination_begin = destination.begin;
  command->source_pitch[0] = source.row_pitch;
  command->source_pitch[1] = source.slice_pitch;
  command->destination_pitch[0] = destination.row_pitch;
  command->destination_pitch[1] = destination.slice_pitch;
  memcpy(command->extent, extent, sizeof(command->extent));
  if (source.memory) fake_use(&source.memory->object);
  if (destination.memory) fake_use(&destination.memory->object);
  return fake_submit(queue, command, blocking);
}

#define PLACE(found, memory, image, origin, region)                                                \
  side found;                                                                                      \
  do {                                                                                             \
    const char* why = place(memory, image, origin, region, &found);                                \
    const cl_int code =                                                                            \
        fake_alive(memory, FAKE_MEMORY) ? CL_INVALID_VALUE : CL_INVALID_MEM_OBJECT;                \
    FAKE_REQUIRE(!*why, code, "%s", why);                                                          \
  } while (0)
// In a stub, transfers leave the host's data as they are.
#define STUB_RETURNS()                                                                             \
  if (fake_stub) {                                                                                 \
    if (event) *event = NULL;                                                                      \
    return CL_SUCCESS;                                                                             \
  }

FAKE_API cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                    size_t offset, size_t bytes, void* host, cl_uint count,
                                    const cl_event* waited, cl_event* event) {
  STUB_RETURNS();
  FAKE_ENTER();
  FAKE_REQUIRE(host, CL_INVALID_VALUE, "no memory of the host");
  const size_t origin[3] = {offset, 0, 0}, region[3] = {bytes, 1, 1};
  PLACE(source, memory, false, origin, region);
  return transfer(__func__, queue, source, (side){NULL, 0, bytes, bytes}, host, region, blocking,
                  count, waited, event);
}

FAKE_API cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                     size_t offset, size_t bytes, const void* host, cl_uint count,
                                     const cl_event* waited, cl_event* event) {
  STUB_RETURNS();
  FAKE_ENTER();
  FAKE_REQUIRE(host, CL_INVALID_VALUE, "no memory of the host");
  const size_t origin[3] = {offset, 0, 0}, region[3] = {bytes, 1, 1};
  PLACE(destination, memory, false, origin, region);
  return transfer(__func__, queue, (side){NULL, 0, bytes, bytes}, destination, (void*)host, region,
                  blocking, count, waited, event);
}

// Where an image's box lies in the host's memory; 0 of a pitch: rows or layers follow each other.
static bool host_side(size_t texel, const size_t* region, size_t row_pitch, size_t slice_pitch,
                      side* found) {
  const size_t row = region[0] * texel;
  if (row_pitch == 0) row_pitch = row;
  if (slice_pitch == 0) slice_pitch = row_pitch * region[1];
  *found = (side){NULL, 0, row_pitch, slice_pitch};
  return row_pitch >= row && slice_pitch >= row_pitch * region[1];
}

FAKE_API cl_int clEnqueueReadImage(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                   const size_t* origin, const size_t* region, size_t row_pitch,
                                   size_t slice_pitch, void* host, cl_uint count,
                                   const cl_event* waited, cl_event* event) {
  STUB_RETURNS();
  FAKE_ENTER();
  FAKE_REQUIRE(host && origin && region, CL_INVALID_VALUE, "no memory, origin or region");
  PLACE(source, memory, true, origin, region);
  side destination;
  FAKE_REQUIRE(host_side(source.memory->texel, region, row_pitch, slice_pitch, &destination),
               CL_INVALID_VALUE, "pitches %zu and %zu", row_pitch, slice_pitch);
  const size_t extent[3] = {region[0] * source.memory->texel, region[1], region[2]};
  return transfer(__func__, queue, source, destination, host, extent, blocking, count, waited,
                  event);
}

FAKE_API cl_int clEnqueueWriteImage(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                    const size_t* origin, const size_t* region, size_t row_pitch,
                                    size_t slice_pitch, const void* host, cl_uint count,
                                    const cl_event* waited, cl_event* event) {
  STUB_RETURNS();
  FAKE_ENTER();
  FAKE_REQUIRE(host && origin && region, CL_INVALID_VALUE, "no memory, origin or region");
  PLACE(destination, memory, true, origin, region);
  side source;
  FAKE_REQUIRE(host_side(destination.memory->texel, region, row_pitch, slice_pitch, &source),
               CL_INVALID_VALUE, "pitches %zu and %zu", row_pitch, slice_pitch);
  const size_t extent[3] = {region[0] * destination.memory->texel, region[1], region[2]};
  return transfer(__func__, queue, source, destination, (void*)host, extent, blocking, count,
                  waited, event);
}

FAKE_API cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to,
                                    size_t from_offset, size_t to_offset, size_t bytes,
                                    cl_uint count, const cl_event* waited, cl_event* event) {
  FAKE_ENTER();
  const size_t region[3] = {bytes, 1, 1};
  const size_t from_origin[3] = {from_offset, 0, 0}, to_origin[3] = {to_offset, 0, 0};
  PLACE(source, from, false, from_origin, region);
  PLACE(destination, to, false, to_origin, region);
  FAKE_REQUIRE(from != to || from_offset + bytes <= to_offset || to_offset + bytes <= from_offset,
               -8, "the ranges overlap");
  return transfer(__func__, queue, source, destination, NULL, region, false, count, waited, event);
}

FAKE_API cl_int clEnqueueCopyImage(cl_command_queue queue, cl_mem from, cl_mem to,
                                   const size_t* from_origin, const size_t* to_origin,
                                   const size_t* region, cl_uint count, const cl_event* waited,
                                   cl_event* event) {
  FAKE_ENTER();
  FAKE_REQUIRE(from_origin && to_origin && region, CL_INVALID_VALUE, "no origin or region");
  PLACE(source, from, true, from_origin, region);
  PLACE(destination, to, true, to_origin, region);
  FAKE_REQUIRE(
      memcmp(&source.memory->format, &destination.memory->format, sizeof(cl_image_format)) == 0, -9,
      "the images' formats differ");
  const size_t extent[3] = {region[0] * source.memory->texel, region[1], region[2]};
  return transfer(__func__, queue, source, destination, NULL, extent, false, count, waited, event);
}

// Between an image's box and the bytes of a buffer, where rows and layers follow each other.
static cl_int image_and_buffer(const char* function, cl_command_queue queue, cl_mem image,
                               cl_mem buffer, bool to_buffer, const size_t* origin,
                               const size_t* region, size_t offset, cl_uint count,
                               const cl_event* waited, cl_event* event) {
  side texels, bytes;
  if (!origin || !region) return fake_wrong(function, CL_INVALID_VALUE, "no origin or region");
  const char* why = place(image, true, origin, region, &texels);
  if (*why) return fake_wrong(function, CL_INVALID_VALUE, "the image: %s", why);
  const size_t extent[3] = {region[0] * texels.memory->texel, region[1], region[2]};
  const size_t begin[3] = {offset, 0, 0}, all[3] = {extent[0] * extent[1] * extent[2], 1, 1};
  why = place(buffer, false, begin, all, &bytes);
  if (*why) return fake_wrong(function, CL_INVALID_VALUE, "the buffer: %s", why);
  bytes.row_pitch = extent[0];
  bytes.slice_pitch = extent[0] * extent[1];
  return transfer(function, queue, to_buffer ? texels : bytes, to_buffer ? bytes : texels, NULL,
                  extent, false, count, waited, event);
}

FAKE_API cl_int clEnqueueCopyImageToBuffer(cl_command_queue queue, cl_mem image, cl_mem buffer,
                                           const size_t* origin, const size_t* region,
                                           size_t offset, cl_uint count, const cl_event* waited,
                                           cl_event* event) {
  FAKE_ENTER();
  return image_and_buffer(__func__, queue, image, buffer, true, origin, region, offset, count,
                          waited, event);
}

FAKE_API cl_int clEnqueueCopyBufferToImage(cl_command_queue queue, cl_mem buffer, cl_mem image,
                                           size_t offset, const size_t* origin,
                                           const size_t* region, cl_uint count,
                                           const cl_event* waited, cl_event* event) {
  FAKE_ENTER();
  return image_and_buffer(__func__, queue, image, buffer, false, origin, region, offset, count,
                          waited, event);
}
