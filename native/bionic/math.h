#pragma once

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_huge_val()
#define isnan(value) __builtin_isnan(value)
#define isinf(value) __builtin_isinf(value)
#define isfinite(value) __builtin_isfinite(value)
#define signbit(value) __builtin_signbit(value)

double fabs(double value);
float fabsf(float value);
double floor(double value);
float floorf(float value);
double ceil(double value);
float ceilf(float value);
double trunc(double value);
float truncf(float value);
double round(double value);
float roundf(float value);
double rint(double value);
float rintf(float value);
double sqrt(double value);
float sqrtf(float value);
double exp(double value);
float expf(float value);
double log(double value);
float logf(float value);
double log2(double value);
double pow(double base, double exponent);
float powf(float base, float exponent);
double fmod(double value, double divisor);
double fmax(double a, double b);
double fmin(double a, double b);
double ldexp(double value, int exponent);
float ldexpf(float value, int exponent);
double frexp(double value, int* exponent);
