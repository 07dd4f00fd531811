#include "inflate.h"

#include <string.h>

enum { MAX_BITS = 15, LITERALS = 288, DISTANCES = 32, END_OF_BLOCK = 256 };

typedef struct stream {
  const uint8_t* in;
  size_t in_bytes;
  size_t in_used;
  uint8_t* out;
  size_t out_bytes;
  size_t out_used;
  uint32_t bits;
  unsigned bit_count;
  bool damaged;
} stream;

// Canonical Huffman code: how many codes there are of each length, and the symbols in order.
typedef struct code {
  uint16_t count[MAX_BITS + 1];
  uint16_t symbol[LITERALS];
} code;

static uint32_t take_bits(stream* s, unsigned count) {
  while (s->bit_count < count) {
    if (s->in_used == s->in_bytes) {
      s->damaged = true;
      return 0;
    }
    s->bits |= (uint32_t)s->in[s->in_used++] << s->bit_count;
    s->bit_count += 8;
  }
  const uint32_t taken = s->bits & ((1u << count) - 1);
  s->bits >>= count;
  s->bit_count -= count;
  return taken;
}

// False for lengths that no code can have.  One code alone may leave others unused.
static bool make_code(code* c, const uint8_t* lengths, unsigned symbols) {
  memset(c->count, 0, sizeof(c->count));
  for (unsigned i = 0; i < symbols; ++i) ++c->count[lengths[i]];
  c->count[0] = 0;
  int left = 1;
  unsigned used = 0;
  for (unsigned length = 1; length <= MAX_BITS; ++length) {
    left = 2 * left - c->count[length];
    if (left < 0) return false;
    used += c->count[length];
  }
  if (left > 0 && used > 1) return false;
  uint16_t first[MAX_BITS + 2] = {0};
  for (unsigned length = 1; length <= MAX_BITS; ++length)
    first[length + 1] = (uint16_t)(first[length] + c->count[length]);
  for (unsigned i = 0; i < symbols; ++i)
    if (lengths[i]) c->symbol[first[lengths[i]]++] = (uint16_t)i;
  return true;
}

static unsigned take_symbol(stream* s, const code* c) {
  uint32_t value = 0;
  uint32_t first = 0;
  unsigned index = 0;
  for (unsigned length = 1; length <= MAX_BITS && !s->damaged; ++length) {
    value |= take_bits(s, 1);
    const uint32_t count = c->count[length];
    if (value < first + count) return c->symbol[index + (value - first)];
    index += count;
    first = (first + count) << 1;
    value <<= 1;
  }
  s->damaged = true;
  return 0;
}

static void stored_block(stream* s) {
  s->bits = s->bit_count = 0;  // up to the next byte
  if (s->in_bytes - s->in_used < 4) {
    s->damaged = true;
    return;
  }
  const uint8_t* head = s->in + s->in_used;
  const size_t length = (size_t)(head[0] | head[1] << 8);
  s->in_used += 4;
  const size_t complement = (size_t)(head[2] | head[3] << 8);
  if ((length ^ complement) != 0xFFFF || length > s->in_bytes - s->in_used ||
      length > s->out_bytes - s->out_used) {
    s->damaged = true;
    return;
  }
  memcpy(s->out + s->out_used, s->in + s->in_used, length);
  s->in_used += length;
  s->out_used += length;
}

static void copy(stream* s, size_t length, size_t distance) {
  if (s->damaged || distance > s->out_used || length > s->out_bytes - s->out_used) {
    s->damaged = true;
    return;
  }
  // Byte by byte: what is copied may be what was just written.
  for (size_t i = 0; i < length; ++i, ++s->out_used)
    s->out[s->out_used] = s->out[s->out_used - distance];
}

static void coded_block(stream* s, const code* literals, const code* distances) {
  static const uint16_t length_base[29] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                           15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                           67, 83, 99, 115, 131, 163, 195, 227, 258};
  static const uint8_t length_bits[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                          2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  static const uint16_t distance_base[30] = {
      1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
      193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  while (!s->damaged) {
    const unsigned symbol = take_symbol(s, literals);
    if (s->damaged || symbol == END_OF_BLOCK) return;
    if (symbol < END_OF_BLOCK) {
      if (s->out_used == s->out_bytes) {
        s->damaged = true;
        return;
      }
      s->out[s->out_used++] = (uint8_t)symbol;
      continue;
    }
    const unsigned row = symbol - 257;
    if (row >= 29) {
      s->damaged = true;
      return;
    }
    const size_t length = length_base[row] + take_bits(s, length_bits[row]);
    const unsigned far = take_symbol(s, distances);
    if (s->damaged || far >= 30) {
      s->damaged = true;
      return;
    }
    copy(s, length, distance_base[far] + take_bits(s, far < 4 ? 0 : far / 2 - 1));
  }
}

static void fixed_block(stream* s) {
  uint8_t lengths[LITERALS];
  for (unsigned i = 0; i < LITERALS; ++i)
    lengths[i] = (uint8_t)(i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8);
  code literals;
  code distances;
  make_code(&literals, lengths, LITERALS);
  memset(lengths, 5, DISTANCES);
  make_code(&distances, lengths, DISTANCES);
  coded_block(s, &literals, &distances);
}

static void dynamic_block(stream* s) {
  static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                    11, 4,  12, 3, 13, 2, 14, 1, 15};
  const unsigned literal_count = take_bits(s, 5) + 257;
  const unsigned distance_count = take_bits(s, 5) + 1;
  const unsigned order_count = take_bits(s, 4) + 4;
  const unsigned total = literal_count + distance_count;
  uint8_t lengths[LITERALS + DISTANCES] = {0};
  for (unsigned i = 0; i < order_count; ++i) lengths[order[i]] = (uint8_t)take_bits(s, 3);
  code literals;
  code distances;
  if (s->damaged || literal_count > 286 || !make_code(&literals, lengths, 19)) {
    s->damaged = true;
    return;
  }
  for (unsigned i = 0; i < total && !s->damaged;) {
    const unsigned symbol = take_symbol(s, &literals);
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    if (symbol == 16 && i == 0) s->damaged = true;
    const uint8_t repeated = symbol == 16 && i > 0 ? lengths[i - 1] : 0;
    unsigned times = symbol == 16   ? 3 + take_bits(s, 2)
                     : symbol == 17 ? 3 + take_bits(s, 3)
                                    : 11 + take_bits(s, 7);
    if (times > total - i) {
      s->damaged = true;
      return;
    }
    while (times--) lengths[i++] = repeated;
  }
  if (s->damaged || lengths[END_OF_BLOCK] == 0 || !make_code(&literals, lengths, literal_count) ||
      !make_code(&distances, lengths + literal_count, distance_count)) {
    s->damaged = true;
    return;
  }
  coded_block(s, &literals, &distances);
}

bool tf_inflate(const uint8_t* in, size_t in_bytes, uint8_t* out, size_t out_bytes) {
  stream s = {.in = in, .in_bytes = in_bytes, .out = out, .out_bytes = out_bytes};
  for (bool last = false; !last && !s.damaged;) {
    last = take_bits(&s, 1);
    switch (take_bits(&s, 2)) {
      case 0:
        stored_block(&s);
        break;
      case 1:
        fixed_block(&s);
        break;
      case 2:
        dynamic_block(&s);
        break;
      default:
        s.damaged = true;
    }
  }
  return !s.damaged && s.in_used == s.in_bytes && s.out_used == s.out_bytes;
}
