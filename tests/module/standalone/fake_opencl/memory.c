// Buffers and images, whose contents are kept, and transfers.
#include <stdlib.h>
#include <string.h>

#include "fake.h"

static void destroy_memory(fake_object* object) {
  fake_memory_object* memory = (fake_memory_object*)object;
  fake_memory_bytes -= memory->bytes;
  if (memory->owns_data) free(memory->data);
}

static size_t channel_bytes(cl_uint type) {
  if (type == CL_FLOAT || type == CL_SIGNED_INT32 || type == CL_UNSIGNED_INT32) return 4;
  if (type == CL_HALF_FLOAT || type == CL_SIGNED_INT16 || type == CL_UNSIGNED_INT16) return 2;
  if (type == CL_SIGNED_INT8 || type == CL_UNSIGNED_INT8 || type == CL_UNORM_INT8) return 1;
  return 0;
}

// Where an extension says that the host's memory is something else.
enum { kExtendedHostQcom = 1 << 29 };
enum { kUseHostMemory = 1 << 3, kAllocateHostMemory = 1 << 4, kCopyHostMemory = 1 << 5 };

// What buffers and images have in common; the sizes of `made` are given.
static cl_mem create(const char* function, cl_context context, cl_bitfield flags, void* host,
                     size_t host_row_pitch, size_t host_slice_pitch, fake_memory_object made,
                     cl_int* code) {
  cl_int wrong = 0;
  const cl_bitfield access = flags & 7;
  if (!fake_alive(context, FAKE_CONTEXT))
    wrong = fake_wrong(function, CL_INVALID_CONTEXT, "no context");
  else if (flags >> 10 || (access != 0 && access != 1 && access != 2 && access != 4) ||
           (flags & kUseHostMemory && flags & (kCopyHostMemory | kAllocateHostMemory)))
    wrong = fake_wrong(function, CL_INVALID_VALUE, "flags 0x%llx", (unsigned long long)flags);
  else if (!host != !(flags & (kUseHostMemory | kCopyHostMemory)))
    wrong = fake_wrong(function, CL_INVALID_HOST_PTR, "flags 0x%llx, memory %p",
                       (unsigned long long)flags, host);
  else if (fake_memory_bytes + made.bytes > fake_number("MEMORY_BYTES"))
    wrong = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  fake_memory_object* memory =
      wrong ? NULL : fake_new(sizeof(*memory), FAKE_MEMORY, (fake_object*)context, destroy_memory);
  if (!memory) {
    if (code) *code = wrong ? wrong : CL_OUT_OF_HOST_MEMORY;
    return NULL;
  }
  made.object = memory->object;
  made.owns_data = !(flags & kUseHostMemory);
  made.data = host;
  if (made.owns_data) {
    made.data = malloc(made.bytes);
    // Garbage, as on a device, but always the same.
    memset(made.data, 0xA5, made.bytes);
    for (size_t z = 0; host && z < made.size[2]; ++z)
      for (size_t y = 0; y < made.size[1]; ++y)
        memcpy(made.data + z * made.slice_pitch + y * made.row_pitch,
               (unsigned char*)host + z * host_slice_pitch + y * host_row_pitch,
               made.size[0] * made.texel);
  } else {
    made.row_pitch = host_row_pitch;
    made.slice_pitch = host_slice_pitch;
  }
  fake_memory_bytes += made.bytes;
  *memory = made;
  return (cl_mem)memory;
}

// Qualcomm's structure in place of the host's memory: the pixels of Android's buffer, NULL: wrong.
static void* imported_qcom(cl_bitfield* flags, const void* host, bool is_image) {
  const struct {
    cl_uint type, cache_policy;
    const fake_hardware_buffer* buffer;
  }* const given = host;
  *flags &= ~(cl_bitfield)kExtendedHostQcom;
  if (!fake_has_extension("cl_qcom_android_ahardwarebuffer_host_ptr") || !given ||
      given->type != 0x4119 || given->cache_policy != 0x40A5 ||
      given->buffer->magic != FAKE_HARDWARE_BUFFER || given->buffer->is_image != is_image)
    return NULL;
  return given->buffer->pixels;
}

