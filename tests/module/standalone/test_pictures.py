"""Inputs that take pictures: the values that reach the network, and refusals."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image as PillowImage
from support import standalone_api as api
from support.commands import run
from support.fake_opencl import Fake
from support.opencl_application import OpenCL
from support.pictures import PLANAR, Picture, expected, image_info, place, placed, set_image
from support.small_plans import Plan

import tvmflow
from tvmflow.errors import CompileError, InputError, TvmflowError
from tvmflow.ir.pictures import CHROMA_FORMATS, FITS, IMAGE_FORMATS, ImageInput
from tvmflow.module.standalone.binding import ImageData as Image
from tvmflow.module.standalone.binding import MemoryInfo
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan

OPENCL, CPU = 1, 2
WIDTH, HEIGHT = 53, 37
#: Rounding errors in single precision, in levels (of 255).
LEVEL = 0.01
NORMALISED = "mean=0.485,0.456,0.406,std=0.229,0.224,0.225"


def network(shape: tuple[int, ...], dtype: str = "float32") -> onnx.ModelProto:
    """Return a network whose output is its input."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x = helper.make_tensor_value_info("x", kind, shape)
    y = helper.make_tensor_value_info("y", kind, shape)
    zero = helper.make_tensor("zero", kind, [1], np.zeros(1, dtype).tobytes(), raw=True)
    add = helper.make_node("Add", ["x", "zero"], ["y"])
    graph = helper.make_graph([add], "same", [x], [y], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that compiles such a network, once for all tests with the same options."""
    folder, made = tmp_path_factory.mktemp("pictures"), {}

    def make(text: str, shape=(1, 3, HEIGHT, WIDTH), element="float32", **options) -> Path:
        key = text, shape, element, *sorted(options.items())
        if key not in made:
            module = tvmflow.compile(
                network(shape, element), format="standalone", image_inputs={"x": text}, **options
            )
            made[key] = module.save(folder / f"lib{len(made)}.so")
            module.close()
        return made[key]

    return make


def error(
    model: api.Model, picture: Picture, spec: ImageInput, rotation: int = 0, **changes: object
) -> float:
    """Return the input's error in levels; it has three channels or one."""
    set_image(model, 0, picture.image(rotation=rotation, **changes))
    model.call("run")
    (got,) = model.get_output(0)
    wanted = expected(picture, spec, (got.shape[-1], got.shape[-2]), len(got), rotation)
    std = np.array(spec.std * len(got))[: len(got), None, None] * spec.range
    return float(np.abs((got - wanted) * std).max())


def distance(model: api.Model, image: Image, picture: Picture, text: str) -> float:
    """Return the largest difference of the input that an image gives from a picture's."""
    set_image(model, 0, image)
    model.call("run")
    wanted = expected(picture, ImageInput.parse("x", text), (WIDTH, HEIGHT), 3)
    return float(np.abs(model.get_output(0)[0] - wanted).max())


ON_CPU = {"target": "llvm"}
ADRENO, MALI, HOST = ({"target": "opencl", "device": d} for d in ("adreno", "mali", "cpu"))
opencl = pytest.mark.opencl
BACKENDS = [
    pytest.param(ON_CPU, id="cpu"),
    *(
        pytest.param(options, marks=opencl, id=options["device"])
        for options in (ADRENO, MALI, HOST)
    ),
]
#: Larger in both directions, in one, the same, smaller, and as small as possible.
SIZES = [(131, 90), (37, 999), (WIDTH, HEIGHT), (20, 11), (7, 1), (1, 1)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("format", "fit"), list(zip(IMAGE_FORMATS, 3 * FITS, strict=True)))
def test_sizes_and_rotations(compiled, backend, format, fit):
    text = f"{format},fit={fit},{NORMALISED}"
    spec = ImageInput.parse("x", text)
    with api.Model(compiled(text, **backend)) as model:
        assert image_info(model, 0) == (format, 0, 0)
        for (width, height), rotation in itertools.product(SIZES, (0, 90, 180, 270)):
            picture = Picture(format, width, height, gaps=(5, 3), seed=width)
            assert error(model, picture, spec, rotation) < LEVEL, (width, height, rotation)


class GuardedPlane:
    """Bytes that end right before an inaccessible page."""

    def __init__(self, data: np.ndarray) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        page = os.sysconf("SC_PAGE_SIZE")
        self.libc, self.bytes = libc, -(-data.nbytes // page) * page + page
        self.begin = libc.mmap(None, self.bytes, 3, 0x22, -1, 0)
        end = self.begin + self.bytes - page
        assert libc.mprotect(end, page, 0) == 0
        self.address = end - data.nbytes
        ctypes.memmove(self.address, data.ctypes.data, data.nbytes)

    def close(self) -> None:
        self.libc.munmap(self.begin, self.bytes)


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("size", [(64, 48), (33, 21), (2, 5), (1, 2)])
@pytest.mark.parametrize("format", ["nv12", "nv21"])
def test_the_last_byte_of_chroma_may_be_missing(compiled, backend, size, format):
    # Android's planes of pairs have w * h / 2 - 1 bytes; the missing byte is not read.
    picture = Picture(format, *size, gaps=(5, 4), seed=7)
    rows = picture.planes[1].ravel()
    used = (len(picture.planes[1]) - 1) * picture.planes[1].shape[1] + picture.sizes[1][1]
    guarded = GuardedPlane(rows[: used - 1])
    image = picture.image(planes=(ctypes.c_void_p * 3)(picture.planes[0].ctypes.data,
                                                       guarded.address))  # fmt: skip
    image.bytes[1] = used - 1
    before = 2 if size[0] > 2 else picture.planes[1].shape[1]
    with api.Model(compiled(format, **backend)) as model:
        if used <= 2:
            with pytest.raises(api.CallError, match=r"expected 2 bytes of plane 1 .* got 1"):
                set_image(model, 0, image)
        else:
            rows[used - 1] = rows[used - 1 - before]
            assert distance(model, image, picture, format) < LEVEL / 255
            image.bytes[1] = used - 2
            with pytest.raises(api.CallError, match=f"got {used - 2}"):
                set_image(model, 0, image)
    guarded.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pixel_stride", [1, 2, 3])
def test_pixel_strides(compiled, backend, pixel_stride):
    text = f"yuv420,fit=crop,{NORMALISED}"
    with api.Model(compiled(text, **backend)) as model:
        spec = ImageInput.parse("x", text)
        for size, rotation in ((s, r) for s in ((131, 90), (20, 11), (1, 1)) for r in (0, 270)):
            picture = Picture("yuv420", *size, gaps=(5, 3), pixel_stride=pixel_stride)
            assert error(model, picture, spec, rotation) < LEVEL, (size, rotation)
        # Luma may have gaps between rows, too.
        wide = np.repeat(picture.planes[0], 2, 1)
        picture.planes[0] = wide
        image = picture.image()
        image.pixel_strides[0] = 2
        picture.planes[0] = np.ascontiguousarray(wide[:, ::2])
        assert distance(model, image, picture, text) < LEVEL / 50


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("order", ["nv12", "nv21"])
@pytest.mark.parametrize("format", ["yuv420", "yv12"])
def test_planes_within_each_other(compiled, backend, order, format):
    """Planes of U and V have a pixel stride of 2, as semi-planar cameras provide them."""
    picture = Picture(order, 90, 62, gaps=(6, 10))
    pairs = picture.planes[1]
    used = (len(pairs) - 1) * pairs.shape[1] + picture.sizes[1][1]
    guarded = GuardedPlane(pairs.ravel()[:used])
    first = int(order == "nv21")
    u, v = guarded.address + first, guarded.address + 1 - first
    one, two = (u, v) if format == "yuv420" else (v, u)
    image = picture.image(planes=(ctypes.c_void_p * 3)(picture.planes[0].ctypes.data, one, two))
    image.strides[2] = pairs.shape[1]
    image.pixel_strides[1] = image.pixel_strides[2] = 2
    image.bytes[1] = image.bytes[2] = used - 1
    with api.Model(compiled(format, **backend)) as model:
        assert distance(model, image, picture, order) < LEVEL / 255
        if backend is not ON_CPU:
            # They are one plane on the device.
            info = MemoryInfo(ctypes.sizeof(MemoryInfo))
            model.call("memory", ctypes.byref(info))
            copied = picture.planes[0].nbytes + picture.planes[1].nbytes
            assert copied - 16 < info.pictures < copied + 1024
        image.bytes[2] = used - 2
        with pytest.raises(api.CallError, match=f"expected {used - 1} bytes of plane 2"):
            set_image(model, 0, image)
    guarded.close()


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_the_format_is_chosen_at_run_time(compiled, backend):
    for compiled_for, others in ((f"nv12,{NORMALISED}", CHROMA_FORMATS),
                                 (f"rgba8,{NORMALISED}", ("rgba8", "bgra8"))):  # fmt: skip
        spec = ImageInput.parse("x", compiled_for)
        with api.Model(compiled(compiled_for, **backend)) as model:
            for format in others:
                picture = Picture(format, 91, 61, gaps=(3, 5), pixel_stride=2)
                changes = {"has_format": 1, "format": IMAGE_FORMATS.index(format)}
                assert error(model, picture, spec, **changes) < LEVEL, format
            for code, name in ((2, "rgb8"), (99, "an unknown format")):
                image = Picture("rgb8", 8, 8).image(has_format=1, format=code)
                with pytest.raises(api.CallError, match=f"a picture of {name} was given"):
                    set_image(model, 0, image)


@pytest.mark.parametrize("format", CHROMA_FORMATS)
def test_planes_that_follow_each_other(compiled, format):
    picture = Picture(format, 33, 21)
    data = np.concatenate([plane.ravel() for plane in picture.planes])
    image = Image(struct_size=ctypes.sizeof(Image), width=33, height=21)
    image.planes[0], image.bytes[0] = data.ctypes.data, data.nbytes
    with api.Model(compiled(format, **ON_CPU)) as model:
        assert distance(model, image, picture, format) < LEVEL / 255
        image.bytes[0] -= 2
        with pytest.raises(api.CallError, match=r"bytes of plane [12] .* got"):
            set_image(model, 0, image)
        if format in PLANAR:
            image.planes[1] = image.planes[0]
            with pytest.raises(api.CallError, match="expected three planes"):
                set_image(model, 0, image)
        else:
            image.pixel_strides[1] = 3
            with pytest.raises(api.CallError, match="without gaps, 2 bytes from one to the next"):
                set_image(model, 0, image)


@pytest.mark.parametrize("backend", [pytest.param(ON_CPU, id="cpu"), *BACKENDS[1:2]])
@pytest.mark.parametrize(
    "text",
    [
        "rgb8,fit=crop,order=bgr,range=1,mean=104,117,123",
        "nv12,luma=video,std=0.5,rotate=90",
        "bgra8,fit=letterbox,pad=0,mean=0.5",
        "nv21,luma=video,fit=letterbox,rotate=270,pad=255",
    ],
)
def test_options(compiled, backend, text):
    spec = ImageInput.parse("x", text)
    with api.Model(compiled(text, **backend)) as model:
        for rotation in (0, 90):
            picture = Picture(spec.format, 61, 83, seed=3)
            assert error(model, picture, spec, rotation) < LEVEL


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("format", ["rgba8", "grey8", "nv12"])
def test_networks_of_one_channel(compiled, backend, format):
    text = f"{format},mean=0.5,std=0.25"
    with api.Model(compiled(text, (1, 1, 28, 30), **backend)) as model:
        picture = Picture(format, 101, 45)
        assert error(model, picture, ImageInput.parse("x", text)) < LEVEL


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_channels_last(compiled, backend):
    text = f"rgb8,{NORMALISED}"
    picture = Picture("rgb8", 90, 61)
    with api.Model(compiled(text, (1, 21, 30, 3), **backend)) as model:
        set_image(model, 0, picture.image())
        model.call("run")
        got = model.get_output(0)[0].transpose(2, 0, 1)
    wanted = expected(picture, ImageInput.parse("x", text), (30, 21), 3)
    np.testing.assert_allclose(got, wanted, atol=LEVEL / 50)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_levels_as_bytes(compiled, backend):
    text = "rgba8,range=1"
    picture = Picture("rgba8", 90, 61)
    with api.Model(compiled(text, (1, 3, 21, 30), "uint8", **backend)) as model:
        set_image(model, 0, picture.image())
        model.call("run")
        (got,) = model.get_output(0)
    wanted = expected(picture, ImageInput.parse("x", text), (30, 21), 3)
    # Rounded to nearest, ties to even.
    assert np.abs(got - wanted).max() <= 0.5 + LEVEL


@opencl
@pytest.mark.parametrize("device", ["adreno", "mali", "cpu"])
def test_half_precision(compiled, device):
    text = f"rgba8,{NORMALISED}"
    path = compiled(text, target="opencl", device=device, dtype="fp16")
    with api.Model(path) as model:
        # Relative to numbers up to 2.7.
        assert error(model, Picture("rgba8", 90, 61), ImageInput.parse("x", text)) < 0.2


@opencl
def test_the_kernel_writes_what_the_network_reads(compiled):
    for backend, dimensions, image in ((ADRENO, 5, WIDTH), (MALI, 5, WIDTH), (HOST, 4, 0)):
        library = compiled(f"rgba8,fit=stretch,{NORMALISED}", **backend)
        (record,) = find_plan(library)[Section.INPUTS]
        assert record["dimensions"] == dimensions
        with api.Model(library) as model:
            # Applications see the tensor as in ONNX.
            info = model.tensor("input", 0)
            assert list(info.shape[: info.dimensions]) == [1, 3, HEIGHT, WIDTH]
            assert (info.layout, info.bytes) == (b"", 4 * 3 * HEIGHT * WIDTH)
            assert info.image_size[0] == image
            if dimensions == 5:
                with pytest.raises(api.CallError, match="takes pictures, and kernels read it in"):
                    model.call("use_input", 0, 64)


def test_pillow_gives_the_same(compiled):
    picture = Picture("rgb8", 640, 400)
    with api.Model(compiled("rgb8", **ON_CPU)) as model:
        set_image(model, 0, picture.image())
        model.call("run")
        (got,) = model.get_output(0)
    for channel in range(3):
        plane = np.ascontiguousarray(picture.red_green_blue()[..., channel], np.float32)
        resized = PillowImage.fromarray(plane).resize(
            (WIDTH, HEIGHT), PillowImage.Resampling.BILINEAR
        )
        assert np.abs(255 * got[channel] - np.asarray(resized)).max() < LEVEL


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_the_rows(compiled, threads):
    text = f"nv12,fit=crop,{NORMALISED}"
    with api.Model(compiled(text, **ON_CPU), cpu_threads=threads) as model:
        assert error(model, Picture("nv12", 640, 400), ImageInput.parse("x", text)) < LEVEL


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("rotation", [0, 90])
def test_where_a_picture_is(compiled, fit, rotation):
    picture = Picture("rgba8", 100, 40)
    with api.Model(compiled(f"rgba8,fit={fit}", **ON_CPU)) as model:
        with pytest.raises(api.CallError, match="none has been set"):
            place(model, 0)
        set_image(model, 0, picture.image(rotation=rotation))
        scale, offset = place(model, 0)
    upright = (40, 100) if rotation else (100, 40)
    wanted = placed(upright, (WIDTH, HEIGHT), fit)
    for axis in (0, 1):
        # The corners of the covered area are those of the picture, or of its visible part.
        corner = wanted.begin[axis] * scale[axis] + offset[axis]
        assert corner == pytest.approx(wanted.origin[axis], abs=1e-4)
        assert scale[axis] == pytest.approx(wanted.step[axis])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_input_may_be_set_as_before(compiled, backend, channels):
    shape = (1, channels, HEIGHT, WIDTH)
    with api.Model(compiled("rgba8", shape, **backend)) as model:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        set_image(model, 0, Picture("rgba8", 5, 5).image())
        np.testing.assert_array_equal(model(x)[0], x)
        with pytest.raises(api.CallError, match="none has been set"):
            place(model, 0)
        with pytest.raises(api.CallError, match=f"expected {x.nbytes} bytes, got {x.nbytes - 4}"):
            model.set_input(0, x.ravel()[1:])


@opencl
def test_both_backends_take_the_same(compiled):
    library = compiled("rgba8", fallback="cpu", **ADRENO)
    x = np.random.default_rng(0).normal(size=(1, 3, HEIGHT, WIDTH)).astype(np.float32)
    for backend in ("opencl", "cpu"):
        with tvmflow.load(library, backend=backend) as module:
            assert module.inputs[0].shape == x.shape
            np.testing.assert_array_equal(module(x)[0], x)
            assert module.self_test().compared


def test_an_older_application_has_a_smaller_structure(compiled):
    with api.Model(compiled("rgba8", **ON_CPU)) as model:
        picture = Picture("rgba8", 8, 8)
        size = Image.cl_memory.offset
        set_image(model, 0, picture.image(struct_size=size, cl_memory=1, hardware_buffer=1))


# -- boxes -----------------------------------------------------------------------------------


def boxes_network() -> onnx.ModelProto:
    """Return a network with a picture input, and an input of rows that it outputs as boxes."""
    model = network((1, 3, HEIGHT, WIDTH))
    given = helper.make_tensor_value_info("given", TensorProto.FLOAT, (1, 5, 4))
    boxes = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, (1, 5, 4))
    model.graph.input.append(given)
    model.graph.output.append(boxes)
    model.graph.node.append(helper.make_node("Add", ["given", "zero"], ["boxes"]))
    return model


#: Conversions of the corners x0, y0, x1, y1 to each form.
FORMS = {
    "xyxy": lambda x0, y0, x1, y1: (x0, y0, x1, y1),
    "yxyx": lambda x0, y0, x1, y1: (y0, x0, y1, x1),
    "xywh": lambda x0, y0, x1, y1: (x0, y0, x1 - x0, y1 - y0),
    "cxcywh": lambda x0, y0, x1, y1: ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0),
}


