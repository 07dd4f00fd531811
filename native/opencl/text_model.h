// A model of program text that says how likely the next bit is, for what packs the text (C++, in
// native/tvm_plugin) and what unpacks it (C, in native/standalone): both must do the same
// arithmetic, in integers.
//
// Each of a byte's bits is foreseen from several contexts: the bytes before it, the statement that
// it stands in with numbers left out, and what followed the last time that the same 24 or 8 bytes
// were there.  A context keeps a probability for each bit; a weighted sum of their logits is the
// probability of all, and the weights learn which of them to believe (Mahoney, "Adaptive Weighing
// of Context Models for Lossless Data Compression").  Kernels are so much alike that a byte of
// their text takes a quarter of a bit.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
  kTextContexts = 11,
  kTextMatches = 2,
  kTextInputs = kTextContexts + kTextMatches,
  kTextSlotBits = 20,
  kTextPlaceBits = 16,
  kTextLongestMatch = 400,
  kTextSelected = 16  // sets of weights by the matches
};

// What each text is taken to begin with: the words that most kernels have, which need not be in
// every library once more.
static const char kTextPreset[] =
    "#ifndef TVMFLOW_NAN_MAX_LIMIT_FLOAT4\n"
    "#define TVMFLOW_NAN_MAX_LIMIT_FLOAT4\n"
    "static inline float4 tvmflow_nan_max_limit_float4(float4 a, float4 b) { return select(b, a, a "
    "> b); }\n"
    "#endif\n"
    "#ifndef TVMFLOW_AT_FLOAT4\n"
    "#define TVMFLOW_AT_FLOAT4\n"
    "#define tvmflow_at_float4(p, i) (((__global float4*)(p))[i])\n"
    "#endif\n"
    "#ifndef TVMFLOW_PUT_FLOAT4\n"
    "#define TVMFLOW_PUT_FLOAT4\n"
    "#define tvmflow_put_float4(p, i, v) (((__global float4*)(p))[i] = (v))\n"
    "#endif\n"
    "#define READ_IMAGEF(i, s, c) read_imagef(i, c)\n"
    "__attribute__((reqd_work_group_size(1, 8, 64)))\n"
    "__kernel void fused_conv2d_add_relu_kernel(__write_only image2d_array_t p0, __read_only "
    "image2d_array_t p1, __global float* restrict p2) {\n"
    "const sampler_t image_sampler = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | "
    "CLK_FILTER_NEAREST;\n"
    "__local float a1[64];\n"
    "float4 a0[2];\n"
    "int group_z = (convert_int(get_group_id(2)));\n"
    "int group_x = (convert_int(get_group_id(0)));\n"
    "int item_y = (convert_int(get_local_id(1)));\n"
    "a0[0] = ((float4)(0.000000e+00f));\n"
    "a0[1] = ((float4)(0.000000e+00f));\n"
    "for (int ax5_0 = 0; ax5_0 < 16; ++ax5_0) {\n"
    "barrier(CLK_LOCAL_MEM_FENCE);\n"
    "float4 condval;\n"
    "if (((1 <= group_x) && (item_y < 8))) {\n"
    "int c0 = ((group_x * 4) + ((item_y >> 1) & 3));\n"
    "int c1 = (c0 + 1);\n"
    "condval = tvmflow_at_float4(p1, c0);\n"
    "} else {\n"
    "condval = ((float4)(0.000000e+00f));\n"
    "}\n"
    "float4 v0 = as_float4(READ_IMAGEF(p1, image_sampler, ((int4)(c1, group_z, 0, 0))));\n"
    "vstore4(v0, 0, a1 + 0);\n"
    "a0[0] += (a1[0] * a2[0]);\n"
    "a0[1] += (a1[4] * a2[0]);\n"
    "}\n"
    "write_imagef(p0, (int4)(c0, group_y, 0, 0), as_float4(texel_0));\n"
    "tvmflow_put_float4(p2, c0, tvmflow_nan_max_limit_float4((a0[0] + v0), "
    "((float4)(0.000000e+00f))));\n"
    "}\n";

