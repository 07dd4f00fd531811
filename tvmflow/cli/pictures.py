"""Pictures from files, for networks that take them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .._versions import install_command
from ..errors import InputError
from ..ir.pictures import CHROMA_FORMATS, Image
from ..runtime.regular_files import open_file

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as Opened

    from ..module.module import Module

#: Pillow's modes for formats of one plane.
_MODES = {"rgba8": "RGBA", "bgra8": "RGBA", "rgb8": "RGB", "grey8": "L"}


def read_pictures(texts: list[str] | None, module: Module) -> dict[str, Image]:
    """Read ``NAME=FILE`` options, or ``FILE`` for the only input that takes pictures.

    Raises `InputError` if an input takes no pictures, a file is not a picture, or Pillow is
    missing.
    """
    if not texts:
        return {}
    from ..module.standalone.loaded import StandaloneModule

    takes = module.picture_inputs if isinstance(module, StandaloneModule) else {}
    found: dict[str, Image] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        # A file name may contain an equals sign.
        is_named = equals and before in {info.name for info in module.inputs}
        name, file = (before, after) if is_named else ("", text)
        if not name and len(takes) == 1:
            (name,) = takes
        if name not in takes:
            what = (
                f"the input {name!r} takes none" if name else f"{len(takes)} inputs take pictures"
            )
            raise InputError(
                f"The picture {file} was given for {module.path}, of which {what}.",
                remedy="Give NAME=FILE, or compile the network with `--standalone --image-input "
                f"{name or 'NAME'}=rgb8`.",
            )
        if name in found:
            raise typer.BadParameter(f"the picture of {name!r} is given twice.")
        found[name] = _read(Path(file), *takes[name])
    return found


def _read(path: Path, format: str, luma: str) -> Image:
    """Read a file in the format that a network takes, rotated as the file's metadata says."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise InputError(
            f"Reading the picture {path} failed: Pillow, which decodes it, is not installed.",
            remedy=install_command("pictures"),
        ) from error
    try:
        with open_file(path) as file, PIL.Image.open(file) as opened:
            upright = PIL.ImageOps.exif_transpose(opened) or opened
            return Image(*_pixels(upright, format, luma))
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"Reading the picture {path} failed: {reason}.",
            remedy="Give a file that Pillow reads, such as JPEG or PNG.",
        ) from error


def _pixels(
    opened: Opened, format: str, luma: str
) -> tuple[np.ndarray | tuple[np.ndarray, ...], str]:
    """Return pixels and their format."""
    import numpy as np

    if format not in CHROMA_FORMATS:
        array = np.asarray(opened.convert(_MODES[format]))
        return array[..., [2, 1, 0, 3]] if format == "bgra8" else array, format
    levels = np.asarray(opened.convert("RGB").convert("YCbCr")).astype(np.float32)
    if luma == "video":
        zero, first = np.array([0, 128, 128], "f4"), np.array([16, 128, 128], "f4")
        levels = first + (levels - zero) * np.array([219 / 255, 224 / 255, 224 / 255], "f4")
    height, width = levels.shape[:2]
    # Each chroma sample is the mean of four pixels; the last pixels of odd sides count twice.
    even = np.pad(levels[..., 1:], ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    chroma = even.reshape(-(-height // 2), 2, -(-width // 2), 2, 2).mean((1, 3))
    planes = (levels[..., 0], chroma[..., 0], chroma[..., 1])
    return tuple(np.rint(plane).astype(np.uint8) for plane in planes), "yuv420"