@pytest.mark.parametrize("unit", ["", ":unit"])
@pytest.mark.parametrize("form", FORMS)
def test_boxes_are_brought_back_to_the_picture(tmp_path, form, unit):
    with tvmflow.compile(
        boxes_network(), format="standalone", image_inputs={"x": "rgba8,fit=letterbox"},
        results={"boxes": f"boxes:{form}{unit}"}, **ON_CPU,
    ) as module:  # fmt: skip
        path = module.save(tmp_path / "libnet.so")
    corners = np.random.default_rng(0).uniform(0, 30, (5, 4))
    sides = np.tile([WIDTH, HEIGHT] if unit else [1, 1], 2)
    given = np.stack(FORMS[form](*(corners / sides).T), -1)[None].astype(np.float32)
    picture = Picture("rgba8", 200, 99)
    where = placed((99, 200), (WIDTH, HEIGHT), "letterbox")
    begin, step = np.tile(where.begin, 2), np.tile(where.step, 2)
    wanted = np.stack(FORMS[form](*((corners - begin) * step).T), -1)[None]
    with api.Model(path) as model:
        model.self_test()
        set_image(model, 0, picture.image(rotation=90))
        model.set_input(1, given)
        model.call("run")
        np.testing.assert_allclose(model.get_output(1), wanted, rtol=1e-4, atol=1e-2)
        with pytest.raises(api.CallError, match="its elements are converted"):
            model.call("output_data", 1, 0, ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(80))
        # Without a picture, boxes are in the network's coordinates.
        x = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
        np.testing.assert_array_equal(model(x, given)[1], given)


