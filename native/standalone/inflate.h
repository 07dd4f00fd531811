// DEFLATE (RFC 1951), for the plan's sources.
#ifndef TVMFLOW_STANDALONE_INFLATE_H
#define TVMFLOW_STANDALONE_INFLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a byte of a stream can become at most: 258 bytes for two codes of one bit each.
#define TF_INFLATE_RATIO 1032

// True when the stream is sound and gives exactly `out_bytes`; no more is ever written.
bool tf_inflate(const uint8_t* in, size_t in_bytes, uint8_t* out, size_t out_bytes);

#endif