FAKE_API cl_mem clImportMemoryARM(cl_context context, cl_bitfield flags, const intptr_t* properties,
                                  void* memory, size_t bytes, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  const fake_hardware_buffer* const from = memory;
  FAKE_REQUIRE_CREATE(properties && properties[0] == 0x40B2 && properties[1] == 0x41E2 &&
                          !properties[2] && from && from->magic == FAKE_HARDWARE_BUFFER &&
                          bytes == SIZE_MAX && flags == CL_MEM_READ_ONLY,
                      code, CL_INVALID_VALUE, "what is imported is no AHardwareBuffer");
  const size_t row = from->is_image ? 4 * (size_t)from->width : from->bytes;
  const size_t rows = from->is_image ? from->height : 1;
  const fake_memory_object made = {.is_image = from->is_image,
                                   .format = {CL_RGBA, CL_UNORM_INT8},
                                   .texel = from->is_image ? 4 : 1,
                                   .size = {from->is_image ? from->width : from->bytes, rows, 1},
                                   .bytes = row * rows};
  return create(__func__, context, flags | kUseHostMemory, from->pixels, row, row * rows, made,
                code);
}

FAKE_API cl_mem clCreateBuffer(cl_context context, cl_bitfield flags, size_t bytes, void* host,
                               cl_int* code) {
  FAKE_ENTER_CREATE(code);
  if (flags & kExtendedHostQcom) {
    host = imported_qcom(&flags, host, false);
    FAKE_REQUIRE_CREATE(host, code, CL_INVALID_HOST_PTR, "no AHardwareBuffer");
  }
  FAKE_REQUIRE_CREATE(bytes > 0, code, CL_INVALID_BUFFER_SIZE, "no bytes");
  if (bytes > fake_number("BUFFER_BYTES")) {
    if (code) *code = CL_INVALID_BUFFER_SIZE;
    return NULL;
  }
  const fake_memory_object made = {
      .texel = 1, .size = {bytes, 1, 1}, .row_pitch = bytes, .slice_pitch = bytes, .bytes = bytes};
  return create(__func__, context, flags, host, bytes, bytes, made, code);
}

FAKE_API cl_mem clCreateImage(cl_context context, cl_bitfield flags, const cl_image_format* format,
                              const cl_image_desc* description, void* host, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  FAKE_REQUIRE_CREATE(fake_number("IMAGES"), code, CL_INVALID_OPERATION, "no images here");
  if (flags & kExtendedHostQcom) {
    host = imported_qcom(&flags, host, true);
    FAKE_REQUIRE_CREATE(host, code, CL_INVALID_HOST_PTR, "no AHardwareBuffer");
  }
  FAKE_REQUIRE_CREATE(
      format &&
          (format->image_channel_order == CL_RGBA || format->image_channel_order == CL_BGRA) &&
          channel_bytes(format->image_channel_data_type),
      code, CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, "not RGBA of known channels");
  const bool layered = description && description->image_type == CL_MEM_OBJECT_IMAGE2D_ARRAY;
  FAKE_REQUIRE_CREATE(layered || (description && description->image_type == 0x10F1), code, -65,
                      "neither a 2D image nor an array of them");
  FAKE_REQUIRE_CREATE(
      !description->buffer && !description->num_mip_levels && !description->num_samples, code, -65,
      "what 1.2 has not");
  const size_t layers = layered ? description->image_array_size : 1;
  FAKE_REQUIRE_CREATE(description->image_width && description->image_height && layers, code,
                      CL_INVALID_IMAGE_SIZE, "an empty image");
  if (description->image_width > fake_number("IMAGE_WIDTH") ||
      description->image_height > fake_number("IMAGE_HEIGHT") ||
      layers > fake_number("IMAGE_LAYERS")) {
    if (code) *code = CL_INVALID_IMAGE_SIZE;
    return NULL;
  }
  const size_t texel = 4 * channel_bytes(format->image_channel_data_type);
  const size_t row = description->image_width * texel;
  const size_t slice = description->image_height * row;
  size_t host_row = description->image_row_pitch, host_slice = description->image_slice_pitch;
  FAKE_REQUIRE_CREATE(host || (!host_row && !host_slice), code, -65, "pitches without memory");
  if (!host_row) host_row = row;
  if (!host_slice) host_slice = description->image_height * host_row;
  FAKE_REQUIRE_CREATE(
      host_row >= row && host_row % texel == 0 &&
          host_slice >= description->image_height * host_row && host_slice % host_row == 0,
      code, -65, "pitches %zu and %zu of rows of %zu bytes", host_row, host_slice, row);
  const fake_memory_object made = {
      .is_image = true,
      .layered = layered,
      .format = *format,
      .texel = texel,
      .size = {description->image_width, description->image_height, layers},
      .row_pitch = row,
      .slice_pitch = slice,
      .bytes = slice * layers};
  return create(__func__, context, flags, host, host_row, host_slice, made, code);
}