# -- memory of OpenCL and Android ------------------------------------------------------------


@opencl
@pytest.mark.parametrize("format", ["rgba8", "nv12"])
def test_a_buffer_of_the_application(compiled, application_library, format):
    text = f"{format},{NORMALISED}"
    path = compiled(text, **ADRENO)
    application = OpenCL(application_library)
    picture = Picture(format, 90, 61, gaps=(7, 5))
    data = np.concatenate([np.zeros(12, np.uint8), *(plane.ravel() for plane in picture.planes)])
    buffer = application.buffer(data)
    with api.Model(path, opencl_library=application_library, **application.options) as model:
        image = picture.image(cl_memory=buffer)
        image.planes[0] = image.planes[1] = None
        image.offsets[0] = 12
        assert distance(model, image, picture, text) < LEVEL / 50
        if format == "nv12":
            image.offsets[0] += 6  # omits the gap after the last row, and the last byte
            set_image(model, 0, image)
            image.offsets[0] -= 6
        image.offsets[0] += 8  # the gap after the last row is not needed
        with pytest.raises(api.CallError, match="a buffer of at least"):
            set_image(model, 0, image)


@opencl
@pytest.mark.parametrize(("format", "order"), [("rgba8", 0x10B5), ("bgra8", 0x10B6)])
def test_an_image_of_the_application(compiled, application_library, format, order):
    text = f"{format},{NORMALISED}"
    application = OpenCL(application_library)
    picture = Picture(format, 90, 61)
    pixels = picture.planes[0].reshape(61, 90, 4)
    memory = application.picture(pixels, order)
    path = compiled(text, **ADRENO)
    with api.Model(path, opencl_library=application_library, **application.options) as model:
        image = Image(struct_size=ctypes.sizeof(Image), width=90, height=61, cl_memory=memory)
        assert distance(model, image, picture, text) < LEVEL / 50
        image.width = 91
        with pytest.raises(api.CallError, match="or an image2d of CL_RGBA or CL_BGRA"):
            set_image(model, 0, image)


