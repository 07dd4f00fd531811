"""Arrays in files: ``.npz`` and ``.npy``, read with clear errors, written whole."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from ..deploy.module import Module
    from ..tensors import TensorInfo


def read_inputs(path: Path, infos: tuple[TensorInfo, ...]) -> dict[str, Any]:
    """Read a network's inputs from a file.

    Parameters
    ----------
    path
        An ``.npz`` file with one array an input, or an ``.npy`` file for a network
        with one input.
    infos
        The network's inputs.

    Raises
    ------
    InputError
        If the file is missing or damaged, or does not suit the network.
    """
    import numpy as np

    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            if len(infos) != 1:
                raise InputError(
                    f"{path} holds one array, but the network has {len(infos)} inputs: "
                    f"{', '.join(info.name for info in infos)}.",
                    remedy="Save them by name with numpy.savez.",
                )
            return {infos[0].name: content}
        with content:
            return {name: content[name] for name in content.files}
    except FileNotFoundError:
        raise InputError(
            f"Reading the inputs {path} failed: there is no such file.",
            remedy="Write it with numpy.savez, or use --random-seed 0 for random inputs.",
        ) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        # NumPy's own message would speak of pickles, which are not read here.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else None
        raise InputError(
            f"Reading the inputs {path} failed: {reason or 'it is no .npz or .npy file'}.",
            remedy="Write it with numpy.savez(file, name=array), without Python objects.",
        ) from error


def choose_inputs(path: Path | None, seed: int | None, module: Module) -> dict[str, Any]:
    """Return the inputs of a file, and random ones for those it lacks if there is a seed."""
    from ..deploy.samples import random_inputs

    values = read_inputs(path, module.inputs) if path is not None else {}
    if seed is not None:
        values |= random_inputs(module, seed, without=values)
    return values


def write_outputs(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name as an ``.npz`` file; it appears complete or not at all.

    Raises
    ------
    ArtifactError
        If the file cannot be written.
    """
    import numpy as np

    from ..deploy.files import publish, staging

    with staging(path) as stage:
        temporary = stage / path.name
        with open(temporary, "wb") as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            # Written by hand: numpy.savez takes names as keywords, of which `file` is its own.
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        publish({temporary: path})