FAKE_API cl_int clGetSupportedImageFormats(cl_context context, cl_bitfield flags, cl_uint type,
                                           cl_uint room, cl_image_format* formats, cl_uint* count) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(context, FAKE_CONTEXT), CL_INVALID_CONTEXT, "no context");
  FAKE_REQUIRE(flags && type >= 0x10F1 && (!formats || room), CL_INVALID_VALUE, "type 0x%x", type);
  const cl_uint types[] = {CL_FLOAT,          CL_HALF_FLOAT,  CL_SIGNED_INT32,
                           CL_UNSIGNED_INT32, CL_SIGNED_INT8, CL_UNSIGNED_INT8};
  const cl_uint known = fake_number("IMAGES") ? sizeof(types) / sizeof(types[0]) : 0;
  for (cl_uint i = 0; formats && i < known && i < room; ++i)
    formats[i] = (cl_image_format){CL_RGBA, types[i]};
  if (count) *count = known;
  return CL_SUCCESS;
}

FAKE_API cl_int clGetMemObjectInfo(cl_mem handle, cl_uint what, size_t room, void* destination,
                                   size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(handle, FAKE_MEMORY), CL_INVALID_MEM_OBJECT, "no memory object");
  const fake_memory_object* memory = (const fake_memory_object*)handle;
  const cl_uint type = !memory->is_image ? CL_MEM_OBJECT_BUFFER
                       : memory->layered ? CL_MEM_OBJECT_IMAGE2D_ARRAY
                                         : CL_MEM_OBJECT_IMAGE2D;
  if (what == CL_MEM_TYPE)
    return fake_give(__func__, &type, sizeof(type), room, destination, needed);
  if (what == CL_MEM_SIZE)
    return fake_give(__func__, &memory->bytes, sizeof(size_t), room, destination, needed);
  FAKE_REQUIRE(what == CL_MEM_CONTEXT, CL_INVALID_VALUE, "0x%x is unknown", what);
  return fake_give(__func__, &memory->object.context, sizeof(void*), room, destination, needed);
}

FAKE_API cl_int clGetImageInfo(cl_mem handle, cl_uint what, size_t room, void* destination,
                               size_t* needed) {
  FAKE_ENTER();
  const fake_memory_object* memory = (const fake_memory_object*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_MEMORY) && memory->is_image, CL_INVALID_MEM_OBJECT,
               "no image");
  if (what == CL_IMAGE_FORMAT)
    return fake_give(__func__, &memory->format, sizeof(cl_image_format), room, destination, needed);
  const size_t* value = what == CL_IMAGE_WIDTH        ? &memory->size[0]
                        : what == CL_IMAGE_HEIGHT     ? &memory->size[1]
                        : what == CL_IMAGE_ARRAY_SIZE ? &memory->size[2]
                        : what == 0x1112              ? &memory->row_pitch
                        : what == 0x1113              ? &memory->slice_pitch
                                                      : NULL;
  FAKE_REQUIRE(value, CL_INVALID_VALUE, "0x%x is unknown", what);
  return fake_give(__func__, value, sizeof(*value), room, destination, needed);
}
