// The execution plan and the weights of a library: byte layout and validation.
//
// `tvmflow/module/standalone/format.py` writes what is declared here; docs/standalone.md describes
// it. All numbers are little-endian.  References between records are indices, references to text
// are offsets into the strings, where each text ends with a zero byte.  A plan comes from a file
// that may be damaged: nothing is followed before `tf_plan_open` has checked it.
#ifndef TVMFLOW_STANDALONE_PLAN_H
#define TVMFLOW_STANDALONE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

#define TF_PLAN_MAGIC "TVMFPLAN"
#define TF_WEIGHTS_MAGIC "TVMFWGTS"
#define TF_FORMAT_VERSION 3u
#define TF_WEIGHTS_VERSION 1u
#define TF_NONE 0xFFFFFFFFu

// Name, type of a record, and the member of `tf_plan`.
#define TF_SECTIONS(ROW)                                                                           \
  ROW(TF_STRINGS, char, strings)                                                                   \
  ROW(TF_METADATA, char, metadata)         /* JSON, ends with a zero byte */                       \
  ROW(TF_EXTENSIONS, uint32_t, extensions) /* strings: those that the kernels need */              \
  ROW(TF_ALLOCATIONS, tf_allocation, allocations)                                                  \
  ROW(TF_WEIGHTS, tf_weight, weights)                                                              \
  ROW(TF_SOURCES, uint8_t, sources) /* all programs', one DEFLATE stream (RFC 1951) */             \
  ROW(TF_PROGRAMS, tf_program, programs)                                                           \
  ROW(TF_LAUNCHES, tf_launch, launches) /* in order */                                             \
  ROW(TF_ARGUMENTS, tf_argument, arguments)                                                        \
  ROW(TF_INPUTS, tf_interface, inputs)                                                             \
  ROW(TF_OUTPUTS, tf_interface, outputs)                                                           \
  ROW(TF_REGIONS, tf_region, regions)                                                              \
  ROW(TF_TEST_INPUTS, tf_test_input, test_inputs) /* one for each input, or none */                \
  ROW(TF_TEST_OUTPUTS, tf_test_output, test_outputs)                                               \
  ROW(TF_TEST_VALUES, double, test_values)                                                         \
  ROW(TF_SHAPES, tf_shape, shapes)                                                                 \
  ROW(TF_DERIVED, tf_derived, derived)                                                             \
  ROW(TF_PICTURES, tf_picture, pictures)                                                           \
  ROW(TF_BOXES, tf_boxes, boxes)                                                                   \
  ROW(TF_TRANSFORMED, tf_transformed, transformed)                                                 \
  ROW(TF_DIGESTS, tf_digest, digests)                /* of each program's text */                  \
  ROW(TF_TEST_TENSORS, tf_test_tensor, test_tensors) /* by launch */                               \
  ROW(TF_TENSOR_VALUES, float, tensor_values)                                                      \
  ROW(TF_ALTERNATIVES, tf_alternative, alternatives) /* by first launch */

typedef enum tf_section_name {
#define TF_NAME(name, record, member) name,
  TF_SECTIONS(TF_NAME)
#undef TF_NAME
      TF_SECTION_COUNT
} tf_section_name;

typedef struct tf_section {
  uint32_t offset;  // from the beginning of the plan, a multiple of 8
  uint32_t count;   // of records, or of bytes
} tf_section;

typedef struct tf_header {
  char magic[8];
  uint32_t version;
  uint32_t sections;       // TF_SECTION_COUNT
  uint64_t bytes;          // of the whole plan
  uint64_t source_bytes;   // of TF_SOURCES when unpacked
  uint64_t weight_bytes;   // of the weights, with their header
  uint8_t weights_id[32];  // repeated in the header of the weights that belong to it
  uint8_t checksum[32];    // SHA-256 of the bytes after the header
  tf_section section[TF_SECTION_COUNT];
} tf_header;

// The header of the weights, in the library or in a file.  Each weight begins at a multiple of 128.
typedef struct tf_weights_header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t bytes;     // with this header
  uint8_t id[32];     // SHA-256 of the bytes after the header
  uint64_t checksum;  // XXH64 of the same bytes: quick enough to compare at each start
  uint8_t padding[64];
} tf_weights_header;

