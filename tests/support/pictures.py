"""Pictures for libraries that take them, and the expected input of the network."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np

from support import standalone_api as api
from tvmflow.ir.pictures import IMAGE_FORMATS, ImageInput
from tvmflow.module.standalone.binding import ImageData as Image


class ImageInfo(ctypes.Structure):
    """`tvmflow_image_info`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("format", ctypes.c_uint32),
        ("width", ctypes.c_uint32),
        ("height", ctypes.c_uint32),
    )


#: Formats with separate planes of luma, U and V.
PLANAR = ("yuv420", "i420", "yv12")


@dataclass
class Picture:
    """Random pixels of a format, with gaps between the rows of its planes."""

    format: str
    width: int
    height: int
    gaps: tuple[int, int] = (0, 0)
    seed: int = 0
    pixel_stride: int = 1  #: Bytes between samples of chroma in separate planes.
    planes: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        lanes = {"rgba8": 4, "bgra8": 4, "rgb8": 3}.get(self.format, 1)
        sizes = [(self.height, self.width * lanes)]
        half = ((self.height + 1) // 2, (self.width + 1) // 2)
        if self.format in ("nv12", "nv21"):
            sizes.append((half[0], 2 * half[1]))
        if self.format in PLANAR:
            sizes += [(half[0], (half[1] - 1) * self.pixel_stride + 1)] * 2
        self.sizes = sizes
        # Smooth parts and noise, including the extremes.
        self.planes = []
        for (rows, row_bytes), gap in zip(sizes, (*self.gaps, 2 * self.gaps[1]), strict=False):
            waves = 127 + 127 * np.sin(np.add.outer(np.arange(rows) / 5, np.arange(row_bytes) / 7))
            noise = random.integers(0, 256, (rows, row_bytes))
            pixels = np.where(random.random((rows, row_bytes)) < 0.5, waves, noise)
            plane = random.integers(0, 256, (rows, row_bytes + gap)).astype(np.uint8)
            plane[:, :row_bytes] = pixels
            self.planes.append(plane)

    def image(self, **changes: object) -> Image:
        """Return the structure for `tvmflow_set_image`; the picture must outlive its use."""
        found = Image(struct_size=ctypes.sizeof(Image), width=self.width, height=self.height)
        for i, plane in enumerate(self.planes):
            found.planes[i] = plane.ctypes.data
            found.strides[i] = plane.shape[1]
        if len(self.planes) == 3:
            found.pixel_strides[1] = found.pixel_strides[2] = self.pixel_stride
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    def red_green_blue(self, luma: str = "full") -> np.ndarray:
        """Return the levels ``[height, width, 3]`` in float64."""
        planes = [
            plane[:, : size[1]].astype(float)
            for plane, size in zip(self.planes, self.sizes, strict=True)
        ]
        if len(planes) > 1:
            if len(planes) == 2:
                pairs = planes[1].reshape(len(planes[1]), -1, 2)
            else:
                pairs = np.stack([plane[:, :: self.pixel_stride] for plane in planes[1:]], -1)
            if self.format in ("nv21", "yv12"):
                pairs = pairs[..., ::-1]
            pairs = pairs.repeat(2, 0).repeat(2, 1)[: self.height, : self.width] - 128
            y = planes[0]
            if luma == "video":
                y, pairs = (y - 16) * 255 / 219, pairs * 255 / 224
            u, v = pairs[..., 0], pairs[..., 1]
            parts = [y + 1.402 * v, y - 0.344136 * u - 0.714136 * v, y + 1.772 * u]
            return np.clip(np.stack(parts, -1), 0, 255)
        pixels = planes[0].reshape(self.height, self.width, -1)
        if self.format == "grey8":
            return pixels.repeat(3, -1)
        return pixels[..., 2::-1] if self.format == "bgra8" else pixels[..., :3]


def _weights(pixels: int, covered: int, origin: float, step: float) -> np.ndarray:
    """Return the weight of each picture pixel in each input pixel, ``[covered, pixels]``."""
    reach = max(step, 1.0)
    centers = origin + (np.arange(covered) + 0.5) * step
    distances = np.abs(np.arange(pixels) + 0.5 - centers[:, None]) / reach
    weights = np.maximum(1 - distances, 0)
    return weights / weights.sum(1, keepdims=True)


@dataclass
class Placed:
    """Placement of a picture in the input: pairs of columns and rows."""

    begin: list[int]
    covered: list[int]
    origin: list[float]
    step: list[float]


def placed(upright: tuple[int, int], size: tuple[int, int], fit: str) -> Placed:
    """Place an upright picture (width, height) in an input (width, height)."""
    steps = [a / b for a, b in zip(upright, size, strict=True)]
    covered, step = list(size), list(steps)
    if fit == "crop":
        step = [min(steps)] * 2
    if fit == "letterbox":
        covered = [
            min(max(int(a / max(steps) + 0.5), 1), s) for a, s in zip(upright, size, strict=True)
        ]
        step = [a / c for a, c in zip(upright, covered, strict=True)]
    begin = [(s - c) // 2 for s, c in zip(size, covered, strict=True)]
    origin = [(a - t * c) / 2 for a, t, c in zip(upright, step, covered, strict=True)]
    return Placed(begin, covered, origin, step)


def expected(
    picture: Picture, spec: ImageInput, size: tuple[int, int], channels: int, rotation: int = 0
) -> np.ndarray:
    """Return the network's input ``[channels, height, width]`` in float64."""
    levels = picture.red_green_blue(spec.luma)
    levels = np.rot90(levels, -((spec.rotate + rotation) // 90))
    where = placed((levels.shape[1], levels.shape[0]), size, spec.fit)
    columns, rows = (
        _weights(levels.shape[1 - i], where.covered[i], where.origin[i], where.step[i])
        for i in (0, 1)
    )
    inside = np.einsum("yi,ijc,xj->cyx", rows, levels, columns, optimize=True)
    whole = np.full((3, size[1], size[0]), spec.pad)
    x, y = where.begin
    whole[:, y : y + where.covered[1], x : x + where.covered[0]] = inside
    if channels == 1:
        weights = (1, 0, 0) if picture.format == "grey8" else (0.299, 0.587, 0.114)
        whole = np.einsum("c,cyx->yx", weights, whole)[None]
    elif spec.order == "bgr":
        whole = whole[::-1]
    mean, std = (np.array(v * channels)[:channels, None, None] for v in (spec.mean, spec.std))
    return (whole / spec.range - mean) / std


def set_image(model: api.Model, index: int, image: Image | None) -> None:
    """Call ``tvmflow_set_image``; a call that fails raises `CallError`."""
    model.call("set_image", index, None if image is None else ctypes.byref(image))


def image_info(model: api.Model, index: int) -> tuple[str, int, int]:
    """Return format, width and height from ``tvmflow_image_input``."""
    info = ImageInfo(struct_size=ctypes.sizeof(ImageInfo))
    model.call("image_input", index, ctypes.byref(info))
    return IMAGE_FORMATS[info.format], info.width, info.height


def place(model: api.Model, index: int) -> tuple[list[float], list[float]]:
    """Return scale and offset from ``tvmflow_image_place``."""
    scale, offset = (ctypes.c_double * 2)(), (ctypes.c_double * 2)()
    model.call("image_place", index, scale, offset)
    return list(scale), list(offset)
