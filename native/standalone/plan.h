// The execution plan inside a library, and the weights beside it: byte layout and validation.
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
#define TF_FORMAT_VERSION 1u
#define TF_WEIGHTS_VERSION 1u
#define TF_NONE 0xFFFFFFFFu

// Name, type of a record, and what `tf_plan` calls them.
#define TF_SECTIONS(ROW)                                                                           \
  ROW(TF_STRINGS, char, strings)                                                                   \
  ROW(TF_METADATA, char, metadata)         /* JSON, ends with a zero byte */                       \
  ROW(TF_EXTENSIONS, uint32_t, extensions) /* strings: OpenCL's, which the kernels need */         \
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
  ROW(TF_MADE, tf_made, made)                                                                      \
  ROW(TF_PICTURES, tf_picture, pictures)                                                           \
  ROW(TF_BOXES, tf_boxes, boxes)                                                                   \
  ROW(TF_TRANSFORMED, tf_transformed, transformed)                                                 \
  ROW(TF_DIGESTS, tf_digest, digests) /* of each program's text */

typedef enum tf_section_name {
#define TF_NAME(name, record, member) name,
  TF_SECTIONS(TF_NAME)
#undef TF_NAME
      TF_SECTION_COUNT
} tf_section_name;

typedef struct tf_section {
  uint32_t offset;  // from the plan's begin, a multiple of 8
  uint32_t count;   // of records, or of bytes
} tf_section;

typedef struct tf_header {
  char magic[8];
  uint32_t version;
  uint32_t sections;       // TF_SECTION_COUNT
  uint64_t bytes;          // of the whole plan
  uint64_t source_bytes;   // of TF_SOURCES when unpacked
  uint64_t weight_bytes;   // of the weights, with their header
  uint8_t weights_id[32];  // repeated in the weights' header: which weights belong to it
  uint8_t checksum[32];    // SHA-256 of what follows the header
  tf_section section[TF_SECTION_COUNT];
} tf_header;

// Before the weights, in the library or in a file.  Each weight begins at a multiple of 128.
typedef struct tf_weights_header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t bytes;     // with this header
  uint8_t id[32];     // SHA-256 of what follows the header
  uint64_t checksum;  // XXH64 of the same: quick enough for each time that it is opened
  uint8_t padding[64];
} tf_weights_header;

typedef enum tf_kind { TF_BUFFER = 0, TF_IMAGE = 1 } tf_kind;

// A memory object; tensors whose lives do not overlap share one.
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
  uint32_t allocation;  // nobody else's
  uint64_t offset;      // from the weights' begin
  uint64_t bytes;       // as in the allocation
} tf_weight;

// How a weight's numbers are in the file: of halves and of signed bytes floats are made, or halves.
typedef enum tf_form { TF_AS_IT_IS = 0, TF_HALVES = 1, TF_STEPS = 2 } tf_form;

// A weight that is made when the instance is: the file has the same numbers in other blocks, as
// another plan's weight, or in fewer bits.  `offset` of the weight is where they begin, `bytes` are
// those that are made.
// Number k of an axis stands at block k / lanes, lane k % lanes: [blocks][inner][lanes].  Of
// TF_STEPS it is a multiple of a float: of its block's, its lane's, or its own one.
typedef struct tf_made {
  uint32_t weight;
  uint32_t element_bytes;  // that are made
  uint32_t from_lanes;     // in the file
  uint32_t to_lanes;
  uint64_t inner;
  uint64_t from_bytes;  // in the file
  uint32_t form;        // tf_form
  uint32_t axes;        // 1: steps of the blocks, 2: of the lanes, 3: of each number k
  uint64_t steps;       // where they are, from the weights' begin
} tf_made;

// A weight of Winograd's algorithm that is made of another one's windows of 3 x 3, which the file
// has as they are: [blocks][inner][3][3][lanes] becomes [side][side][blocks][inner][lanes], of
// float.  Plane p, q has the sum of rows[p][y] * rows[q][x] * window[y][x] over y and x.
enum { TF_MOST_ROWS = 6 };
typedef struct tf_transformed {
  uint32_t made;
  uint32_t side;  // rows
  double rows[TF_MOST_ROWS][3];
} tf_transformed;

typedef struct tf_program {
  uint32_t offset;  // into the unpacked sources
  uint32_t bytes;
  uint32_t options;  // string: for the driver's compiler
  uint32_t reserved;
} tf_program;

// SHA-256: caches find a program by it, without unpacking its text.
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
  // Data of float32 that the device keeps in 16 bits: converted on the way.
  uint32_t half;
  // How an image's parts follow each other in the host's data; none for a buffer.
  uint32_t first_region;
  uint32_t regions;
} tf_interface;