typedef enum tf_kind { TF_BUFFER = 0, TF_IMAGE = 1 } tf_kind;

// A memory object; tensors whose lifetimes do not overlap share one.
typedef struct tf_allocation {
  uint32_t kind;           // tf_kind
  uint32_t channel_type;   // of an image: CL_FLOAT, CL_HALF_FLOAT, ...; always CL_RGBA
  uint32_t image_size[3];  // width, height, layers of an image2d_array_t
  uint32_t reserved;
  uint64_t bytes;  // of the buffer, or of the image's texels
} tf_allocation;

// Bytes of the weights that an allocation begins with, in the order of a buffer's elements or
// an image's texels (layer, row, column).
typedef struct tf_weight {
  uint32_t name;        // string
  uint32_t allocation;  // of this weight only
  uint64_t offset;      // from the beginning of the weights
  uint64_t bytes;       // as in the allocation
} tf_weight;

// How a weight's numbers are stored: as they are, in 16 bits, or as multiples of steps in 8 bits.
// Kernels read floats or halves.
typedef enum tf_form { TF_RAW = 0, TF_HALF = 1, TF_SCALED = 2 } tf_form;

// A weight that is derived from a stored array when the instance is created: the file has the same
// numbers in other blocks, as another plan's weight, or in fewer bits.  `offset` of the weight is
// the stored array's, `bytes` is the size of the derived weight. Number k of an axis is in block k
// / lanes, lane k % lanes: [blocks][inner][lanes].  If it is TF_SCALED, it is a multiple of a step,
// a float: its block's, its lane's, or its own.
typedef struct tf_derived {
  uint32_t weight;
  uint32_t element_bytes;  // of the derived weight
  uint32_t from_lanes;     // in the file
  uint32_t to_lanes;
  uint64_t inner;
  uint64_t from_bytes;  // in the file
  uint32_t form;        // tf_form
  uint32_t axes;        // 1: steps of blocks, 2: of lanes, 3: of each number k
  uint64_t steps;       // their offset from the beginning of the weights
} tf_derived;

// A weight of Winograd's algorithm that is derived from a stored weight's windows of 3 x 3:
// [blocks][inner][3][3][lanes] becomes [side][side][blocks][inner][lanes], of float.  Plane p, q
// has the sum of rows[p][y] * rows[q][x] * window[y][x] over y and x.
enum { TF_MOST_ROWS = 6 };
typedef struct tf_transformed {
  uint32_t derived;
  uint32_t side;  // rows
  double rows[TF_MOST_ROWS][3];
} tf_transformed;

typedef struct tf_program {
  uint32_t offset;  // into the unpacked sources
  uint32_t bytes;
  uint32_t options;  // string, for the driver's compiler
  uint32_t reserved;
} tf_program;

// SHA-256 of a program's text, by which caches find its binary without unpacking the text.
typedef struct tf_digest {
  uint8_t bytes[32];
} tf_digest;

typedef struct tf_launch {
  uint32_t program;
  uint32_t kernel;          // string
  uint32_t function;        // string
  uint32_t first_argument;  // in TF_ARGUMENTS
  uint32_t arguments;
  uint32_t dimensions;  // 1 to 3
  uint32_t global[3];   // work-items, a multiple of `local`
  uint32_t local[3];
} tf_launch;

typedef enum tf_argument_kind { TF_MEMORY = 0, TF_VALUE = 1 } tf_argument_kind;

typedef struct tf_argument {
  uint32_t kind;        // tf_argument_kind
  uint32_t allocation;  // TF_MEMORY
  uint32_t bytes;       // TF_VALUE: 1 to 8
  uint32_t reserved;
  uint8_t value[8];
} tf_argument;

