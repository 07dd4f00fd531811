"""Image accesses: where texels go, and that each store writes its own value."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
from support.kernels import by_row, by_texel, pointwise, scheduled, source, through
from tvm import tirx

from tvmflow.devices.target import PRESETS
from tvmflow.errors import DeviceError
from tvmflow.ir.scope import constant_scope, coordinates, extent_of, panel_scope

PANELS = "global.texture:p"


def texels(shape, scope):
    """Column, row and layer of every texel, by evaluating the expressions."""
    simplify = tvm.sym.Analyzer().simplify
    result = np.empty((*shape[:-1], 3), np.int64)
    for index in np.ndindex(*shape[:-1]):
        indices = [tirx.const(int(i), "int32") for i in (*index, 0)]
        result[index] = [int(simplify(e)) for e in coordinates(shape, scope, indices)]
    return result


def panels_reference(shape, panels):
    """The mapping in the words of the documentation, as arrays."""
    n, c, y, x = np.meshgrid(*(np.arange(d) for d in shape[:-1]), indexing="ij")
    _, blocks, height, width, _ = shape
    column = (c % panels) * width + x
    row = (n * -(-blocks // panels) + c // panels) * height + y
    return np.stack([column, row, np.zeros_like(row)], axis=-1)


def cuts_reference(shape, rows, columns):
    number = np.arange(np.prod(shape[:-1])).reshape(shape[:-1])
    width = int(np.prod(shape[columns:-1]))
    height = int(np.prod(shape[rows:columns]))
    parts = [number % width, number // width % height, number // width // height]
    return np.stack(parts, axis=-1)


def check_mapping(shape, scope, reference):
    found = texels(shape, scope)
    np.testing.assert_array_equal(found, reference)
    extent = extent_of(shape, scope)
    flat = found.reshape(-1, 3)
    assert len(np.unique(flat, axis=0)) == len(flat)  # no two share a texel
    assert (flat.max(axis=0) < [extent.width, extent.height, extent.layers]).all()
    assert flat.min() == 0


@pytest.mark.parametrize("seed", range(12))
def test_panels_put_texels_where_they_should_be(seed):
    generator = random.Random(seed)
    shape = (*(generator.randrange(1, n) for n in (4, 12, 7, 7)), 4)
    panels = generator.choice([1, 2, 4, 8])
    half = generator.choice(["", "-half"])
    check_mapping(shape, f"global.texture{half}:p{panels}", panels_reference(shape, panels))


@pytest.mark.parametrize("seed", range(12))
def test_cuts_are_in_the_order_of_a_buffer(seed):
    generator = random.Random(seed)
    shape = (*(generator.randrange(1, 6) for _ in range(generator.randrange(2, 6))), 4)
    columns = generator.randrange(len(shape))
    rows = generator.randrange(columns + 1)
    scope = f"global.texture:{rows}.{columns}"
    check_mapping(shape, scope, cuts_reference(shape, rows, columns))


@pytest.mark.parametrize("seed", range(20))
def test_scopes_that_are_chosen_fit_the_device(seed):
    generator = random.Random(seed)
    device = PRESETS["adreno"]
    shape = (1, *(generator.randrange(1, n) for n in (700, 60, 60)), 4)
    scope = panel_scope(shape, device, width=generator.choice([7, 56, 224]))
    extent = extent_of(shape, scope)
    assert extent.fits(device)
    assert extent.texels < 2 * np.prod(shape[:-1]) + shape[2] * extent.width
    # Rows of a weight are its blocks of output channels, and it has one layer.
    weight = (generator.randrange(1, 300), generator.randrange(1, 500), 3, 3, 4)
    extent = extent_of(weight, constant_scope(weight, device))
    assert (extent.layers, extent.height) == (1, weight[0])


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(12))
def test_the_runtime_makes_images_of_the_same_extents(seed):
    # Larger than any device's images: the refusal names the extents, and nothing is allocated.
    generator = random.Random(seed)
    shape = [generator.randrange(1, 9) for _ in range(4)]
    shape[generator.randrange(4)] = 3_000_017
    shape = (*shape, 4)
    if seed % 2:
        scope = f"global.texture{generator.choice(['', '-half'])}:p{generator.choice([1, 2, 8])}"
    else:
        columns = generator.randrange(5)
        scope = f"global.texture:{generator.randrange(columns + 1)}.{columns}"
    extent = extent_of(shape, scope)
    words = f"{extent.width}x{extent.height} texels, {extent.layers} layers"
    with pytest.raises(DeviceError, match=words):
        tvm.runtime.empty(shape, "float32", tvm.opencl(), mem_scope=scope)


@pytest.mark.opencl
@pytest.mark.parametrize(
    "scope", [f"{PANELS}1", f"{PANELS}2", f"{PANELS}8", "global.texture:1.2", "global.texture:2.3"]
)
@pytest.mark.parametrize("shape", [(1, 3, 5, 7, 4), (2, 9, 4, 3, 4), (1, 1, 1, 1, 4)])
def test_what_is_written_to_a_texture_is_read_from_it(scope, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    height = shape[2]

    def upside_down(source, i):
        return source(i[0], i[1], height - 1 - i[2], i[3], i[4]) * 2 + i[1]

    function = scheduled(pointwise(shape, upside_down, [scope, scope]), by_texel)
    expected = x[:, :, ::-1] * 2 + np.arange(shape[1]).reshape(1, -1, 1, 1, 1)
    np.testing.assert_allclose(through(function, x, [scope, scope]), expected, rtol=1e-6)


@pytest.mark.opencl
@pytest.mark.parametrize("scopes", [(f"{PANELS}2", f"{PANELS}2"), (None, f"{PANELS}4")])
def test_unrolled_stores_each_write_their_own_value(scopes, rng):
    shape = (1, 3, 4, 6, 4)
    x = rng.standard_normal(shape).astype(np.float32)

    def value(source, i):
        return source(*i) * (i[3] + 1)

    function = scheduled(pointwise(shape, value, scopes), by_row)
    expected = x * np.arange(1, 7).reshape(1, 1, 1, 6, 1)
    np.testing.assert_allclose(through(function, x, scopes), expected, rtol=1e-6)


def test_stored_texels_have_names_of_their_own():
    shape = (1, 1, 2, 5, 4)
    function = scheduled(pointwise(shape, lambda s, i: s(*i) * 2.0, [f"{PANELS}1"] * 2), by_row)
    stores = [line for line in source(function).splitlines() if "write_imagef" in line]
    values = {line.rsplit("as_float4(", 1)[1] for line in stores}
    assert len(stores) == len(values) == 5


def test_a_texture_is_accessed_by_whole_texels_only():
    function = scheduled(
        pointwise((1, 2, 3, 4, 4), lambda s, i: s(*i) + 1.0, [f"{PANELS}2"] * 2), by_texel
    )
    text = source(function)
    assert text.count("READ_IMAGEF(x_ptr") == text.count("write_imagef(y_ptr") == 1
    assert "x_ptr[" not in text
    assert "y_ptr[" not in text
    assert "__read_only image2d_array_t x_ptr" in text
    assert "__write_only image2d_array_t y_ptr" in text


def guarded():
    """A row of 7 in tiles of 2: the last tile is half empty."""

    def tiled(sch, loops):
        sch.bind(sch.fuse(*loops[:-2]), "blockIdx.x")
        outer, inner = sch.split(loops[-2], [None, 2])
        sch.bind(outer, "threadIdx.x")
        sch.unroll(inner)
        sch.vectorize(loops[-1])

    function = pointwise((1, 2, 3, 7, 4), lambda s, i: s(*i) - 1.0, [f"{PANELS}1"] * 2)
    return scheduled(function, tiled)


def test_a_guarded_store_keeps_its_guard():
    text = source(guarded())
    assert text.count("write_imagef") == 2
    assert "if (" in text


@pytest.mark.opencl
def test_a_guarded_kernel_is_right(rng):
    x = rng.standard_normal((1, 2, 3, 7, 4)).astype(np.float32)
    found = through(guarded(), x, [f"{PANELS}1"] * 2)
    np.testing.assert_allclose(found, x - 1, rtol=1e-6, atol=1e-6)