typedef struct tf_region {
  uint64_t element;    // of the host's data where it begins
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
// A value that is NaN stands for an element that may be anything: lanes beyond the last channel.
typedef struct tf_test_output {
  uint32_t output;
  uint32_t first_value;  // in TF_TEST_VALUES
  uint32_t count;
  uint32_t reserved;
  uint64_t stride;
  double rtol;
  double atol;
} tf_test_output;

// A shape of the inputs, of which there is at least one.  The inputs' records are those of the
// first shape, then those of the second, and so on; so are outputs and test inputs.  All share the
// allocations.
typedef struct tf_shape {
  uint32_t first_launch;  // behind the last one of the shape before
  uint32_t launches;
} tf_shape;

// How a picture fills the network's input: by another scale in each direction, by one that leaves
// parts of it out, or by one that leaves parts of the input empty.
typedef enum tf_fit { TF_STRETCH = 0, TF_CROP = 1, TF_LETTERBOX = 2 } tf_fit;
// Where the channels of an input with one picture are.
typedef enum tf_arrangement { TF_NCHW = 0, TF_NHWC = 1, TF_NCHW4C = 2 } tf_arrangement;

// An input that takes pictures, in all shapes: kernels convert, resize and normalise them.
typedef struct tf_picture {
  uint32_t input;
  uint32_t format;    // tvmflow_image_format
  uint32_t fit;       // tf_fit
  uint32_t rotation;  // degrees clockwise, on top of the picture's own
  uint32_t width;     // of all pictures, as they lie in memory; 0: any
  uint32_t height;
  uint32_t program;       // of both kernels
  uint32_t kernel;        // string: of the one that reads a buffer
  uint32_t image_kernel;  // string: of the one that reads an image; "": there is none
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
  uint32_t picture;  // whose
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

// Records of one shape in a section that has as many of each: inputs, outputs, test inputs.
static inline uint32_t tf_count_each(const tf_plan* plan, tf_section_name name) {
  return tf_count(plan, name) / tf_count(plan, TF_SHAPES);
}

// Checks everything that a damaged file could have wrong; `data` must stay.
tvmflow_status tf_plan_open(tf_plan* plan, const void* data, size_t bytes, tf_message* message);

// Bytes of an element of a tvmflow_dtype, and of an image's texel; 0 for what there is not.
uint32_t tf_dtype_bytes(uint32_t dtype);
uint32_t tf_texel_bytes(uint32_t channel_type);

// How a weight is made; NULL where it is in the file as it is.
const tf_made* tf_making(const tf_plan* plan, uint32_t weight);
const tf_transformed* tf_transforming(const tf_plan* plan, const tf_made* made);
// How pictures become an input; NULL where it takes none.
const tf_picture* tf_picture_of(const tf_plan* plan, uint32_t input);
// Bytes of a number in the file.
static inline uint32_t tf_stored_bytes(const tf_made* made) {
  return made->form == TF_HALVES ? 2 : made->form == TF_STEPS ? 1 : made->element_bytes;
}

// Pixels of a side of pictures and inputs, at most: offsets in them have 32 bits.
#define TF_LARGEST_PICTURE 32767
// Width (0) or height (1) of an input that takes pictures.
static inline int64_t tf_picture_extent(const tf_picture* picture, const tf_interface* input,
                                        unsigned axis) {
  return input->shape[(picture->arrangement == TF_NHWC ? 2 : 3) - axis];
}

// Elements of an input's or output's host data, and bytes that the device keeps for it.
uint64_t tf_elements(const tf_interface* tensor);
uint64_t tf_device_bytes(const tf_interface* tensor);

// XXH64: of any number of whole stripes, and then of the rest.
#define TF_STRIPE_BYTES 32u
typedef struct tf_checksum {
  uint64_t lanes[4];
  uint64_t bytes;
} tf_checksum;
tf_checksum tf_checksum_begin(void);
void tf_checksum_stripes(tf_checksum* sum, const uint8_t* data, size_t bytes);
uint64_t tf_checksum_end(const tf_checksum* sum, const uint8_t* rest, size_t bytes);

// Unpack a DEFLATE stream to exactly `bytes` of text.  Return false for any other stream; whatever
// the stream holds, nothing is read or written outside the two arrays.
bool tf_inflate(const uint8_t* packed, size_t packed_bytes, char* text, size_t bytes);

// The largest factor by which a DEFLATE stream can grow: 258 bytes from two bits.
#define TF_INFLATE_RATIO 1032

#endif