// An input or output of the network.
typedef struct tf_interface {
  uint32_t name;    // string
  uint32_t layout;  // string
  uint32_t dtype;   // tvmflow_dtype, of the host's data
  uint32_t dimensions;
  int64_t shape[8];
  uint64_t bytes;  // of the host's data
  uint32_t allocation;
  // 1: float32 data, which is converted because the device stores it in 16 bits.
  uint32_t half;
  // The parts of an image in the order of the host's data; none for a buffer.
  uint32_t first_region;
  uint32_t regions;
} tf_interface;

typedef struct tf_region {
  uint64_t element;    // the first one in the host's data
  uint32_t origin[3];  // column, row, layer
  uint32_t size[3];    // rows are contiguous in the host's data
} tf_region;

// Element i is low + (high - low) * u(i), with u from SplitMix64
// (tvmflow/compiler/standalone/self_test.py); integers are rounded down.
typedef struct tf_test_input {
  uint64_t seed;
  double low;
  double high;
} tf_test_input;

// Every `stride`-th element of an output is compared: |got - value| <= atol + rtol * |value|.
// A value that is NaN stands for an undefined element: lanes after the last channel.
typedef struct tf_test_output {
  uint32_t output;
  uint32_t first_value;  // in TF_TEST_VALUES
  uint32_t count;
  uint32_t reserved;
  uint64_t stride;
  double rtol;
  double atol;
} tf_test_output;

// A tensor between functions, complete after a launch: every `stride`-th element of its memory, in
// the order of a buffer's elements or an image's texels, is compared like an output's.
typedef struct tf_test_tensor {
  uint32_t launch;
  uint32_t allocation;
  uint32_t dtype;        // tvmflow_dtype of the elements
  uint32_t size[2];      // columns and rows of an image; the allocation may have more
  uint32_t first_value;  // in TF_TENSOR_VALUES
  uint32_t count;
  uint32_t stride;
  uint32_t nodes;  // string: the ONNX nodes that the function computes
  float rtol;
  float atol;
} tf_test_tensor;

// Kernels that are as simple as possible, for drivers that compute others wrongly, or kernels that
// may be faster on some devices.
typedef enum tf_alternative_kind { TF_PLAIN = 0, TF_CHOICE = 1 } tf_alternative_kind;

// Launches after those of all shapes that may take the place of `count` launches, and write the
// same tensors.  Of those with the same first launch, the widest come first, and plain kernels
// last.
typedef struct tf_alternative {
  uint32_t first;
  uint32_t count;
  uint32_t other_first;
  uint32_t other_count;
  uint32_t kind;   // tf_alternative_kind
  uint32_t calls;  // that it replaces
} tf_alternative;

// A shape of the inputs, of which there is at least one.  The inputs' records are those of the
// first shape, then those of the second, and so on; so are outputs and test inputs.  All share the
// allocations.
typedef struct tf_shape {
  uint32_t first_launch;  // after the last one of the previous shape
  uint32_t launches;
} tf_shape;

// How a picture fills the network's input: with a scale for each direction, cropped, or with a
// padded border.
typedef enum tf_fit { TF_STRETCH = 0, TF_CROP = 1, TF_LETTERBOX = 2 } tf_fit;
// The order of the axes of an input with one picture.
typedef enum tf_arrangement { TF_NCHW = 0, TF_NHWC = 1, TF_NCHW4C = 2 } tf_arrangement;

// An input that takes pictures, in all shapes: kernels convert, resize and normalise them.
typedef struct tf_picture {
  uint32_t input;
  uint32_t format;    // tvmflow_image_format
  uint32_t fit;       // tf_fit
  uint32_t rotation;  // degrees clockwise, on top of the picture's own
  uint32_t width;     // of all pictures, before they are rotated; 0: any
  uint32_t height;
  uint32_t program;       // of both kernels
  uint32_t kernel;        // string: the kernel that reads a buffer
  uint32_t image_kernel;  // string: the kernel that reads an image; "": there is none
  uint32_t arrangement;   // tf_arrangement
  uint32_t channels;      // of the network: 1 or 3
  uint32_t swapped;       // 1: blue before red
  uint32_t video;         // 1: luma from 16 to 235
  float padding;          // level around a picture that does not fill the input
  float scale[3];         // a number of the network is level * scale + shift, of levels up to 255
  float shift[3];
} tf_picture;

