// Kernels that measure a device; each is limited by one unit of it.
//
// A work-item writes the sum of everything that it has read or computed, so that no compiler can
// remove the work, and the host can check it.  Four sums in turn hide the latency of additions.

#define ITEM \
  (get_global_id(0) + get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2)))
#define LANES_OF(v) (v.x + v.y + v.z + v.w)
#define SUM(load, next)                  \
  float4 a = 0, b = 0, c = 0, d = 0;     \
  for (int i = 0; i < steps; i += 4) {   \
    a += load;                           \
    next;                                \
    b += load;                           \
    next;                                \
    c += load;                           \
    next;                                \
    d += load;                           \
    next;                                \
  }                                      \
  a = (a + b) + (c + d);                 \
  sums[ITEM] = LANES_OF(a)

// -- streams: a work-group reads a part of `steps` times its own width -----------------------------

#define COLUMN (get_group_id(0) * get_local_size(0) * steps + get_local_id(0))
#define INDEX (get_global_id(1) * get_global_size(0) * steps + COLUMN)
#define TEXEL (int4)(COLUMN, get_global_id(1), get_global_id(2), 0)

kernel void read_buffer(global const float4* source, global float* sums, int steps) {
  size_t at = INDEX;
  SUM(source[at], at += get_local_size(0));
}

kernel void read_half_buffer(global const half* source, global float* sums, int steps) {
  size_t at = INDEX;
  SUM(vload_half4(at, source), at += get_local_size(0));
}

kernel void write_buffer(global float4* result, float4 value, int steps) {
  size_t at = INDEX;
  for (int i = 0; i < steps; ++i, at += get_local_size(0)) result[at] = value;
}

kernel void write_half_buffer(global half* result, float4 value, int steps) {
  size_t at = INDEX;
  for (int i = 0; i < steps; ++i, at += get_local_size(0)) vstore_half4(value, at, result);
}

kernel void copy_buffer(global const float4* restrict source, global float4* restrict result,
                        int steps) {
  size_t at = INDEX;
  for (int i = 0; i < steps; ++i, at += get_local_size(0)) result[at] = source[at];
}

#ifdef IMAGES
kernel void read_image(read_only image2d_array_t source, global float* sums, int steps) {
  int4 at = TEXEL;
  SUM(read_imagef(source, at), at.x += (int)get_local_size(0));
}

kernel void write_image(write_only image2d_array_t result, float4 value, int steps) {
  int4 at = TEXEL;
  for (int i = 0; i < steps; ++i, at.x += (int)get_local_size(0)) write_imagef(result, at, value);
}
#endif

// -- reads of few data again and again, down the rows; extents are powers of two ------------------

kernel void reread_buffer(global const float4* source, global float* sums, int steps, int columns,
                          int rows) {
  const int x = (int)get_global_id(0) & (columns - 1);
  int y = (int)get_global_id(0) / columns & (rows - 1);
  SUM(source[y * columns + x], y = (y + 1) & (rows - 1));
}

kernel void reread_half_buffer(global const half* source, global float* sums, int steps,
                               int columns, int rows) {
  const int x = (int)get_global_id(0) & (columns - 1);
  int y = (int)get_global_id(0) / columns & (rows - 1);
  SUM(vload_half4(y * columns + x, source), y = (y + 1) & (rows - 1));
}

#ifdef IMAGES
kernel void reread_image(read_only image2d_array_t source, global float* sums, int steps,
                         int columns, int rows) {
  const int x = (int)get_global_id(0) & (columns - 1);
  int y = (int)get_global_id(0) / columns & (rows - 1);
  SUM(read_imagef(source, (int4)(x, y, 0, 0)), y = (y + 1) & (rows - 1));
}
#endif

#define TILE 256
kernel void read_local(global const float4* source, global float* sums, int steps) {
  local float4 tile[TILE];
  for (int i = get_local_id(0); i < TILE; i += get_local_size(0)) tile[i] = source[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  int at = get_local_id(0);
  SUM(tile[at & (TILE - 1)], at += get_local_size(0));
}

// -- arithmetic: eight chains of vectors, from numbers that the compiler does not know ------------

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define CHAINS 8
#define FLOATS JOIN(float, LANES)
#define HALVES JOIN(half, LANES)
#define AS_FLOATS JOIN(convert_, FLOATS)
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define FOUR(step) \
  step;            \
  step;            \
  step;            \
  step
#if LANES == 16
#define FOLD(v) (v.lo.lo + v.lo.hi + v.hi.lo + v.hi.hi)
#else
#define FOLD(v) v
#endif
#define ADD_TO_TOTAL(c) total += AS_FLOATS(v##c);
#define TOTAL()                       \
  FLOATS total = 0;                   \
  EACH(ADD_TO_TOTAL)                  \
  const float4 folded = FOLD(total);  \
  sums[ITEM] = LANES_OF(folded)

#define ADD(c) v##c = mad(v##c, x, y);
#define MULTIPLY_ADD(type)                                                             \
  const type x = source[CHAINS], y = source[CHAINS + 1];                               \
  type v0 = source[0], v1 = source[1], v2 = source[2], v3 = source[3], v4 = source[4], \
       v5 = source[5], v6 = source[6], v7 = source[7];                                 \
  for (int i = 0; i < steps; i += 4) {                                                 \
    FOUR(EACH(ADD));                                                                   \
  }                                                                                    \
  TOTAL()

kernel void multiply_add(global const FLOATS* source, global float* sums, int steps) {
  MULTIPLY_ADD(FLOATS);
}

#ifdef HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
kernel void multiply_add_half(global const HALVES* source, global float* sums, int steps) {
  MULTIPLY_ADD(HALVES);
}

// The factor changes in each step, or else the products would be computed before the loop.
#define ADD_PRODUCT(c) v##c += AS_FLOATS(f##c * changing);
kernel void multiply_half_add(global const HALVES* source, global float* sums, int steps) {
  const HALVES x = source[CHAINS], zero = source[CHAINS + 2];
  const HALVES f0 = x + source[0], f1 = x + source[1], f2 = x + source[2], f3 = x + source[3],
               f4 = x + source[4], f5 = x + source[5], f6 = x + source[6], f7 = x + source[7];
  FLOATS v0 = 0, v1 = 0, v2 = 0, v3 = 0, v4 = 0, v5 = 0, v6 = 0, v7 = 0;
  HALVES changing = x;
  for (int i = 0; i < steps; i += 4) {
    FOUR(EACH(ADD_PRODUCT) changing = mad(changing, x, zero));
  }
  TOTAL();
}
#endif

kernel void nothing(global float* sums) { sums[ITEM] = 1; }

#ifdef SUBGROUPS
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
kernel void wave(global float* sums) { sums[ITEM] = get_max_sub_group_size(); }
#endif