KERNELS = """
__kernel void copy(__global const float* x, __global float* y) {}
__kernel void picture(__global float* x, __constant int* g, __global const uchar* p) {}
__kernel void picture_image(__global float* x, __constant int* g, __read_only image2d_t p) {}
"""


class HardwareBuffer(ctypes.Structure):
    """`fake_hardware_buffer`, which replaces Android's."""

    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("is_image", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
        ("bytes", ctypes.c_size_t),
        ("pixels", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def fake_plan(link) -> Path:
    """Return a library for the fake driver, whose output is the picture."""
    plan = Plan(KERNELS)
    x, y = plan.buffer(4 * 3 * 12 * 8), plan.buffer(4 * 3 * 12 * 8)
    plan.launch("copy", [x, y], (3 * 12 * 8,))
    plan.input("x", (1, 3, 8, 12), x)
    plan.output("y", (1, 3, 8, 12), y)
    plan.picture("picture", "picture_image")
    return link(plan)


ARM, QCOM = "cl_arm_import_memory", "cl_qcom_android_ahardwarebuffer_host_ptr"


@pytest.mark.parametrize(
    ("extension", "is_image"), [(ARM, True), (ARM, False), (QCOM, True), (None, True)]
)
def test_a_buffer_of_android(driver, fake_plan, extension, is_image):
    fake = Fake(driver)
    fake.set("EXTENSIONS", extension or "cl_khr_fp16")
    picture = Picture("rgba8", 12, 8)
    pixels = picture.planes[0]
    buffer = HardwareBuffer(0x48415244, is_image, 12, 8, pixels.nbytes, pixels.ctypes.data)
    image = Image(struct_size=ctypes.sizeof(Image), width=12, height=8)
    image.hardware_buffer = ctypes.addressof(buffer)
    try:
        with api.Model(fake_plan, opencl_library=driver) as model:
            if extension is None:
                with pytest.raises(api.CallError, match="AHardwareBuffer_lock") as caught:
                    set_image(model, 0, image)
                assert caught.value.status == api.UNSUPPORTED
                return
            set_image(model, 0, image)
            model.call("run")
            (got,) = model.get_output(0)
            wanted = pixels.reshape(8, 12, 4)[..., :3].transpose(2, 0, 1)
            np.testing.assert_array_equal(got, wanted)
            call = b"clImportMemoryARM" if extension == ARM else b"clCreateImage"
            fake.fake_reset()
            fake.fake_fail(call, ctypes.c_uint64(1), -6, False)
            with pytest.raises(api.CallError, match="Importing the AHardwareBuffer"):
                set_image(model, 0, image)
        assert not fake.violations
        assert not fake.live
    finally:
        fake.fake_fail(None, ctypes.c_uint64(0), 0, False)
        fake.set("EXTENSIONS", None)


def test_a_driver_that_fails_is_replaced(driver, link):
    picture = Picture("rgba8", 4, 4)
    plans = []
    for kernels, names in (
        (KERNELS, ("copy", "picture")),
        (" ", ("tvmflow_copy", "tvmflow_picture")),
    ):
        plans.append(Plan(kernels))
        x, y = plans[-1].buffer(4 * 48), plans[-1].buffer(4 * 48)
        plans[-1].launch(names[0], [x, y], (48,) if plans[-1].source == KERNELS else (1,))
        plans[-1].input("x", (1, 3, 4, 4), x)
        plans[-1].output("y", (1, 3, 4, 4), y)
        plans[-1].picture(names[1])
    library = link(plans[0], cpu=plans[1])
    fake = Fake(driver)
    wanted = picture.red_green_blue().transpose(2, 0, 1)[None]
    with api.Model(library, opencl_library=driver) as model:
        set_image(model, 0, picture.image())
        fake.fake_reset()
        fake.fake_fail(b"clEnqueueNDRangeKernel", ctypes.c_uint64(1), -5, True)
        with pytest.raises(api.CallError, match="the next call takes the CPU"):
            set_image(model, 0, picture.image())
        fake.fake_fail(None, ctypes.c_uint64(0), 0, False)
        with pytest.raises(api.CallError, match="'x' has not been set"):
            model.call("run")
        set_image(model, 0, picture.image())
        model.call("run")
        assert model.library.tvmflow_backend_used(model.handle) == CPU
        np.testing.assert_array_equal(model.get_output(0), wanted)


@pytest.mark.oclgrind
def test_oclgrind_finds_nothing(compiled, tmp_path):
    paths = [
        str(compiled(f"{format},fit={fit},{NORMALISED}", **backend))
        for format, fit, backend in (
            ("rgba8", "stretch", ADRENO),
            ("nv12", "crop", MALI),
            ("rgb8", "letterbox", HOST),
            ("yuv420", "crop", ADRENO),
        )
    ]
    log = tmp_path / "log"
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from support import standalone_api as api\n"
        "from support.pictures import Picture, image_info, set_image\n"
        "for path in sys.argv[1:]:\n"
        "    with api.Model(path, opencl_library=None) as model:\n"
        "        picture = Picture(image_info(model, 0)[0], 71, 23, (3, 1), 0, 2)\n"
        "        for rotation in (0, 90, 180, 270):\n"
        "            image = picture.image(rotation=rotation)\n"
        "            if len(picture.planes) == 2:\n"
        "                # Without the last byte.\n"
        "                image.bytes[1] = picture.planes[1].size - 2\n"
        "            set_image(model, 0, image)\n"
        "            model.call('run')\n"
        "        print('ran')\n"
    )
    command = ("oclgrind", "--data-races", "--check-api", "--log", log, sys.executable, script)
    environment = {"PYTHONPATH": Path(__file__).parents[2], "TVMFLOW_OPENCL_LIBRARY": ""}
    done = run(*command, *paths, status=None, **environment)
    assert done.stdout.split() == ["ran"] * 4, done.stderr
    assert not log.exists() or not log.read_text()


# -- Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["rgba8", "grey8", "nv21"])
def test_arrays_are_pictures(compiled, format):
    picture = Picture(format, 90, 62)
    array = np.concatenate(picture.planes)
    if format == "rgba8":
        array = array.reshape(62, 90, 4)
    with tvmflow.load(compiled(format, **ON_CPU)) as module:
        got = module.run({"x": array})["y"][0]
        wanted = expected(picture, ImageInput.parse("x", format), (WIDTH, HEIGHT), 3)
        np.testing.assert_allclose(got, wanted, atol=LEVEL / 255)
        x = np.random.default_rng(0).normal(size=(1, 3, HEIGHT, WIDTH)).astype(np.float32)
        np.testing.assert_array_equal(module.run({"x": x})["y"], x)
        with pytest.raises(InputError, match=f"of uint8, as {format} has it, got"):
            module.run({"x": array[..., None].astype(np.int32)[..., :1].reshape(62, -1)})


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_planes_in_python(compiled, backend):
    with tvmflow.load(compiled("yuv420", **backend)) as module:
        for format in CHROMA_FORMATS:
            picture = Picture(format, 91, 61, gaps=(3, 5), pixel_stride=3)
            planes = [plane[:, : size[1]] for plane, size in
                      zip(picture.planes, picture.sizes, strict=True)]  # fmt: skip
            if format in PLANAR:
                planes[1:] = [plane[:, ::3] for plane in planes[1:]]
            else:
                planes[1] = planes[1].reshape(31, 46, 2)
            spec = ImageInput.parse("x", "yuv420")
            got = module(tvmflow.Image(tuple(planes), format, rotation=90))[0][0]
            wanted = expected(picture, spec, (WIDTH, HEIGHT), 3, 90)
            np.testing.assert_allclose(got, wanted, atol=LEVEL / 255)
            # Views from right to left are copied.
            flipped = tuple(plane[:, ::-1] for plane in planes)
            again = module(tvmflow.Image(flipped, format))[0]
            copies = tuple(map(np.ascontiguousarray, flipped))
            np.testing.assert_array_equal(again, module(tvmflow.Image(copies, format))[0])
        with pytest.raises(InputError, match=r"expected an array \[height \* 3 / 2, width\]"):
            module(tvmflow.Image(tuple(planes[:2]), format))
        with pytest.raises(InputError, match="has the format 'yuv'; expected one of rgba8"):
            module(tvmflow.Image(planes[0], "yuv"))
        with pytest.raises(InputError, match="0, 90, 180 or 270"):
            module(tvmflow.Image(tuple(planes), format, rotation=-90))


def test_rows_with_gaps_in_python(compiled):
    picture = Picture("rgba8", 90, 61)
    array = picture.planes[0].reshape(61, 90, 4)
    with tvmflow.load(compiled("rgba8", **ON_CPU)) as module:
        for view in (array[3:50, 5:71], array[::-1], array[::2, ::3], array[..., ::-1]):
            got, wanted = (module(tvmflow.Image(v))[0] for v in (view, np.ascontiguousarray(view)))
            np.testing.assert_array_equal(got, wanted)
        bgra = np.ascontiguousarray(array[..., [2, 1, 0, 3]])
        np.testing.assert_array_equal(module(tvmflow.Image(bgra, "bgra8"))[0], module(array)[0])


def test_a_picture_for_an_input_that_takes_none(tmp_path):
    picture = tvmflow.Image(np.zeros((8, 8, 3), np.uint8))
    with (
        tvmflow.compile(network((1, 3, 8, 8)), format="standalone", target="llvm") as module,
        pytest.raises(InputError, match="'x' takes no pictures"),
    ):
        module(picture)


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"struct_size": 8}, "struct_size is sizeof"),
        ({"width": 0}, "1 to 32767 pixels a side, got 0x61"),
        ({"height": 40000}, "1 to 32767 pixels a side"),
        ({"rotation": 45}, "0, 90, 180 or 270 degrees, got 45"),
        ({"rotation": 360}, "0, 90, 180 or 270 degrees, got 360"),
        ({"strides": (359, 0)}, "a stride of at least 360 bytes for rows of 90 pixels of rgba8"),
        ({"bytes": (360 * 61 - 1, 0)}, "21960 bytes of plane 0 for 90x61 pixels.*got 21959"),
        ({"strides": (2**31, 0)}, "reach beyond 2 GiB"),
        ({"planes": (None, None)}, "got none"),
        ({"cl_memory": 64}, "got more"),
        ({"planes": (None, None), "cl_memory": 64}, "the network runs on the CPU"),
        ({"planes": (None, None), "hardware_buffer": 64}, "the network runs on the CPU"),
    ],
)
def test_pictures_that_are_refused(compiled, changes, text):
    picture = Picture("rgba8", 90, 61)
    image = picture.image()
    for name, value in changes.items():
        field = getattr(image, name)
        setattr(image, name, type(field)(*value) if isinstance(value, tuple) else value)
    with api.Model(compiled("rgba8", **ON_CPU)) as model:
        set_image(model, 0, picture.image())
        model.call("run")
        before = model.get_output(0)
        with pytest.raises(api.CallError, match=text):
            set_image(model, 0, image)
        # The earlier content is still there.
        model.call("run")
        np.testing.assert_array_equal(model.get_output(0), before)