// An output of boxes in pixels of the input of a picture, given back in pixels of the picture.
typedef struct tf_boxes {
  uint32_t output;
  uint32_t picture;  // number of the picture
  uint32_t form;     // tf_box_form
  uint32_t unit;     // 1: 1 is the input's width or height
} tf_boxes;
typedef enum tf_box_form {
  TF_CORNERS = 0,          // x, y of two corners
  TF_CORNERS_OF_ROWS = 1,  // y, x of two corners
  TF_CORNER_AND_SIZE = 2,  // x, y, width, height
  TF_CENTER_AND_SIZE = 3,
} tf_box_form;

// A plan that has been checked.
typedef struct tf_plan {
  const tf_header* header;
#define TF_MEMBER(name, record, member) const record* member;
  TF_SECTIONS(TF_MEMBER)
#undef TF_MEMBER
} tf_plan;

static inline uint32_t tf_count(const tf_plan* plan, tf_section_name name) {
  return plan->header->section[name].count;
}

// Returns the number of one shape's records in a section that has as many for each shape: inputs,
// outputs, test inputs.
static inline uint32_t tf_count_each(const tf_plan* plan, tf_section_name name) {
  return tf_count(plan, name) / tf_count(plan, TF_SHAPES);
}

// Returns the number of launches of all shapes, before those of alternatives.
uint32_t tf_shape_launches(const tf_plan* plan);

// Opens a plan after checking everything that could be wrong in a damaged file; `data` must stay.
tvmflow_status tf_plan_open(tf_plan* plan, const void* data, size_t bytes, tf_message* message);

// Return the bytes of an element of a tvmflow_dtype, and of an image's texel; 0 for other codes.
uint32_t tf_dtype_bytes(uint32_t dtype);
uint32_t tf_texel_bytes(uint32_t channel_type);

// Return how a weight is derived; NULL: kernels read the stored array.
const tf_derived* tf_derivation(const tf_plan* plan, uint32_t weight);
const tf_transformed* tf_transformation(const tf_plan* plan, const tf_derived* derived);
// Returns how pictures become an input; NULL: it takes none.
const tf_picture* tf_picture_of(const tf_plan* plan, uint32_t input);
// Returns the bytes of a number in the file.
static inline uint32_t tf_stored_bytes(const tf_derived* derived) {
  return derived->form == TF_HALF ? 2 : derived->form == TF_SCALED ? 1 : derived->element_bytes;
}

// Most pixels of a side of pictures and inputs: offsets in them have 32 bits.
#define TF_LARGEST_PICTURE 32767
// Returns the width (axis 0) or height (axis 1) of an input that takes pictures.
static inline int64_t tf_picture_extent(const tf_picture* picture, const tf_interface* input,
                                        unsigned axis) {
  return input->shape[(picture->arrangement == TF_NHWC ? 2 : 3) - axis];
}

// Return the elements of an input's or output's host data, and its bytes on the device.
uint64_t tf_elements(const tf_interface* tensor);
uint64_t tf_device_bytes(const tf_interface* tensor);

// XXH64, of any number of whole stripes and then of the rest.
#define TF_STRIPE_BYTES 32u
typedef struct tf_checksum {
  uint64_t lanes[4];
  uint64_t bytes;
} tf_checksum;
tf_checksum tf_checksum_begin(void);
void tf_checksum_stripes(tf_checksum* sum, const uint8_t* data, size_t bytes);
uint64_t tf_checksum_end(const tf_checksum* sum, const uint8_t* rest, size_t bytes);
uint64_t tf_checksum_of(const uint8_t* data, size_t bytes);

// Unpack a DEFLATE stream to exactly `bytes` of text.  Return false for any other stream; whatever
// the stream holds, nothing is read or written outside the two arrays.
bool tf_inflate(const uint8_t* packed, size_t packed_bytes, char* text, size_t bytes);

// The largest factor by which a DEFLATE stream can grow: 258 bytes from two bits.
#define TF_INFLATE_RATIO 1032

#endif
