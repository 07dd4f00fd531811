// Numbers of each dtype in memory, and how far they are from expected ones.
#ifndef TVMFLOW_STANDALONE_NUMBERS_H
#define TVMFLOW_STANDALONE_NUMBERS_H

#include <stdint.h>

// Store and load a number of a tvmflow_dtype; integers are rounded down.
void tf_store_number(uint32_t dtype, uint8_t* at, double value);
double tf_load_number(uint32_t dtype, const uint8_t* at);

// Returns the distance of a number from the expected one: infinities must be equal, and a number
// that is NaN is infinitely far.
double tf_error(double got, double expected);
// Returns an error as a share of its tolerance; infinity if neither is finite.
double tf_tolerance_used(double error, double tolerance);

#endif
