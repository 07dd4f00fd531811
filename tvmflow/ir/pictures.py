"""The option `image_inputs`: pictures that an application passes as inputs.

Their kernels are in `tvmflow.module.standalone.pictures`; this file is imported with the options,
so it needs neither TVM nor NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import CompileError

#: Formats of pictures, in the order of `tvmflow_image_format`.
IMAGE_FORMATS = ("rgba8", "bgra8", "rgb8", "grey8", "nv12", "nv21", "yuv420", "i420", "yv12")
#: Formats with a luma plane and chroma at half its size; one kernel takes all of them.
CHROMA_FORMATS = IMAGE_FORMATS[4:]
#: How a picture fills the network's input, in the order of `tf_fit`.
FITS = ("stretch", "crop", "letterbox")
#: Largest width and height, as in `native/standalone/plan.h`.
LARGEST_PICTURE = 32767
_EXAMPLE = (
    "Write a format with what differs from the defaults behind it, such as "
    "rgba8,fit=letterbox,mean=0.485,0.456,0.406,std=0.229,0.224,0.225."
)


@dataclass(frozen=True)
class ImageInput:
    """Format and size of the pictures of an input, and how their levels are normalised.

    The network gets ``(level / range - mean) / std``.
    """

    format: str
    size: tuple[int, int] | None = None  #: Width and height in memory; ``None``: any.
    fit: str = "stretch"
    rotate: int = 0  #: Degrees clockwise, besides the picture's own rotation.
    mean: tuple[float, ...] = (0.0,)  #: Of all channels, or of each in the network's order.
    std: tuple[float, ...] = (1.0,)
    range: float = 255.0  #: 255: levels are divided by it; 1: they are from 0 to 255.
    order: str = "rgb"  #: Order of the network's channels, or ``bgr``.
    pad: float = 114.0  #: Level around a picture with ``fit=letterbox``.
    luma: str = "full"  #: Range of luma levels; with ``video`` they begin at 16.

    @classmethod
    def parse(cls, name: str, text: str) -> ImageInput:
        """Read ``FORMAT,KEY=VALUE,...``; values with commas are lists.

        Raises `CompileError` for an unknown key or value.
        """
        pieces = [piece.strip() for piece in text.split(",")]
        given: dict[str, list[str]] = {}
        last = ""
        for piece in pieces[1:]:
            key, equals, value = piece.partition("=")
            if equals and key in given:
                raise refuse_picture(name, f"{key} is there twice")
            if equals:
                last, given[key] = key, [value]
            elif last:
                given[last].append(piece)
            else:
                raise refuse_picture(name, f"{piece!r} has no key")
        values: dict[str, Any] = {"format": _choice(name, "the format", pieces[0], IMAGE_FORMATS)}
        for key, texts in given.items():
            if key not in _KEYS:
                raise refuse_picture(name, f"there is no key {key!r}, only {', '.join(_KEYS)}")
            values[key] = _KEYS[key](name, key, texts)
        return cls(**values)

    def levels(self, channels: int) -> tuple[list[float], list[float]]:
        """Return ``scale`` and ``shift`` per channel: the input is ``level * scale + shift``."""
        pairs = [(v * channels)[:channels] for v in (self.mean, self.std)]
        scale = [1 / (self.range * std) for std in pairs[1]]
        return scale, [-mean / std for mean, std in zip(*pairs, strict=True)]


@dataclass(frozen=True)
class Image:
    """A picture for an input of a standalone library, with its format and rotation.

    ``pixels`` is ``[height, width, channels]`` of uint8 (``grey8`` also ``[height, width]``).  For
    formats with chroma at half the size it is one array ``[height * 3 / 2, width]`` with all
    planes, or a tuple of planes: luma ``[height, width]``, then pairs ``[height / 2, width / 2,
    2]`` (``nv12``, ``nv21``) or two planes ``[height / 2, width / 2]``.  Planes may be views with
    any strides.
    """

    pixels: Any
    #: One of `IMAGE_FORMATS` that the library accepts; ``None`` for the compiled one.
    format: str | None = None
    rotation: int = 0  #: Degrees clockwise until it is upright.


def refuse_picture(name: str, why: str) -> CompileError:
    """Return the error for a wrong picture option of an input."""
    return CompileError(f"The pictures of input {name!r}: {why}.", remedy=_EXAMPLE)


def _choice(name: str, what: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise refuse_picture(name, f"{what} is {value!r}; expected one of {', '.join(known)}")
    return value


def _chosen(*known: str) -> Callable[[str, str, list[str]], str]:
    return lambda name, key, texts: _choice(name, key, ",".join(texts), known)


def _numbers(name: str, key: str, texts: list[str]) -> tuple[float, ...]:
    try:
        values = tuple(map(float, texts))
    except ValueError:
        values = ()
    # Sums of larger values could overflow single precision.
    if len(values) not in (1, 3) or not all(abs(v) < 1e37 for v in values):
        raise refuse_picture(name, f"{key} is {','.join(texts)!r}; expected one number, or three")
    if key == "std" and not all(abs(v) > 1e-30 for v in values):
        raise refuse_picture(name, f"{key} is {','.join(texts)!r}; it must not be zero")
    return values


def _level(name: str, key: str, texts: list[str]) -> float:
    (value,) = _numbers(name, key, texts)[:1] if len(texts) == 1 else (-1.0,)
    if not 0 <= value <= 255:
        raise refuse_picture(name, f"{key} is {','.join(texts)!r}; expected a level from 0 to 255")
    return value


def _size(name: str, key: str, texts: list[str]) -> tuple[int, int] | None:
    text = ",".join(texts)
    if text == "any":
        return None
    width, x, height = text.partition("x")
    if x and width.isdecimal() and height.isdecimal():
        size = int(width), int(height)
        if all(0 < extent <= LARGEST_PICTURE for extent in size):
            return size
    raise refuse_picture(
        name, f"{key} is {text!r}; expected any, or width and height as in 640x480, "
        f"each up to {LARGEST_PICTURE}",
    )  # fmt: skip


_KEYS: dict[str, Callable[[str, str, list[str]], object]] = {
    "size": _size,
    "fit": _chosen(*FITS),
    "rotate": lambda *given: int(_chosen("0", "90", "180", "270")(*given)),
    "mean": _numbers,
    "std": _numbers,
    "range": lambda *given: float(_chosen("1", "255")(*given)),
    "order": _chosen("rgb", "bgr"),
    "pad": _level,
    "luma": _chosen("full", "video"),
}
