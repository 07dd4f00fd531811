"""Loading of module files of both formats."""

from __future__ import annotations

import os
from typing import Protocol, runtime_checkable

from ..errors import TargetError
from .artifact import read_artifact
from .module import Module, RelaxModule
from .standalone.loaded import StandaloneModule
from .standalone.read import is_standalone


@runtime_checkable
class OtherMachine(Protocol):
    """A machine that runs modules for this one, such as `tvmflow.connect` returns."""

    def load(
        self, path: str | os.PathLike[str], *, check_weights: bool = True, backend: str = "auto"
    ) -> Module:
        """Return a module that runs there; parameters are those of `tvmflow.load`."""
        ...


def load(
    path: str | os.PathLike[str],
    *,
    device: int | OtherMachine = 0,
    check_weights: bool = True,
    backend: str = "auto",
) -> Module:
    """Open a module file that `Module.save` or ``tvmflow compile`` wrote.

    A library of ``tvmflow compile --standalone`` runs without TVM, which is not imported then.

    A module that is open when its file is replaced continues to use the old file; loading the path
    again returns the new one.  Files must be replaced by renaming, as `Module.save` does, never
    overwritten.

    Modules for ``llvm`` share as many threads as there are cores, or as the variables
    ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` say when the first of them is opened.

    Parameters
    ----------
    path
        The module file; large weights are in ``PATH.weights`` next to it.
    device
        Index of the device among those of the module's target, or a phone or board that
        `tvmflow.connect` returned.
    check_weights
        Whether opening the module compares its weights with their checksum; code is always
        compared.  For weights of several gigabytes this takes about as long as a first run.
    backend
        Backend of a standalone library that has kernels for both: ``opencl`` or ``cpu``; ``auto``
        is the CPU if no device's OpenCL can be used.

    Raises `ArtifactError` if there is no such file, it is damaged, or it was compiled with another
    version of TVM, and `TargetError` if it has no kernels for the backend.
    """
    if isinstance(device, OtherMachine):
        return device.load(path, check_weights=check_weights, backend=backend)
    if is_standalone(path):
        return StandaloneModule(
            path, device_index=device, check_weights=check_weights, backend=backend
        )
    artifact = read_artifact(path)
    if backend != "auto":
        raise TargetError(
            f"The backend {backend} was asked for of {path}, which is no standalone library.",
            remedy="Compile it with `format=standalone`, or leave `backend` out.",
        )
    return RelaxModule(artifact, device_index=device, check_weights=check_weights)
