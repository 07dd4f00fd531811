#include "plan.h"

#include <string.h>

#include "../core/sha256_state.h"

// More than any network has, and any address space of 32 bits; sums of such numbers do not
// overflow.
#define MAX_BYTES (1ull << (sizeof(size_t) > 4 ? 46 : 31))

static const uint8_t record_bytes[TF_SECTION_COUNT] = {
#define TF_BYTES(name, record, member) [name] = sizeof(record),
    TF_SECTIONS(TF_BYTES)
#undef TF_BYTES
};

uint32_t tf_dtype_bytes(uint32_t dtype) {
  static const uint8_t bytes[] = {4, 2, 8, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return dtype < sizeof(bytes) ? bytes[dtype] : 0;
}

uint32_t tf_texel_bytes(uint32_t channel_type) {
  if (channel_type == CL_FLOAT || channel_type == CL_SIGNED_INT32 ||
      channel_type == CL_UNSIGNED_INT32)
    return 16;
  if (channel_type == CL_HALF_FLOAT || channel_type == CL_SIGNED_INT16 ||
      channel_type == CL_UNSIGNED_INT16)
    return 8;
  return channel_type == CL_SIGNED_INT8 || channel_type == CL_UNSIGNED_INT8 ? 4 : 0;
}

uint64_t tf_elements(const tf_interface* tensor) {
  return tensor->bytes / tf_dtype_bytes(tensor->dtype);
}

uint64_t tf_device_bytes(const tf_interface* tensor) {
  return tensor->half ? tensor->bytes / 2 : tensor->bytes;
}

// Returns the product, or MAX_BYTES if it is larger.
static uint64_t product(uint64_t a, uint64_t b, uint64_t c) {
  if (a == 0 || b == 0 || c == 0) return 0;
  if (a >= MAX_BYTES || b >= MAX_BYTES / a) return MAX_BYTES;
  return c >= MAX_BYTES / (a * b) ? MAX_BYTES : a * b * c;
}

static bool is_string(const tf_plan* plan, uint32_t offset) {
  return offset < tf_count(plan, TF_STRINGS);
}

static bool is_range(uint64_t first, uint64_t count, uint64_t all) {
  return first <= all && count <= all - first;
}

// Sections follow each other without gaps but for alignment, so that each byte belongs to one.
static bool sections_are_right(const tf_header* header) {
  uint64_t end = sizeof(tf_header);
  for (unsigned i = 0; i < TF_SECTION_COUNT; ++i) {
    end = (end + 7) & ~7ull;
    if (header->section[i].offset != end) return false;
    end += (uint64_t)header->section[i].count * record_bytes[i];
  }
  return end == header->bytes;
}

static bool texts_are_right(const tf_plan* p) {
  const uint32_t strings = tf_count(p, TF_STRINGS);
  const uint32_t metadata = tf_count(p, TF_METADATA);
  if (!strings || p->strings[strings - 1] || !metadata || p->metadata[metadata - 1]) return false;
  for (uint32_t i = 0; i < tf_count(p, TF_EXTENSIONS); ++i)
    if (!is_string(p, p->extensions[i])) return false;
  return true;
}

static bool allocation_is_right(const tf_allocation* a) {
  if (a->bytes == 0 || a->bytes >= MAX_BYTES) return false;
  if (a->kind == TF_BUFFER) return true;
  const uint64_t texels = product(a->image_size[0], a->image_size[1], a->image_size[2]);
  return a->kind == TF_IMAGE && product(texels, tf_texel_bytes(a->channel_type), 1) == a->bytes;
}

static bool weight_is_right(const tf_plan* p, uint32_t index) {
  const tf_weight* w = &p->weights[index];
  if (!is_string(p, w->name) || w->allocation >= tf_count(p, TF_ALLOCATIONS)) return false;
  const tf_allocation* a = &p->allocations[w->allocation];
  // An image is written as a whole.
  if (w->bytes == 0 || w->bytes > a->bytes || (a->kind == TF_IMAGE && w->bytes != a->bytes))
    return false;
  for (uint32_t i = 0; i < index; ++i)
    if (p->weights[i].allocation == w->allocation) return false;
  const tf_derived* const r = tf_derivation(p, index);
  return w->offset >= sizeof(tf_weights_header) && w->offset % 128 == 0 &&
         is_range(w->offset, r ? r->from_bytes : w->bytes, p->header->weight_bytes);
}

uint32_t tf_shape_launches(const tf_plan* plan) {
  const tf_shape* const last = &plan->shapes[tf_count(plan, TF_SHAPES) - 1];
  return last->first_launch + last->launches;
}

const tf_derived* tf_derivation(const tf_plan* plan, uint32_t weight) {
  for (uint32_t i = 0; i < tf_count(plan, TF_DERIVED); ++i)
    if (plan->derived[i].weight == weight) return &plan->derived[i];
  return NULL;
}

static bool derived_is_right(const tf_plan* p, const tf_derived* r) {
  if (r->weight >= tf_count(p, TF_WEIGHTS) || r->element_bytes == 0 || r->element_bytes > 8 ||
      r->form > TF_SCALED || (r->form != TF_RAW && r->element_bytes != 4 && r->element_bytes != 2))
    return false;
  const uint64_t from = product(r->inner, r->from_lanes, tf_stored_bytes(r));
  const uint64_t to = product(r->inner, r->to_lanes, r->element_bytes);
  if (from == 0 || to == 0 || from == MAX_BYTES || to == MAX_BYTES) return false;
  if (r->from_bytes >= MAX_BYTES || r->from_bytes % from || p->weights[r->weight].bytes % to)
    return false;
  if (r->form != TF_SCALED) return true;
  const uint64_t steps = product(r->axes & 1 ? r->from_bytes / from : 1,
                                 r->axes & 2 ? r->from_lanes : 1, sizeof(float));
  return r->axes >= 1 && r->axes <= 3 && r->steps % 128 == 0 &&
         r->steps >= sizeof(tf_weights_header) &&
         is_range(r->steps, steps, p->header->weight_bytes);
}

const tf_transformed* tf_transformation(const tf_plan* plan, const tf_derived* derived) {
  for (uint32_t i = 0; i < tf_count(plan, TF_TRANSFORMED); ++i)
    if (plan->transformed[i].derived == derived - plan->derived) return &plan->transformed[i];
  return NULL;
}

const tf_picture* tf_picture_of(const tf_plan* plan, uint32_t input) {
  for (uint32_t i = 0; i < tf_count(plan, TF_PICTURES); ++i)
    if (plan->pictures[i].input == input) return &plan->pictures[i];
  return NULL;
}

static bool transformed_is_right(const tf_plan* p, const tf_transformed* t) {
  if (t->derived >= tf_count(p, TF_DERIVED) || t->side == 0 || t->side > TF_MOST_ROWS) return false;
  const tf_derived* const r = &p->derived[t->derived];
  const uint64_t from = product(r->inner, r->from_lanes, 9 * sizeof(float));
  const uint64_t to = product(r->inner, r->to_lanes, t->side * t->side * sizeof(float));
  return r->form == TF_RAW && r->element_bytes == sizeof(float) && r->from_bytes % from == 0 &&
         p->weights[r->weight].bytes % to == 0;
}

// Returns whether the programs follow each other without gaps up to the end of the sources.
static bool programs_are_right(const tf_plan* p) {
  uint64_t end = 0;
  for (uint32_t i = 0; i < tf_count(p, TF_PROGRAMS); ++i) {
    const tf_program* const program = &p->programs[i];
    if (!is_string(p, program->options) || !program->bytes || program->offset != end) return false;
    end += program->bytes;
  }
  return end == p->header->source_bytes && tf_count(p, TF_DIGESTS) == tf_count(p, TF_PROGRAMS);
}

static bool argument_is_right(const tf_plan* p, const tf_argument* a) {
  if (a->kind == TF_MEMORY) return a->allocation < tf_count(p, TF_ALLOCATIONS);
  return a->kind == TF_VALUE && a->bytes >= 1 && a->bytes <= sizeof(a->value);
}

static bool launch_is_right(const tf_plan* p, const tf_launch* l) {
  if (l->program >= tf_count(p, TF_PROGRAMS) || !is_string(p, l->kernel) ||
      !is_string(p, l->function) || l->dimensions < 1 || l->dimensions > 3 ||
      !is_range(l->first_argument, l->arguments, tf_count(p, TF_ARGUMENTS)))
    return false;
  for (uint32_t i = 0; i < l->dimensions; ++i)
    if (l->global[i] == 0 || l->local[i] == 0 || l->global[i] % l->local[i]) return false;
  return true;
}

static bool region_is_right(const tf_region* r, const tf_allocation* image, uint64_t elements) {
  const uint64_t texels = product(r->size[0], r->size[1], r->size[2]);
  for (unsigned i = 0; i < 3; ++i)
    if (!is_range(r->origin[i], r->size[i], image->image_size[i])) return false;
  return texels > 0 && is_range(r->element, product(texels, 4, 1), elements);
}

static bool interface_is_right(const tf_plan* p, const tf_interface* t) {
  const uint32_t element = tf_dtype_bytes(t->dtype);
  if (!is_string(p, t->name) || !is_string(p, t->layout) || !element ||
      t->dimensions > TVMFLOW_MAX_DIMENSIONS || t->half > 1 ||
      (t->half && t->dtype != TVMFLOW_FLOAT32) || t->allocation >= tf_count(p, TF_ALLOCATIONS) ||
      !is_range(t->first_region, t->regions, tf_count(p, TF_REGIONS)))
    return false;
  uint64_t bytes = element;
  for (uint32_t i = 0; i < t->dimensions; ++i) {
    if (t->shape[i] < 1) return false;
    bytes = product(bytes, (uint64_t)t->shape[i], 1);
  }
  if (t->bytes != bytes || bytes == MAX_BYTES) return false;
  for (uint32_t i = 0; i < tf_count(p, TF_WEIGHTS); ++i)
    if (p->weights[i].allocation == t->allocation) return false;
  const tf_allocation* a = &p->allocations[t->allocation];
  if (a->kind == TF_BUFFER) return t->regions == 0 && tf_device_bytes(t) <= a->bytes;
  if (t->regions == 0 || tf_texel_bytes(a->channel_type) != (t->half ? 8 : 4 * element))
    return false;
  for (uint32_t i = 0; i < t->regions; ++i)
    if (!region_is_right(&p->regions[t->first_region + i], a, tf_elements(t))) return false;
  return true;
}

// Returns whether an input or output is the same in two shapes, except for its extents.
static bool is_alike(const tf_plan* p, const tf_interface* a, const tf_interface* b) {
  return !strcmp(p->strings + a->name, p->strings + b->name) &&
         !strcmp(p->strings + a->layout, p->strings + b->layout) && a->dtype == b->dtype &&
         a->dimensions == b->dimensions;
}

static bool side_is_right(const tf_plan* p, const tf_interface* tensors, tf_section_name side) {
  const uint32_t each = tf_count_each(p, side);
  if (tf_count(p, side) % tf_count(p, TF_SHAPES)) return false;
  for (uint32_t i = each; i < tf_count(p, side); ++i)
    if (!is_alike(p, &tensors[i], &tensors[i % each])) return false;
  return true;
}

static bool is_ordered(const tf_alternative* a, const tf_alternative* b) {
  if (a->first != b->first) return a->first < b->first;
  return a->count != b->count ? a->count > b->count : a->kind != TF_PLAIN;
}

static bool is_in_one_shape(const tf_plan* p, const tf_alternative* a) {
  for (uint32_t i = 0; i < tf_count(p, TF_SHAPES); ++i) {
    const tf_shape* const s = &p->shapes[i];
    const uint32_t begin = s->first_launch, end = begin + s->launches;
    if (a->first >= begin && a->first < end) return a->count <= end - a->first;
  }
  return false;
}

static bool shapes_are_right(const tf_plan* p) {
  uint32_t launches = 0;
  for (uint32_t i = 0; i < tf_count(p, TF_SHAPES); ++i) {
    const tf_shape* const s = &p->shapes[i];
    if (s->first_launch != launches || !s->launches ||
        s->launches > tf_count(p, TF_LAUNCHES) - launches)
      return false;
    launches += s->launches;
  }
  const uint32_t of_shapes = launches;
  for (uint32_t i = 0; i < tf_count(p, TF_ALTERNATIVES); ++i) {
    const tf_alternative* const a = &p->alternatives[i];
    // Their own launches follow those of all shapes.
    if ((i && !is_ordered(&a[-1], a)) || !a->count || !is_range(a->first, a->count, of_shapes) ||
        a->kind > TF_CHOICE || !a->calls || a->other_first != launches || !a->other_count ||
        a->other_count > tf_count(p, TF_LAUNCHES) - launches || !is_in_one_shape(p, a))
      return false;
    launches += a->other_count;
  }
  return launches == tf_count(p, TF_LAUNCHES) && side_is_right(p, p->inputs, TF_INPUTS) &&
         side_is_right(p, p->outputs, TF_OUTPUTS);
}

static bool tensor_is_right(const tf_plan* p, uint32_t i) {
  const tf_test_tensor* const t = &p->test_tensors[i];
  if (t->launch >= tf_shape_launches(p) || t->allocation >= tf_count(p, TF_ALLOCATIONS) ||
      !tf_dtype_bytes(t->dtype) || t->count == 0 || t->stride == 0 || !is_string(p, t->nodes) ||
      (i && t->launch < t[-1].launch) ||
      !is_range(t->first_value, t->count, tf_count(p, TF_TENSOR_VALUES)) ||
      !(t->rtol >= 0 && t->rtol < 1e30f && t->atol >= 0 && t->atol < 1e30f))
    return false;
  const tf_allocation* const a = &p->allocations[t->allocation];
  const uint64_t elements = (uint64_t)(t->count - 1) * t->stride + 1;
  if (a->kind == TF_BUFFER) return elements <= a->bytes / tf_dtype_bytes(t->dtype);
  return tf_texel_bytes(a->channel_type) == 4 * tf_dtype_bytes(t->dtype) && t->size[0] &&
         t->size[1] && t->size[0] <= a->image_size[0] && t->size[1] <= a->image_size[1] &&
         elements <= product(t->size[0], t->size[1], 4);
}

static bool test_is_right(const tf_plan* p) {
  const uint32_t inputs = tf_count(p, TF_TEST_INPUTS);
  const uint32_t outputs = tf_count(p, TF_TEST_OUTPUTS);
  if (outputs == 0) return inputs == 0;
  // A network without inputs is tested, too.
  if (inputs != tf_count(p, TF_INPUTS)) return false;
  for (uint32_t i = 0; i < inputs; ++i) {
    const tf_test_input* t = &p->test_inputs[i];
    // Numbers up to this stay exact when they become integers.
    if (!(t->low >= -1e15 && t->high <= 1e15 && t->high >= t->low)) return false;
  }
  for (uint32_t i = 0; i < outputs; ++i) {
    const tf_test_output* t = &p->test_outputs[i];
    if (t->output >= tf_count(p, TF_OUTPUTS) || t->count == 0 || t->stride == 0 ||
        !is_range(t->first_value, t->count, tf_count(p, TF_TEST_VALUES)) ||
        !(t->rtol >= 0 && t->rtol < 1e300 && t->atol >= 0 && t->atol < 1e300) ||
        product(t->count - 1u, t->stride, 1) >= tf_elements(&p->outputs[t->output]))
      return false;
  }
  return true;
}

static bool picture_is_right(const tf_plan* p, const tf_picture* t) {
  if (t->input >= tf_count_each(p, TF_INPUTS) || t->format > TVMFLOW_YV12 ||
      t->fit > TF_LETTERBOX || t->rotation > 270 || t->rotation % 90 ||
      t->program >= tf_count(p, TF_PROGRAMS) || !is_string(p, t->kernel) ||
      !is_string(p, t->image_kernel) || (t->channels != 1 && t->channels != 3) || t->swapped > 1 ||
      t->video > 1 || !t->width != !t->height)
    return false;
  // The axis of the input that has the picture's columns.
  static const uint32_t dimensions[] = {4, 4, 5}, channels[] = {1, 3, 4};
  if (t->arrangement > TF_NCHW4C) return false;
  for (uint32_t i = t->input; i < tf_count(p, TF_INPUTS); i += tf_count_each(p, TF_INPUTS)) {
    const tf_interface* const in = &p->inputs[i];
    const int64_t lanes = t->arrangement == TF_NCHW4C ? 4 : t->channels;
    if (in->dimensions != dimensions[t->arrangement] || in->shape[0] != 1 ||
        in->shape[channels[t->arrangement]] != lanes ||
        (in->dtype != TVMFLOW_FLOAT32 && in->dtype != TVMFLOW_FLOAT16 &&
         in->dtype != TVMFLOW_UINT8) ||
        (t->arrangement == TF_NCHW4C && in->shape[1] != 1) ||
        tf_picture_extent(t, in, 0) > TF_LARGEST_PICTURE ||
        tf_picture_extent(t, in, 1) > TF_LARGEST_PICTURE)
      return false;
  }
  return true;
}

static bool boxes_are_right(const tf_plan* p, const tf_boxes* b) {
  if (b->output >= tf_count_each(p, TF_OUTPUTS) || b->picture >= tf_count(p, TF_PICTURES) ||
      b->form > TF_CENTER_AND_SIZE || b->unit > 1)
    return false;
  const tf_interface* const t = &p->outputs[b->output];
  return t->dtype == TVMFLOW_FLOAT32 && t->dimensions && t->shape[t->dimensions - 1] == 4;
}

#define ALL(section, condition)                                                                    \
  do {                                                                                             \
    for (uint32_t i = 0; i < tf_count(plan, section); ++i)                                         \
      if (!(condition)) return "a record of section " #section " is wrong";                        \
  } while (0)

// Returns what is wrong with a plan whose sections are in place; NULL: nothing is.
static const char* fault(tf_plan* plan) {
  const tf_header* header = plan->header;
  if (!texts_are_right(plan)) return "texts do not end";
  if (header->source_bytes >= MAX_BYTES ||
      header->source_bytes > (uint64_t)tf_count(plan, TF_SOURCES) * TF_INFLATE_RATIO)
    return "the sources' size is wrong";
  if (header->weight_bytes >= MAX_BYTES ||
      (tf_count(plan, TF_WEIGHTS) && header->weight_bytes < sizeof(tf_weights_header)))
    return "the weights' size is wrong";
  if (!tf_count(plan, TF_LAUNCHES) || !tf_count(plan, TF_OUTPUTS)) return "it does nothing";
  ALL(TF_ALLOCATIONS, allocation_is_right(&plan->allocations[i]));
  ALL(TF_DERIVED, derived_is_right(plan, &plan->derived[i]));
  ALL(TF_TRANSFORMED, transformed_is_right(plan, &plan->transformed[i]));
  ALL(TF_WEIGHTS, weight_is_right(plan, i));
  if (!programs_are_right(plan)) return "a record of section TF_PROGRAMS is wrong";
  ALL(TF_ARGUMENTS, argument_is_right(plan, &plan->arguments[i]));
  ALL(TF_LAUNCHES, launch_is_right(plan, &plan->launches[i]));
  ALL(TF_INPUTS, interface_is_right(plan, &plan->inputs[i]));
  ALL(TF_OUTPUTS, interface_is_right(plan, &plan->outputs[i]));
  if (!shapes_are_right(plan)) return "its shapes are wrong";
  ALL(TF_TEST_TENSORS, tensor_is_right(plan, i));
  ALL(TF_PICTURES, picture_is_right(plan, &plan->pictures[i]));
  ALL(TF_BOXES, boxes_are_right(plan, &plan->boxes[i]));
  return test_is_right(plan) ? NULL : "its self-test is wrong";
}

// Returns what is wrong with the header; NULL: nothing is, and the sections can be found.
static const char* header_fault(const tf_header* header, const uint8_t* data, size_t bytes) {
  if (bytes < sizeof(tf_header) || (uintptr_t)data % sizeof(uint64_t) ||
      memcmp(header->magic, TF_PLAN_MAGIC, sizeof(header->magic)))
    return "it is no plan";
  if (header->version != TF_FORMAT_VERSION || header->sections != TF_SECTION_COUNT)
    return "it has another version";
  // Offsets have 32 bits; counts of records are then far below.
  if (header->bytes != bytes || bytes > UINT32_MAX) return "it has another length than it says";
  uint8_t digest[32];
  Sha256Digest(data + sizeof(tf_header), bytes - sizeof(tf_header), digest);
  if (memcmp(digest, header->checksum, sizeof(digest))) return "its checksum is wrong";
  return sections_are_right(header) ? NULL : "its sections are not where they should be";
}

tvmflow_status tf_plan_open(tf_plan* plan, const void* data, size_t bytes, tf_message* message) {
  const uint8_t* const begin = data;
  const tf_header* const header = data;
  const char* wrong = header_fault(header, begin, bytes);
  if (!wrong) {
    plan->header = header;
#define TF_FIND(name, record, member)                                                              \
  plan->member = (const void*)(begin + header->section[name].offset);
    TF_SECTIONS(TF_FIND)
#undef TF_FIND
    wrong = fault(plan);
  }
  if (!wrong) return TVMFLOW_OK;
  return tf_fail(message, TVMFLOW_ERROR_DAMAGED,
                 "Reading the library's execution plan: expected one of version %u, got %zu bytes "
                 "that are damaged: %s. Remedy: copy the library again, or compile it again.",
                 TF_FORMAT_VERSION, bytes, wrong);
}
