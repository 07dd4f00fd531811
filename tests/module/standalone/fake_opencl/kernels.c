// Kernels: declarations as the source has them, arguments, launches, and what a few of them do.
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake.h"
#include "half.h"

static bool has_word(const char* text, size_t length, const char* word) {
  const size_t size = strlen(word);
  for (size_t i = 0; i + size <= length; ++i) {
    if (strncmp(text + i, word, size) != 0) continue;
    const bool begins = i == 0 || !(isalnum((unsigned char)text[i - 1]) || text[i - 1] == '_');
    const char after = i + size < length ? text[i + size] : ' ';
    if (begins && !(isalnum((unsigned char)after) || after == '_')) return true;
  }
  return false;
}

static fake_argument understand(const char* text, size_t length) {
  fake_argument argument = {FAKE_ARGUMENT_VALUE, 0, false, NULL, {0}};
  const bool pointer = memchr(text, '*', length);
  for (size_t i = 0; i + 6 < length; ++i)
    if (strncmp(text + i, "image2d", 7) == 0) argument.kind = FAKE_ARGUMENT_IMAGE;
  if (argument.kind == FAKE_ARGUMENT_IMAGE) return argument;
  if (pointer) {
    const bool local = has_word(text, length, "local") || has_word(text, length, "__local");
    argument.kind = local ? FAKE_ARGUMENT_LOCAL : FAKE_ARGUMENT_BUFFER;
  } else if (has_word(text, length, "int") || has_word(text, length, "uint") ||
             has_word(text, length, "float")) {
    argument.bytes = 4;
  } else if (has_word(text, length, "long") || has_word(text, length, "ulong")) {
    argument.bytes = 8;
  } else if (has_word(text, length, "char") || has_word(text, length, "uchar")) {
    argument.bytes = 1;
  }
  return argument;
}

// Finds "kernel void NAME(...)" in the source and what it takes; false: there is none.
static bool find_kernel(const char* source, const char* name, fake_kernel* kernel) {
  const size_t length = strlen(name);
  const char* at = source;
  while (length && (at = strstr(at, name)) != NULL) {
    const char* before = at;
    at += length;
    if (*at != '(' || before == source || !isspace((unsigned char)before[-1])) continue;
    while (before > source && isspace((unsigned char)before[-1])) --before;
    // An attribute may stand between "void" and the name.
    const char* begin = before;
    while (begin > source && begin[-1] != ';' && begin[-1] != '}') --begin;
    if (!has_word(begin, (size_t)(before - begin), "kernel") &&
        !has_word(begin, (size_t)(before - begin), "__kernel"))
      continue;
    const char* end = strchr(at, ')');
    if (!end) return false;
    for (const char* text = at + 1; text < end;) {
      const char* comma = memchr(text, ',', (size_t)(end - text));
      const char* stop = comma ? comma : end;
      if (kernel->argument_count == FAKE_MAX_ARGUMENTS) return false;
      if (!has_word(text, (size_t)(stop - text), "void") ||
          memchr(text, '*', (size_t)(stop - text)))
        kernel->arguments[kernel->argument_count++] = understand(text, (size_t)(stop - text));
      text = stop + 1;
    }
    return true;
  }
  return false;
}

static void destroy_kernel(fake_object* object) {
  fake_unuse(&((fake_kernel*)object)->program->object);
}

FAKE_API cl_kernel clCreateKernel(cl_program handle, const char* name, cl_int* code) {
  FAKE_ENTER_CREATE(code);
  fake_program* program = (fake_program*)handle;
  FAKE_REQUIRE_CREATE(fake_alive(handle, FAKE_PROGRAM), code, CL_INVALID_PROGRAM, "no program");
  FAKE_REQUIRE_CREATE(program->built, code, CL_INVALID_PROGRAM_EXECUTABLE, "not built");
  FAKE_REQUIRE_CREATE(name, code, CL_INVALID_VALUE, "no name");
  fake_kernel found = {.argument_count = 0};
  if (!find_kernel(program->source, name, &found)) {
    if (code) *code = CL_INVALID_KERNEL_NAME;
    return NULL;
  }
  fake_kernel* kernel =
      fake_new(sizeof(*kernel), FAKE_KERNEL, program->object.context, destroy_kernel);
  found.object = kernel->object;
  *kernel = found;
  kernel->program = program;
  snprintf(kernel->name, sizeof(kernel->name), "%s", name);
  fake_use(&program->object);
  return (cl_kernel)kernel;
}