def test_calls_that_are_refused(compiled):
    picture = Picture("rgba8", 90, 61)
    with api.Model(compiled("rgba8,size=640x480", **ON_CPU)) as model:
        assert image_info(model, 0) == ("rgba8", 640, 480)
        with pytest.raises(api.CallError, match="640x480 pixels, as the library was compiled"):
            set_image(model, 0, picture.image())
        with pytest.raises(api.CallError, match="there is no input 1"):
            set_image(model, 1, picture.image())
        with pytest.raises(api.CallError, match="got NULL"):
            set_image(model, 0, None)
        with pytest.raises(api.CallError, match="struct_size is sizeof"):
            model.call("image_input", 0, None)
        model.call("start")
        with pytest.raises(api.CallError, match="call tvmflow_wait first"):
            set_image(model, 0, picture.image())


def test_an_input_that_takes_none(tmp_path):
    module = tvmflow.compile(network((1, 3, 8, 8)), format="standalone", target="llvm")
    with api.Model(module.save(tmp_path / "libnet.so")) as model:
        for call in (lambda: set_image(model, 0, Picture("rgba8", 8, 8).image()),
                     lambda: image_info(model, 0), lambda: place(model, 0)):  # fmt: skip
            with pytest.raises(api.CallError, match=r"takes no pictures.*--image-input x=rgba8"):
                call()
    module.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rgb", "the format is 'rgb'; expected one of rgba8"),
        ("rgba8,fill=crop", "there is no key 'fill', only size, fit"),
        ("rgba8,crop", "'crop' has no key"),
        ("rgba8,fit=crop,fit=crop", "fit is there twice"),
        ("rgba8,fit=cut", "fit is 'cut'; expected one of stretch, crop, letterbox"),
        ("rgba8,size=640", "size is '640'; expected any, or width and height"),
        ("rgba8,size=0x5", "size is '0x5'"),
        ("rgba8,size=40000x5", "each up to 32767"),
        ("rgba8,mean=1,2", "mean is '1,2'; expected one number, or three"),
        ("rgba8,mean=nan", "mean is 'nan'"),
        ("rgba8,std=0", "std is '0'; it must not be zero"),
        ("rgba8,rotate=45", "rotate is '45'"),
        ("rgba8,pad=256", "pad is '256'; expected a level from 0 to 255"),
        ("rgba8,pad=1,2,3", "pad is '1,2,3'"),
        ("rgba8,range=2", "range is '2'"),
        ("rgba8,luma=jpeg", "luma is 'jpeg'"),
    ],
)
def test_texts_that_are_refused(text, message):
    with pytest.raises(CompileError, match=message):
        ImageInput.parse("x", text)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 3, 8, 8), {"image_inputs": {"y": "rgba8"}}, "has no input 'y' for pictures; it has x"),
        ((2, 3, 8, 8), {}, "cannot take pictures: expected one picture of 1 or 3 channels"),
        ((1, 4, 8, 8), {}, "cannot take pictures"),
        ((1, 3, 8), {}, "cannot take pictures"),
        ((1, 1, 8, 8), {"image_inputs": {"x": "rgba8,mean=1,2,3"}}, "the network one channel"),
        ((1, 3, 8, 8), {"results": {"y": "boxes:xyxy"}}, "cannot be boxes: expected float32"),
        ((1, 3, 8, 8), {"results": {"y": "boxes:xxyy"}}, "or boxes:FORM or boxes:FORM:unit"),
        (
            (1, 3, 8, 8),
            {"results": {"y": "boxes:xyxy"}, "image_inputs": {}},
            "but the network takes 0 pictures",
        ),
        ((1, 3, 8, 8), {"format": "tvm"}, "asked for in the format tvm"),
        ((1, 3, 8, 8), {"keep_layout": {"x": "nchw4c"}}, "which takes pictures, was to be kept"),
    ],
)
def test_networks_that_are_refused(shape, options, message):
    options = {"format": "standalone", "target": "llvm", "image_inputs": {"x": "rgba8"}, **options}
    with pytest.raises(TvmflowError, match=message):
        tvmflow.compile(network(shape), **options)
