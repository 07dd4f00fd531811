"""Copies tensors of awkward shapes to, on and from a device; prints what went wrong."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import tvm
from modules import first_device

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 7, 5), (1, 1, 1, 1, 4), (0,), (2, 0, 3), (1, 100_003)]
DTYPES = ["float32", "float16", "int8", "uint8", "int32", "int64", "bool", "float64"]
#: (scope, shape): layers, heights and widths of 1, primes, and the innermost extent 4.
TEXTURES = [
    ("global.texture", (1, 3, 7, 5, 4)),
    ("global.texture", (2, 1, 1, 1, 4)),
    ("global.texture", (1, 31, 13, 4)),
    ("global.texture", (5, 9, 4)),
    ("global.texture-nhwc", (2, 7, 5, 3, 4)),
    ("global.texture-nhwc", (1, 1, 113, 4)),
    ("global.texture-weight", (9, 3, 2, 2, 4)),
    ("global.texture-weight", (1, 17, 4)),
    ("global.texture-weight", (33, 4)),
]


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    return (rng.standard_normal(shape) * 100).astype(dtype)


def check(what: str, got: object, expected: np.ndarray, wrong: list[str]) -> None:
    got = got.numpy()
    if got.shape != expected.shape or got.dtype != expected.dtype or not (got == expected).all():
        wrong.append(what)


def buffers(device: tvm.runtime.Device, wrong: list[str]) -> int:
    count = 0
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        x = values(shape, dtype)
        there = tvm.runtime.tensor(x, device)
        check(f"buffer {shape} {dtype}", there, x, wrong)
        copy = tvm.runtime.empty(shape, dtype, device)
        there.copyto(copy)
        check(f"buffer to buffer {shape} {dtype}", copy, x, wrong)
        count += 2
    return count


def images(device: tvm.runtime.Device, wrong: list[str]) -> int:
    count = 0
    for (scope, shape), dtype in itertools.product(TEXTURES, ["float32", "float16"]):
        x = values(shape, dtype)
        image = tvm.runtime.empty(shape, dtype, device, mem_scope=scope)
        image.copyfrom(x)
        check(f"{scope} {shape} {dtype}", image, x, wrong)
        buffer = tvm.runtime.empty(shape, dtype, device)
        image.copyto(buffer)
        check(f"{scope} to buffer {shape} {dtype}", buffer, x, wrong)
        other = tvm.runtime.empty(shape, dtype, device, mem_scope=scope)
        buffer.copyto(other)
        check(f"buffer to {scope} {shape} {dtype}", other, x, wrong)
        same = tvm.runtime.empty(shape, dtype, device, mem_scope=scope)
        other.copyto(same)
        check(f"{scope} to {scope} {shape} {dtype}", same, x, wrong)
        weight = tvm.runtime.empty(shape, dtype, device, mem_scope="global.texture-weight")
        image.copyto(weight)
        check(f"{scope} to global.texture-weight {shape} {dtype}", weight, x, wrong)
        count += 5
    return count


def offsets(device: tvm.runtime.Device, wrong: list[str]) -> int:
    x = values((6, 4), "float32")
    whole = tvm.runtime.tensor(x, device)
    view = whole._create_view((3, 4), "float32", relative_byte_offset=2 * 4 * 4)
    check("view with an offset", view, x[2:5], wrong)
    target = tvm.runtime.tensor(np.zeros((6, 4), "float32"), device)
    view.copyto(target._create_view((3, 4), "float32", relative_byte_offset=4 * 4))
    expected = np.zeros((6, 4), "float32")
    expected[1:4] = x[2:5]
    check("copy between offsets", target, expected, wrong)
    host = tvm.runtime.tensor(np.full((3, 4), 5, "float32"))
    host.copyto(target._create_view((3, 4), "float32", relative_byte_offset=3 * 4 * 4))
    expected[3:6] = 5
    check("host to an offset", target, expected, wrong)
    return 3


def main() -> None:
    device = first_device()
    wrong: list[str] = []
    count = buffers(device, wrong) + offsets(device, wrong)
    with_images = "--images" in sys.argv
    count += images(device, wrong) if with_images else 0
    print(json.dumps({"device": device.device_name, "count": count, "wrong": wrong}))


main()