FAKE_API cl_int clSetKernelArg(cl_kernel handle, cl_uint index, size_t bytes, const void* value) {
  FAKE_ENTER();
  fake_kernel* kernel = (fake_kernel*)handle;
  FAKE_REQUIRE(fake_alive(handle, FAKE_KERNEL), CL_INVALID_KERNEL, "no kernel");
  FAKE_REQUIRE(index < kernel->argument_count, CL_INVALID_ARG_INDEX, "%s has %u arguments, not %u",
               kernel->name, kernel->argument_count, index + 1);
  fake_argument* argument = &kernel->arguments[index];
  if (argument->kind == FAKE_ARGUMENT_LOCAL) {
    FAKE_REQUIRE(!value && bytes > 0, CL_INVALID_ARG_VALUE, "local memory of %s", kernel->name);
  } else if (argument->kind == FAKE_ARGUMENT_VALUE) {
    FAKE_REQUIRE(value, CL_INVALID_ARG_VALUE, "no value for %s", kernel->name);
    FAKE_REQUIRE(bytes == argument->bytes || (!argument->bytes && bytes <= 16), CL_INVALID_ARG_SIZE,
                 "%zu bytes for argument %u of %s", bytes, index, kernel->name);
    memcpy(argument->value, value, bytes);
  } else {
    FAKE_REQUIRE(bytes == sizeof(cl_mem), CL_INVALID_ARG_SIZE, "argument %u of %s", index,
                 kernel->name);
    fake_memory_object* memory = value ? *(fake_memory_object* const*)value : NULL;
    FAKE_REQUIRE(fake_alive(memory, FAKE_MEMORY), CL_INVALID_MEM_OBJECT,
                 "argument %u of %s is not alive", index, kernel->name);
    FAKE_REQUIRE(memory->is_image == (argument->kind == FAKE_ARGUMENT_IMAGE), CL_INVALID_MEM_OBJECT,
                 "argument %u of %s is %s", index, kernel->name,
                 memory->is_image ? "no image" : "an image");
    argument->memory = memory;
  }
  argument->set = true;
  return CL_SUCCESS;
}

FAKE_API cl_int clGetKernelWorkGroupInfo(cl_kernel handle, cl_device_id device, cl_uint what,
                                         size_t room, void* destination, size_t* needed) {
  FAKE_ENTER();
  FAKE_REQUIRE(fake_alive(handle, FAKE_KERNEL), CL_INVALID_KERNEL, "no kernel");
  FAKE_REQUIRE(!device || fake_alive(device, FAKE_DEVICE), CL_INVALID_DEVICE, "no device");
  FAKE_REQUIRE(what == CL_KERNEL_WORK_GROUP_SIZE, CL_INVALID_VALUE, "0x%x is unknown", what);
  const size_t size = fake_number("GROUP_SIZE");
  return fake_give(__func__, &size, sizeof(size), room, destination, needed);
}