// From the highest bit: a probability (18 bits) less 1 / 2, so that zeros stand for what nobody has
// seen; of which context it is, as far as 8 bits tell; how often it was seen (6 bits): the more
// often, the less it changes.
typedef uint32_t TextSlot;
enum { kTextSeen = 63, kTextOwner = 0xFF << 6 };

// Where the same bytes were before, and how far both went on alike.
typedef struct TextMatch {
  size_t at;  // 0: nowhere
  unsigned length;
  unsigned missed;  // bytes that were different, since 16 alike
  uint32_t places[1 << kTextPlaceBits];
  TextSlot slots[64];
} TextMatch;

typedef struct TextModel {
  uint8_t* text;  // the preset, and then what is known of the text: `used` bytes
  size_t used;
  unsigned partial;  // bits of the next byte below a leading 1
  // Of the statement: hashes of the word that has begun, of it all and of the one above, both with
  // numbers left out.
  uint32_t word, shape, above;
  uint32_t contexts[kTextContexts];
  uint32_t lines[kTextContexts];  // hashes of a context and of the upper half of the byte
  int expected[kTextMatches];     // the next byte by each match; -1: none
  // Of the bit that is foreseen.
  TextSlot* found[kTextInputs];
  int logits[2 * kTextInputs];
  int* weights[2];
  int sums[3];  // logits: by each set of weights, and of both
  int32_t steps[kTextSeen + 1];
  uint16_t* corrected;  // two that this logit lies between
  uint16_t usual[2];    // what they are less of
  int16_t logit_of[4096];
  uint16_t chance_of[4096];
  int by_match[kTextSelected][2 * kTextInputs];
  int by_byte[256][2 * kTextInputs];
  uint16_t corrections[1 << 16][33];  // less the probability of their logit, modulo 65536
  TextMatch matches[kTextMatches];
  TextSlot slots[1 << kTextSlotBits];
} TextModel;

static inline int TextBetween(int least, int value, int most) {
  return value < least ? least : value > most ? most : value;
}

static inline uint32_t TextHash(uint32_t a, uint32_t b) {
  a = (a ^ b) * 0x9E3779B1u;
  return a ^ a >> 15;
}

static inline uint32_t TextByte(const TextModel* m, size_t back) {
  return back <= m->used ? m->text[m->used - back] : 0;
}

static inline bool TextIsDigit(uint32_t c) { return c >= '0' && c <= '9'; }

