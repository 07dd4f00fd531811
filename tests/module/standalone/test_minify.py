"""Minified kernels' text: names by kind and position, and definitions once."""

from __future__ import annotations

import re

from tvmflow.module.standalone.minify import minify

GUARD = """\
#ifndef TWICE
#define TWICE(x) (2 * (x))
#endif
"""
KERNEL = """\
__kernel void scale(__global float* restrict T_scale_ptr, __read_only image2d_array_t x_ptr) {
  float4 conv2d_local_ptr[6];
  int group_x = (convert_int(get_group_id(0)));
  int cse_v3 = (group_x * 12);
  if (cse_v3 < 3) {
    float4 v__7 = read_imagef(x_ptr, at, (int4)(cse_v3, 0, 0, 0));
    T_scale_ptr[cse_v3] = TWICE(v__7.x) + x.cse_v3 + y->cse_v3;
  }
}
"""
MINIFIED = """\
__kernel void scale(__global float* restrict p0, __read_only image2d_array_t p1) {
float4 a0[6];
int group_x = (convert_int(get_group_id(0)));
int c0 = (group_x * 12);
if (c0 < 3) {
float4 v0 = read_imagef(p1, at, (int4)(c0, 0, 0, 0));
p0[c0] = TWICE(v0.x) + x.cse_v3 + y->cse_v3;
}
}
"""


def test_names_are_those_of_kind_and_place():
    defined: set[str] = set()
    assert minify(GUARD + KERNEL, defined) == GUARD + MINIFIED
    # The second kernel of a program reuses the definitions of the first one.
    assert minify(GUARD + KERNEL, defined) == MINIFIED
    assert minify(GUARD.replace("2 *", "3 *") + KERNEL, defined).startswith("#ifndef TWICE")


def test_names_that_mean_something_else_are_left_alone():
    kernel = KERNEL.replace("+ x.cse_v3", "+ c0")
    assert minify(kernel, set()) == re.sub(r"(?m)^ +", "", kernel)
