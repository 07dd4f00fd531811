"""Arrays in ``.npz`` and ``.npy`` files: reading with clear errors, and atomic writing."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import InputError
from ..ir.limits import MOST_DIMENSIONS
from ..runtime.regular_files import open_file

if TYPE_CHECKING:
    import numpy as np

    from ..ir.tensors import TensorInfo
    from ..module.module import Module

#: First bytes of zip files.
_ZIP_BEGIN = b"PK"
_ARRAY_BEGIN = b"\x93NUMPY"


class _DamagedError(ValueError):
    """Raised for damaged content of an array's file; the text is the reason."""


#: Most parts of a batch; a user may run as many as fit in memory.
_MOST_PARTS = 1024


def read_inputs(
    path: Path, infos: tuple[TensorInfo, ...], most: int | None = None
) -> dict[str, np.ndarray]:
    """Read a network's inputs from an ``.npz`` file, or from an ``.npy`` file for one input.

    Arrays may have at most ``most`` elements; the default is the size of the largest input.
    Raises `InputError` if the file is missing or damaged, or does not fit the network.
    """
    # A blocked layout may have four times the elements.
    most = most or 4 * max((info.elements for info in infos), default=1)
    try:
        with open_file(path) as file:
            begin = file.read(len(_ARRAY_BEGIN))
            if begin.startswith(_ZIP_BEGIN):
                return _read_archive(file, most)
            if begin != _ARRAY_BEGIN:
                raise _DamagedError("it is no .npz or .npy file")
            if len(infos) != 1:
                raise InputError(
                    f"{path} holds one array, but the network has {len(infos)} inputs: "
                    f"{', '.join(info.name for info in infos)}.",
                    remedy="Save them by name with numpy.savez.",
                )
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            return {infos[0].name: _read_array(file, size, most)}
    except FileNotFoundError:
        raise InputError(
            f"Reading the inputs {path} failed: there is no such file.",
            remedy="Write it with numpy.savez, or use --random-seed 0 for random inputs.",
        ) from None
    except (InputError, MemoryError):
        raise
    except Exception as error:  # from NumPy, zipfile, zlib or Python's parser
        reason = str(error) if isinstance(error, _DamagedError) else getattr(error, "strerror", "")
        raise InputError(
            f"Reading the inputs {path} failed: {reason or 'it is no .npz or .npy file'}.",
            remedy="Write it with numpy.savez(file, name=array), without Python objects.",
        ) from error


def _read_archive(file: IO[bytes], most: int) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as content:
                arrays[name] = _read_array(content, member.file_size, most, f"{name!r} ")
    return arrays


def _read_array(file: IO[bytes], size: int, most: int, name: str = "") -> np.ndarray:
    """Read an array of at most ``most`` elements, without trusting its header.

    NumPy's own function allocates memory for any shape that a header claims.
    """
    import numpy as np

    form = np.lib.format
    version = form.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise _DamagedError(f"its array {name}is of the format {version}, expected 1.0 or 2.0")
    read_header = form.read_array_header_1_0 if version[0] == 1 else form.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    if dtype.kind not in "biufV" or dtype.hasobject or dtype.names:
        raise _DamagedError(f"its array {name}has the dtype {dtype}, expected numbers")
    needed = prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or len(shape) > MOST_DIMENSIONS or needed > size:
        raise _DamagedError(
            f"its array {name}needs {needed} bytes for {dtype}{list(shape)}, but there are {size}"
        )
    if prod(shape) > most:
        raise _DamagedError(
            f"its array {name}has the shape {list(shape)}, which is more than any of the network's "
            "inputs takes"
        )
    content = file.read(needed)
    if len(content) != needed:
        raise _DamagedError(f"its array {name}is cut short")
    # For bytes, NumPy would return a read-only array.
    array = np.frombuffer(bytearray(content), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def choose_inputs(
    path: Path | None, seed: int | None, module: Module, pictures: list[str] | None = None
) -> dict[str, Any]:
    """Return inputs from a file, from pictures, and with a seed random ones for the rest."""
    from ..module.samples import random_inputs
    from .pictures import read_pictures

    shapes = module.variants
    largest = max((i.elements for one in shapes for i in one.inputs), default=1)
    most = 4 * largest * (_MOST_PARTS if len(shapes) > 1 else 1)
    values: dict[str, Any] = {}
    if path is not None:
        values |= read_inputs(path, module.inputs, most)
    values |= read_pictures(pictures, module)
    if seed is not None:
        values |= random_inputs(module, seed, without=values)
    return values


def write_outputs(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to an ``.npz`` file, which appears complete or not at all.

    Raises `ArtifactError` if the file cannot be written.
    """
    import numpy as np

    from ..module.files import ZIP, publish, staging

    with staging(path, ZIP) as stage:
        temporary = stage / path.name
        with open(temporary, "wb") as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            # Not with numpy.savez: it takes names as keywords, and has a parameter `file` of its
            # own.
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        publish({temporary: path})
