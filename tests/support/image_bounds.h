// Included before a kernel under Oclgrind, which checks that an access to an image is inside
// its memory, but not that it is inside its picture: what leaves a row lands in the next one.
// Here it becomes a write to address 0, which Oclgrind reports.  MOVED columns are added to what
// is checked, to see that it is.

#ifndef MOVED
#define MOVED 0
#endif

static void require_inside(int width, int height, int layers, int4 at) {
  at.x += MOVED;
  if (at.x < 0 || at.x >= width || at.y < 0 || at.y >= height || at.z < 0 || at.z >= layers)
    *(volatile __global int*)0 = 1;
}

// By a sampler, zeros are read outside.
static float4 __attribute__((overloadable))
checked_read(__read_only image2d_array_t image, sampler_t sampler, int4 at) {
  return read_imagef(image, sampler, at);
}

static float4 __attribute__((overloadable))
checked_read(__read_only image2d_array_t image, int4 at) {
  require_inside(get_image_width(image), get_image_height(image), get_image_array_size(image), at);
  return read_imagef(image, at);
}

static void checked_write(__write_only image2d_array_t image, int4 at, float4 texel) {
  require_inside(get_image_width(image), get_image_height(image), get_image_array_size(image), at);
  write_imagef(image, at, texel);
}

#define read_imagef checked_read
#define write_imagef checked_write
