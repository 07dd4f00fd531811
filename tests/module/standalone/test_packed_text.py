"""Kernels' text as libraries keep it: in fewer words, and packed."""

from __future__ import annotations

import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_build import NATIVE
from small_plans import add_plan

from tvmflow.module.standalone.minify import minify
from tvmflow.module.standalone.read import read_plan
from tvmflow.runtime.plugin import pack_text, unpack_text

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
    # The second kernel of a program finds what the first one has defined.
    assert minify(GUARD + KERNEL, defined) == MINIFIED
    assert minify(GUARD.replace("2 *", "3 *") + KERNEL, defined).startswith("#ifndef TWICE")


def test_names_that_mean_something_else_are_left_alone():
    kernel = KERNEL.replace("+ x.cse_v3", "+ c0")
    assert minify(kernel, set()) == re.sub(r"(?m)^ +", "", kernel)


TEXTS = [b"", b"a", b"\0" * 1000, b"ab" * 5000, bytes(range(256)) * 9, KERNEL.encode() * 40]
TEXTS.append(b"".join(path.read_bytes() for path in sorted(NATIVE.glob("*.c"))[:9]))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_packed_texts_are_unpacked(text):
    packed = pack_text(text)
    assert unpack_text(packed, len(text)) == text
    assert len(packed) <= len(text) * 1.02 + 4
    assert len(packed) < len(zlib.compress(text, 9)) or len(text) < 3000


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_packed_and_unpacked(content, size):
    assert unpack_text(pack_text(content), len(content)) == content
    assert len(unpack_text(content, size)) == size


def test_text_that_repeats_itself_stays_within_what_a_byte_may_become():
    plan, _ = add_plan()
    plan.program(" " * 1_000_000)
    found = read_plan(plan.encode())
    assert found is not None
    assert found.source.endswith(" " * 1_000_000)