cl_int fake_check_launch(const char* function, const fake_queue* queue, const fake_kernel* kernel,
                         cl_uint dimensions, const size_t* offset, const size_t* global,
                         const size_t* local) {
  if (!fake_alive(queue, FAKE_QUEUE))
    return fake_wrong(function, CL_INVALID_COMMAND_QUEUE, "no queue");
  if (!fake_alive(kernel, FAKE_KERNEL)) return fake_wrong(function, CL_INVALID_KERNEL, "no kernel");
  if (kernel->object.context != queue->object.context)
    return fake_wrong(function, CL_INVALID_CONTEXT, "%s is of another context", kernel->name);
  if (dimensions < 1 || dimensions > 3)
    return fake_wrong(function, CL_INVALID_WORK_DIMENSION, "%u dimensions", dimensions);
  if (offset) return fake_wrong(function, -56, "an offset is not understood here");
  size_t items = 1;
  for (cl_uint i = 0; i < dimensions; ++i) {
    if (!global || global[i] == 0)
      return fake_wrong(function, CL_INVALID_GLOBAL_WORK_SIZE, "no work for %s", kernel->name);
    if (!local) continue;
    if (local[i] == 0 || global[i] % local[i] != 0)
      return fake_wrong(function, CL_INVALID_WORK_GROUP_SIZE, "%zu of %zu work-items of %s",
                        local[i], global[i], kernel->name);
    items *= local[i];
  }
  if (items > fake_number("GROUP_SIZE")) return CL_INVALID_WORK_GROUP_SIZE;
  for (uint32_t i = 0; i < kernel->argument_count; ++i) {
    const fake_argument* argument = &kernel->arguments[i];
    if (!argument->set)
      return fake_wrong(function, CL_INVALID_KERNEL_ARGS, "argument %u of %s is not set", i,
                        kernel->name);
    if (argument->memory && !fake_alive(argument->memory, FAKE_MEMORY))
      return fake_wrong(function, CL_INVALID_KERNEL_ARGS, "argument %u of %s was released", i,
                        kernel->name);
    if (argument->memory && argument->memory->object.context != queue->object.context)
      return fake_wrong(function, CL_INVALID_CONTEXT, "argument %u of %s", i, kernel->name);
  }
  return CL_SUCCESS;
}

void fake_take_arguments(fake_command* command, fake_kernel* kernel) {
  command->what = FAKE_LAUNCH;
  command->kernel = kernel;
  fake_use(&kernel->object);
  memcpy(command->arguments, kernel->arguments, sizeof(command->arguments));
  for (uint32_t i = 0; i < kernel->argument_count; ++i)
    if (command->arguments[i].memory) fake_use(&command->arguments[i].memory->object);
}

// Elements of a kernel's memory as floats: of an image by its channels, of a buffer halves where
// the kernel's name ends with "_h".
typedef struct elements {
  fake_memory_object* memory;
  bool half;
  size_t count;
} elements;

static elements elements_of(const fake_command* command, uint32_t index) {
  fake_memory_object* memory = command->arguments[index].memory;
  const size_t length = strlen(command->kernel->name);
  const bool named = length > 2 && strcmp(command->kernel->name + length - 2, "_h") == 0;
  const bool half =
      memory->is_image ? memory->format.image_channel_data_type == CL_HALF_FLOAT : named;
  return (elements){memory, half, memory->bytes / (half ? 2 : 4)};
}

static float get(elements from, size_t index) {
  if (from.count == 0) return 0;                 // smaller than one element
  if (index >= from.count) index %= from.count;  // repeated, as a bias is
  if (from.half) return FromHalf(((const uint16_t*)(const void*)from.memory->data)[index]);
  return ((const float*)(const void*)from.memory->data)[index];
}

static void put(elements to, size_t index, float value) {
  if (to.half)
    ((uint16_t*)(void*)to.memory->data)[index] = ToHalf(value);
  else
    ((float*)(void*)to.memory->data)[index] = value;
}

