// DEFLATE (RFC 1951), for the plan's sources.
#include <string.h>

#include "plan.h"

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

// True where the stream is damaged, now or since before.
static bool refuse(stream* s, bool damaged) { return s->damaged = s->damaged || damaged; }

static uint32_t take_bits(stream* s, unsigned count) {
  while (s->bit_count < count) {
    if (refuse(s, s->in_used == s->in_bytes)) return 0;
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
  if (refuse(s, s->in_bytes - s->in_used < 4)) return;
  const uint8_t* head = s->in + s->in_used;
  const size_t length = (size_t)(head[0] | head[1] << 8);
  s->in_used += 4;
  const size_t complement = (size_t)(head[2] | head[3] << 8);
  if (refuse(s, (length ^ complement) != 0xFFFF || length > s->in_bytes - s->in_used ||
                    length > s->out_bytes - s->out_used))
    return;
  memcpy(s->out + s->out_used, s->in + s->in_used, length);
  s->in_used += length;
  s->out_used += length;
}

static void copy(stream* s, size_t length, size_t distance) {
  if (refuse(s, distance > s->out_used || length > s->out_bytes - s->out_used)) return;
  // Byte by byte: what is copied may be what was just written.
  for (size_t i = 0; i < length; ++i, ++s->out_used)
    s->out[s->out_used] = s->out[s->out_used - distance];
}

static void coded_block(stream* s, const code* literals, const code* distances) {
  while (!s->damaged) {
    const unsigned symbol = take_symbol(s, literals);
    if (s->damaged || symbol == END_OF_BLOCK) return;
    if (symbol < END_OF_BLOCK) {
      if (refuse(s, s->out_used == s->out_bytes)) return;
      s->out[s->out_used++] = (uint8_t)symbol;
      continue;
    }
    const unsigned row = symbol - 257;
    if (refuse(s, row > 28)) return;
    // Groups of codes have the same number of more bits; the last length is by itself.
    const unsigned bits = row < 8 || row == 28 ? 0 : row / 4 - 1;
    const size_t base = row < 8 ? 3 + row : row == 28 ? 258 : 3 + ((4 + row % 4) << bits);
    const size_t length = base + take_bits(s, bits);
    const unsigned far = take_symbol(s, distances);
    if (refuse(s, far > 29)) return;
    const unsigned far_bits = far < 4 ? 0 : far / 2 - 1;
    const size_t far_base = far < 4 ? 1 + far : 1 + ((2 + far % 2) << far_bits);
    copy(s, length, far_base + take_bits(s, far_bits));
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
  if (refuse(s, literal_count > 286 || !make_code(&literals, lengths, 19))) return;
  for (unsigned i = 0; i < total && !s->damaged;) {
    const unsigned symbol = take_symbol(s, &literals);
    if (symbol < 16) {
      lengths[i++] = (uint8_t)symbol;
      continue;
    }
    if (refuse(s, symbol == 16 && i == 0)) return;
    const uint8_t repeated = symbol == 16 ? lengths[i - 1] : 0;
    unsigned times = symbol == 16   ? 3 + take_bits(s, 2)
                     : symbol == 17 ? 3 + take_bits(s, 3)
                                    : 11 + take_bits(s, 7);
    if (refuse(s, times > total - i)) return;
    while (times--) lengths[i++] = repeated;
  }
  if (refuse(s, lengths[END_OF_BLOCK] == 0 || !make_code(&literals, lengths, literal_count) ||
                    !make_code(&distances, lengths + literal_count, distance_count)))
    return;
  coded_block(s, &literals, &distances);
}

bool tf_inflate(const uint8_t* in, size_t in_bytes, uint8_t* out, size_t out_bytes) {
  static void (*const blocks[])(stream*) = {stored_block, fixed_block, dynamic_block};
  stream s = {.in = in, .in_bytes = in_bytes, .out = out, .out_bytes = out_bytes};
  for (bool last = false; !last && !s.damaged;) {
    last = take_bits(&s, 1);
    const uint32_t kind = take_bits(&s, 2);
    if (!refuse(&s, kind > 2)) blocks[kind](&s);
  }
  return !s.damaged && s.in_used == s.in_bytes && s.out_used == s.out_bytes;
}
