// DEFLATE (RFC 1951), for the kernels' text.
#include <string.h>

#include "plan.h"

enum { LONGEST_CODE = 15, LITERALS = 288, DISTANCES = 32, END_OF_BLOCK = 256 };
// A complete code has fewer inner nodes than symbols; one with a single symbol has its length.
enum { NODES = LITERALS + LONGEST_CODE };

typedef struct inflation {
  const uint8_t* packed;
  uint64_t packed_bits;
  uint64_t position;  // of the next bit
  uint8_t* text;
  size_t bytes;
  size_t used;
  bool damaged;
} inflation;

// A Huffman code as a tree: the child of each node at a 0 and at a 1.  Inner nodes are positive,
// leaves ~symbol, and zero, the root, stands where the code has no word.
typedef struct tree {
  int16_t child[NODES][2];
} tree;

// Mark the stream as damaged if the condition holds; return whether it is damaged.
static bool refuse(inflation* s, bool condition) { return s->damaged = s->damaged || condition; }

static uint32_t take_bits(inflation* s, unsigned count) {
  uint32_t value = 0;
  if (refuse(s, count > s->packed_bits - s->position)) return 0;
  for (unsigned i = 0; i < count; ++i, ++s->position)
    value |= (uint32_t)(s->packed[s->position / 8] >> s->position % 8 & 1) << i;
  return value;
}

static unsigned take_symbol(inflation* s, const tree* t) {
  int16_t node = 0;
  do node = t->child[node][take_bits(s, 1)];
  while (node > 0);
  return refuse(s, node == 0) ? 0 : (unsigned)~node;
}

// Make a code from the lengths of its words (0: the symbol has none).  Words of the same length
// follow each other in the order of their symbols, after all shorter words.  Return false if two
// words collide or the nodes run out.
static bool make_tree(tree* t, const uint8_t* lengths, unsigned symbols) {
  memset(t, 0, sizeof(*t));
  int16_t nodes = 1;
  uint32_t word = 0;
  for (unsigned length = 1; length <= LONGEST_CODE; ++length, word <<= 1) {
    for (unsigned symbol = 0; symbol < symbols; ++symbol) {
      if (lengths[symbol] != length) continue;
      int16_t* place = &t->child[0][word >> (length - 1) & 1];
      for (unsigned bit = length - 1; bit > 0; --bit) {
        if (*place < 0 || (*place == 0 && nodes == NODES)) return false;
        if (*place == 0) *place = nodes++;
        place = &t->child[*place][word >> (bit - 1) & 1];
      }
      if (*place != 0) return false;
      *place = (int16_t)~symbol;
      ++word;
    }
  }
  return true;
}

static void take_stored_block(inflation* s) {
  s->position = (s->position + 7) & ~7ull;
  const uint32_t length = take_bits(s, 16);
  const uint32_t complement = take_bits(s, 16);
  if (refuse(s, (length ^ complement) != 0xFFFF || length > (s->packed_bits - s->position) / 8 ||
                    length > s->bytes - s->used))
    return;
  memcpy(s->text + s->used, s->packed + s->position / 8, length);
  s->position += 8ull * length;
  s->used += length;
}

// Return the length or distance of a symbol, less the smallest one.  `group` symbols each have the
// same number of extra bits: none in the first two groups, then one more in each.
static size_t take_number(inflation* s, unsigned symbol, unsigned group) {
  if (symbol < 2 * group) return symbol;
  const unsigned bits = symbol / group - 1;
  return ((size_t)(group + symbol % group) << bits) + take_bits(s, bits);
}

static void take_coded_block(inflation* s, const tree* literals, const tree* distances) {
  while (!s->damaged) {
    const unsigned symbol = take_symbol(s, literals);
    if (s->damaged || symbol == END_OF_BLOCK) return;
    if (symbol < END_OF_BLOCK) {
      if (refuse(s, s->used == s->bytes)) return;
      s->text[s->used++] = (uint8_t)symbol;
      continue;
    }
    if (refuse(s, symbol > 285)) return;
    const size_t length = symbol == 285 ? 258 : 3 + take_number(s, symbol - 257, 4);
    const unsigned far = take_symbol(s, distances);
    if (refuse(s, far > 29)) return;
    const size_t distance = 1 + take_number(s, far, 2);
    if (refuse(s, distance > s->used || length > s->bytes - s->used)) return;
    // Byte by byte, because a copy may overlap its own output.
    for (size_t i = 0; i < length; ++i, ++s->used) s->text[s->used] = s->text[s->used - distance];
  }
}

static void take_fixed_block(inflation* s) {
  uint8_t lengths[LITERALS];
  tree literals, distances;
  memset(lengths, 8, LITERALS);
  memset(lengths + 144, 9, 112);
  memset(lengths + END_OF_BLOCK, 7, 24);
  make_tree(&literals, lengths, LITERALS);
  memset(lengths, 5, DISTANCES);
  make_tree(&distances, lengths, DISTANCES);
  take_coded_block(s, &literals, &distances);
}

static void take_dynamic_block(inflation* s) {
  static const uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const unsigned literal_count = 257 + take_bits(s, 5);
  const unsigned total = literal_count + 1 + take_bits(s, 5);
  const unsigned order_count = 4 + take_bits(s, 4);
  uint8_t lengths[LITERALS + DISTANCES] = {0};
  for (unsigned i = 0; i < order_count; ++i) lengths[order[i]] = (uint8_t)take_bits(s, 3);
  tree literals, distances;
  if (refuse(s, !make_tree(&literals, lengths, sizeof(order)))) return;
  for (unsigned i = 0; i < total;) {
    const unsigned symbol = take_symbol(s, &literals);
    if (refuse(s, symbol == 16 && i == 0)) return;
    const uint8_t length = symbol < 16 ? (uint8_t)symbol : symbol == 16 ? lengths[i - 1] : 0;
    const unsigned times = symbol < 16    ? 1
                           : symbol == 16 ? 3 + take_bits(s, 2)
                           : symbol == 17 ? 3 + take_bits(s, 3)
                                          : 11 + take_bits(s, 7);
    if (refuse(s, times > total - i)) return;
    memset(lengths + i, length, times);
    i += times;
  }
  if (refuse(s, !make_tree(&literals, lengths, literal_count) ||
                    !make_tree(&distances, lengths + literal_count, total - literal_count)))
    return;
  take_coded_block(s, &literals, &distances);
}

bool tf_inflate(const uint8_t* packed, size_t packed_bytes, char* text, size_t bytes) {
  static void (*const blocks[])(inflation*) = {take_stored_block, take_fixed_block,
                                               take_dynamic_block};
  inflation s = {
      .packed = packed, .packed_bits = 8ull * packed_bytes, .text = (uint8_t*)text, .bytes = bytes};
  for (bool last = false; !last && !s.damaged;) {
    last = take_bits(&s, 1);
    const uint32_t kind = take_bits(&s, 2);
    if (!refuse(&s, kind > 2)) blocks[kind](&s);
  }
  return !s.damaged && s.packed_bits - s.position < 8 && s.used == bytes;
}