// A picture of four channels to the planes of an input of the same size, without any filter.
static void put_picture(const fake_command* command) {
  const int32_t* const told = (const int32_t*)(const void*)command->arguments[1].memory->data;
  const int32_t *size = told, *first = told + 8, *column = told + 10, *row = told + 12;
  const int32_t *offset = told + 14, *stride = told + 17;
  const fake_memory_object* const from = command->arguments[2].memory;
  const elements to = elements_of(command, 0);
  for (int32_t y = 0; y < size[1]; ++y)
    for (int32_t x = 0; x < size[0]; ++x)
      for (int32_t c = 0; c < 3; ++c) {
        const int32_t px = first[0] + x * column[0] + y * row[0];
        const int32_t py = first[1] + x * column[1] + y * row[1];
        const size_t at = from->is_image ? (size_t)py * from->row_pitch + (size_t)px * 4
                                         : (size_t)(offset[0] + py * stride[0] + px * 4);
        put(to, (size_t)((c * size[1] + y) * size[0] + x), from->data[at + (size_t)c]);
      }
}

// Whether the driver has a fault (the setting WRONG) that this command meets.
static bool computes_wrong(const fake_command* command) {
  const char* fault = fake_text("WRONG");
  const fake_program* program = command->kernel->program;
  if (!*fault) return false;
  if (strncmp(fault, "kernel ", 7) == 0) {
    // Counted in the whole process, as tests that set a rate know.
    static atomic_uint_fast64_t launches;
    return strcmp(fault + 7, command->kernel->name) == 0 &&
           (atomic_fetch_add(&launches, 1) + 1) % fake_number("WRONG_RATE") == 0;
  }
  if (strcmp(fault, "replay") == 0) return command->replayed;
  if (strcmp(fault, "binary") == 0) return program->from_binary;
  return strcmp(fault, "all") == 0 || !strstr(program->options, fault);
}

// Takes the time that the setting SLOW gives a kernel.
static void take_time(const char* name) {
  const size_t length = strlen(name);
  for (const char* at = fake_text("SLOW"); at && *at; at = strchr(at, ',')) {
    if (*at == ',') ++at;
    if (strncmp(at, name, length) != 0 || at[length] != '=') continue;
    const struct timespec time = {0, atol(at + length + 1) * 1000};
    (void)nanosleep(&time, NULL);
    fake_pass((cl_ulong)time.tv_nsec);
  }
}

// Qualcomm's dot product; the setting DOT8 is "unsigned" if both factors are.
static void put_dot8(const fake_command* command) {
  uint32_t w, x;
  memcpy(&w, command->arguments[1].value, sizeof(w));
  memcpy(&x, command->arguments[2].value, sizeof(x));
  const bool both = strcmp(fake_text("DOT8"), "unsigned") == 0;
  int32_t sum = 5;
  for (int byte = 0; byte < 32; byte += 8) {
    const int32_t factor = both ? (int32_t)(w >> byte & 255) : (int8_t)(w >> byte);
    sum += factor * (int32_t)(x >> byte & 255);
  }
  memcpy(command->arguments[0].memory->data, &sum, sizeof(sum));
}

cl_int fake_run_kernel(const fake_command* command) {
  const fake_kernel* kernel = command->kernel;
  take_time(kernel->name);
  kernel->program->complete = true;
  if (strncmp(kernel->name, "picture", 7) == 0) put_picture(command);
  if (strcmp(kernel->name, "tvmflow_dot8") == 0) put_dot8(command);
  const bool adds = strncmp(kernel->name, "add", 3) == 0;
  if (!adds && strncmp(kernel->name, "scale", 5) != 0 && strncmp(kernel->name, "copy", 4) != 0)
    return CL_SUCCESS;
  const elements a = elements_of(command, 0);
  const elements b = adds ? elements_of(command, 1) : a;
  const elements out = elements_of(command, adds ? 2 : 1);
  // y = k x, and for "add" y = k x + w.
  float factor = 1;
  const uint32_t last = kernel->argument_count - 1;
  if (kernel->arguments[last].kind == FAKE_ARGUMENT_VALUE)
    memcpy(&factor, command->arguments[last].value, sizeof(factor));
  if (computes_wrong(command)) factor += 1;
  for (size_t i = 0; i < out.count; ++i) put(out, i, factor * get(a, i) + (adds ? get(b, i) : 0));
  return CL_SUCCESS;
}