static inline bool TextIsWord(uint32_t c) {
  return TextIsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Probabilities, of 65536, of logits from -8 to 8 in steps of a half.
static const uint16_t kTextChances[33] = {
    22,    36,    60,    98,    162,   267,   439,   720,   1179,  1921,  3108,
    4971,  7812,  11955, 17625, 24743, 32768, 40793, 47911, 53581, 57724, 60565,
    62428, 63615, 64357, 64816, 65097, 65269, 65374, 65438, 65476, 65500, 65514};

// Of a logit in 256ths.
static inline int TextChance(int logit) {
  const int place = logit + 2048;
  const int rest = place & 127;
  return (kTextChances[place >> 7] * (128 - rest) + kTextChances[(place >> 7) + 1] * rest) >> 7;
}

enum { kTextPresetBytes = sizeof(kTextPreset) - 1 };

// The model of a text of so many bytes, of which nothing is known; freed with `free`.  NULL: no
// memory.
static inline TextModel* TextBegin(size_t bytes) {
  TextModel* const m = (TextModel*)calloc(1, sizeof(TextModel) + kTextPresetBytes + bytes);
  if (!m) return NULL;  // NOLINT(modernize-use-nullptr): C, too
  m->text = (uint8_t*)(m + 1);
  m->partial = 1;
  for (int i = 0; i <= kTextSeen; ++i) m->steps[i] = (1 << 17) / (2 * i + 3);
  int filled = 0;
  for (int logit = -2047; logit < 2048; ++logit) {
    const int chance = TextChance(logit);
    m->chance_of[logit + 2048] = (uint16_t)chance;
    for (; filled <= chance >> 4; ++filled) m->logit_of[filled] = (int16_t)logit;
  }
  for (; filled < 4096; ++filled) m->logit_of[filled] = 2047;
  m->chance_of[0] = m->chance_of[1];
  // The logits begin with a quarter each.
  for (int i = 0; i < kTextSelected + 256; ++i) {
    int* const set = i < kTextSelected ? m->by_match[i] : m->by_byte[i - kTextSelected];
    for (int k = 0; k < kTextInputs; ++k) set[k] = 1 << 14;
  }
  return m;
}

// The contexts of the next byte.
static inline void TextNewByte(TextModel* m) {
  uint32_t last[7] = {0};
  for (size_t i = 1; i < 7; ++i) last[i] = TextByte(m, i);
  const uint32_t two = last[1] | last[2] << 8;
  const uint32_t four = two | last[3] << 16 | last[4] << 24;
  for (int i = 0; i < kTextMatches; ++i)
    m->expected[i] = m->matches[i].at ? m->text[m->matches[i].at] : -1;
  const uint32_t second = m->expected[1] < 0 ? 0 : (uint32_t)m->expected[1];
  const uint32_t first = m->expected[0] < 0 ? second : (uint32_t)m->expected[0];
  const uint32_t sure = m->matches[0].length < 15 ? m->matches[0].length : 15;
  const uint32_t contexts[kTextContexts] = {
      0,
      last[1],
      two,
      two | last[3] << 16,
      four,
      TextHash(four, last[5] | last[6] << 8),
      first | two << 8,
      TextHash(m->shape, m->word),
      first | last[1] << 8 | sure << 16,
      first | second << 8 | last[1] << 16,
      TextHash(m->above, m->shape) + m->word + first * 77777777u,
  };
  for (uint32_t i = 0; i < kTextContexts; ++i) m->contexts[i] = TextHash(contexts[i] + i, i + 1);
}

// Of 4096.
static inline int TextChanceOf(TextSlot slot) { return (int)(slot >> 20 ^ 2048); }

// The probability, of 65536, that the next bit is 1; at least 1, at most 65535.
static inline uint32_t TextPredict(TextModel* m) {
  if (m->partial == 1) TextNewByte(m);
  unsigned bits = 0;  // that are known of the byte
  while (m->partial >> (bits + 1)) ++bits;
  // Slots for the bits of half a byte are side by side, which memory brings at once.
  if (bits % 4 == 0)
    for (int i = 0; i < kTextContexts; ++i)
      m->lines[i] = TextHash(m->contexts[i], m->partial * 0x85EBCA6Bu);
  const unsigned node = 1u << bits % 4 | (m->partial & ((1u << bits % 4) - 1));
  for (int i = 0; i < kTextContexts; ++i) {
    const uint32_t line = m->lines[i] >> (32 - kTextSlotBits);
    TextSlot* const slot = m->found[i] = &m->slots[line ^ node];
    const uint32_t owner = m->lines[i] << 6 & kTextOwner;
    if ((*slot & kTextOwner) != owner) *slot = owner;
    const int seen = (int)(*slot & kTextSeen);
    const int chance = TextChanceOf(*slot);
    m->logits[i] = seen ? m->logit_of[chance] : 0;
    m->logits[kTextInputs + i] = (chance - 2048) * (seen < 8 ? seen : 8) / 16;
  }
  int selected = 0;
  int agreed = -1;
  for (int i = 0; i < kTextMatches; ++i) {
    TextMatch* const match = &m->matches[i];
    const int k = kTextContexts + i;
    m->found[k] = NULL;  // NOLINT(modernize-use-nullptr)
    m->logits[k] = m->logits[kTextInputs + k] = 0;
    if (m->expected[i] < 0 || ((unsigned)m->expected[i] | 256) >> (8 - bits) != m->partial)
      continue;
    const int bit = m->expected[i] >> (7 - bits) & 1;
    const unsigned length = match->length;
    const unsigned row = length > 15 ? 16 + length / 32
                         : length    ? length
                                     : 32 + (match->missed < 7 ? match->missed : 7);
    m->found[k] = &match->slots[row];
    const int chance = TextChanceOf(*m->found[k]);
    m->logits[k] = bit ? m->logit_of[chance] : -m->logit_of[chance];
    m->logits[kTextInputs + k] = (bit ? chance - 2048 : 2048 - chance) / 2;
    const int state = length == 0 ? 1 : length < 16 ? 2 : length < 32 ? 3 : 4;
    if (i == 0) {
      selected = state;
      agreed = bit;
    } else {
      selected += 5 * (agreed < 0 || agreed == bit ? 1 : 2);
    }
  }
  m->weights[0] = m->by_match[selected];
  m->weights[1] = m->by_byte[m->partial];
  for (int i = 0; i < 2; ++i) {
    int64_t sum = 0;
    for (int k = 0; k < 2 * kTextInputs; ++k) sum += (int64_t)m->weights[i][k] * m->logits[k];
    m->sums[i] = (int)(sum < -(2047 << 16) ? -2047 : sum > 2047 << 16 ? 2047 : sum >> 16);
  }
  m->sums[2] = (m->sums[0] + m->sums[1]) / 2;
  // What was right and wrong at this logit before, with the byte that is expected.
  const int next = m->expected[0] >= 0 ? m->expected[0] : m->expected[1] >= 0 ? m->expected[1] : 0;
  const int place = m->sums[2] + 2048;
  const int rest = place & 127;
  m->corrected = &m->corrections[m->partial | (unsigned)next << 8][place >> 7];
  int chances[2];
  for (int i = 0; i < 2; ++i) {
    m->usual[i] = kTextChances[(place >> 7) + i];
    chances[i] = (uint16_t)(m->corrected[i] + m->usual[i]);
  }
  const int corrected = (chances[0] * (128 - rest) + chances[1] * rest) >> 7;
  return (uint32_t)TextBetween(1, (m->chance_of[place] + corrected) / 2, 65535);
}

static inline void TextLearn(const TextModel* m, TextSlot* slot, bool bit) {
  const int32_t half = 1 << 17;
  const int32_t chance = (int32_t)(*slot >> 14) ^ half;
  const uint32_t seen = *slot & kTextSeen;
  const int64_t wrong = (bit ? 2 * half - 1 : 0) - chance;
  const int32_t changed = chance + (int32_t)(wrong * m->steps[seen] >> 16);
  *slot = (uint32_t)(changed ^ half) << 14 | (*slot & kTextOwner) | (seen + (seen < kTextSeen));
}

// A byte is whole.
static inline void TextEndByte(TextModel* m) {
  static const unsigned lengths[kTextMatches] = {24, 8};
  const uint32_t before = TextByte(m, 1);
  const uint32_t byte = m->partial & 255;
  m->text[m->used++] = (uint8_t)byte;
  for (int i = 0; i < kTextMatches; ++i) {
    TextMatch* const match = &m->matches[i];
    const bool goes_on = match->at && m->text[match->at] == byte;
    if (match->at) ++match->at;
    if (goes_on) {
      if (match->length < kTextLongestMatch) ++match->length;
      if (match->length > 16) match->missed = 0;
    } else if (match->at) {
      // The same text with another number goes on behind it.
      match->length = 0;
      ++match->missed;
      if (match->missed == 8) match->at = match->missed = 0;
    }
    if (m->used < lengths[i]) continue;
    uint32_t hash = 0;
    for (size_t k = 1; k <= lengths[i]; ++k) hash = TextHash(hash, TextByte(m, k));
    uint32_t* const place = &match->places[hash >> (32 - kTextPlaceBits)];
    if (*place && *place != match->at && (!match->at || match->length < lengths[i])) {
      unsigned length = 0;
      while (length < kTextLongestMatch && length < *place &&
             m->text[*place - 1 - length] == TextByte(m, length + 1))
        ++length;
      if (length >= lengths[i] && length > match->length) {
        match->at = *place;
        match->length = length;
        match->missed = 0;
      }
    }
    *place = (uint32_t)m->used;
  }
  m->word = TextIsWord(byte) ? TextHash(m->word + 1, byte) : 0;
  const bool in_name = TextIsWord(before) && !TextIsDigit(before);
  if (byte == '\n') {
    m->above = m->shape;
    m->shape = 0;
  } else if (!TextIsDigit(byte) || in_name) {
    m->shape = TextHash(m->shape, byte);
  } else if (!TextIsDigit(before)) {
    m->shape = TextHash(m->shape, '#');
  }
}

// What the bit was that TextPredict was about.
static inline void TextUpdate(TextModel* m, bool bit) {
  const int truth = bit ? 65535 : 0;
  for (int i = 0; i < 2; ++i) {
    const int wrong = (truth - m->chance_of[m->sums[i] + 2048]) * 3 / 8;
    for (int k = 0; k < 2 * kTextInputs; ++k)
      m->weights[i][k] += (m->logits[k] * wrong + (1 << 13)) >> 14;
  }
  for (int i = 0; i < 2; ++i) {
    const int chance = (uint16_t)(m->corrected[i] + m->usual[i]);
    m->corrected[i] = (uint16_t)(m->corrected[i] + (truth - chance) / 64);
  }
  for (int i = 0; i < kTextContexts; ++i) TextLearn(m, m->found[i], bit);
  unsigned bits = 0;
  while (m->partial >> (bits + 1)) ++bits;
  for (int i = 0; i < kTextMatches; ++i)
    if (m->found[kTextContexts + i])
      TextLearn(m, m->found[kTextContexts + i], (m->expected[i] >> (7 - bits) & 1) == bit);
  m->partial = m->partial * 2 + bit;
  if (m->partial < 256) return;
  TextEndByte(m);
  m->partial = 1;
}

// A packed text is a number: each bit makes a range of 32-bit numbers a part of itself, as large as
// the bit was likely, and the first byte that is known of all in it goes to the stream.  Bits of
// the preset make nothing smaller.
typedef struct TextRange {
  uint32_t low, high;
} TextRange;

// The bit of the preset that comes next; -1 where it has ended.
static inline int TextPresetBit(size_t number) {
  return number < (size_t)8 * kTextPresetBytes
             ? (uint8_t)kTextPreset[number / 8] >> (7 - number % 8) & 1
             : -1;
}

// The last number of the range's part for a 1, which has that probability.
static inline uint32_t TextMiddle(const TextRange* range, uint32_t chance) {
  return range->low + (uint32_t)((uint64_t)(range->high - range->low) * chance >> 16);
}

static inline void TextNarrow(TextRange* range, uint32_t middle, bool bit) {
  if (bit)
    range->high = middle;
  else
    range->low = middle + 1;
}

// True, and the range grows again, where its first byte is known.
static inline bool TextShift(TextRange* range) {
  if ((range->low ^ range->high) >> 24) return false;
  range->low <<= 8;
  range->high = range->high << 8 | 255;
  return true;
}

// Gives `bytes` of text for any stream; false: no memory.
static inline bool TextUnpack(const uint8_t* packed, size_t packed_bytes, char* text,
                              size_t bytes) {
  TextModel* const m = TextBegin(bytes);
  if (!m) return false;
  TextRange range = {0, UINT32_MAX};
  uint32_t number = 0;
  size_t used = 0;
  for (; used < 4; ++used) number = number << 8 | (used < packed_bytes ? packed[used] : 0u);
  for (size_t i = 0; i < 8 * (kTextPresetBytes + bytes); ++i) {
    const uint32_t chance = TextPredict(m);
    int bit = TextPresetBit(i);
    if (bit < 0) {
      const uint32_t middle = TextMiddle(&range, chance);
      bit = number <= middle;
      TextNarrow(&range, middle, bit);
      for (; TextShift(&range); ++used)
        number = number << 8 | (used < packed_bytes ? packed[used] : 0u);
    }
    TextUpdate(m, bit);
  }
  memcpy(text, m->text + kTextPresetBytes, bytes);
  free(m);
  return true;
}
