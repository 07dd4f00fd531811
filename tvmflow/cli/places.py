"""Modules on this machine, or on a device that ``--on`` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import parse_shapes

if TYPE_CHECKING:
    from ..agent.device import RemoteDevice
    from ..agent.module import AgentModule
    from ..module.module import Module

#: Suffix of models, which are compiled for the device.
MODEL = ".onnx"


@dataclass(frozen=True)
class Place:
    """The options ``--on`` and ``--secret-file``."""

    on: str | None  #: ``None`` is this machine, without an agent.
    secret_file: Path | None

    def connect(self) -> AbstractContextManager[RemoteDevice]:
        """Connect to the device."""
        from ..agent.device import connect

        assert self.on is not None
        return connect(self.on, secret_file=self.secret_file)


@contextmanager
def loaded(
    path: Path, place: Place, device_index: int, check_weights: bool, backend: str
) -> Iterator[Module]:
    """Load a module for as long as the context lasts; other parameters as for `tvmflow.load`."""
    if place.on is None:
        from ..module.load import load

        options = {"check_weights": check_weights, "backend": backend}
        with load(path, device=device_index, **options) as module:  # type: ignore[arg-type]
            yield module
        return
    options = {"device_index": device_index, "check_weights": check_weights, "backend": backend}
    with place.connect() as device, device.load(path, **options) as module:  # type: ignore[arg-type]
        yield module


@dataclass(frozen=True)
class Requested:
    """Options for a library or a model on a device of ``--on``."""

    target: str | None
    device: str | None
    dtype: str | None
    shape: list[str]
    device_index: int
    backend: str
    check_weights: bool = True

    def options(self) -> dict[str, Any]:
        """Return the options of a compilation that were given."""
        of = {"target": self.target, "device": self.device, "dtype": self.dtype}
        return {name: value for name, value in of.items() if value is not None}


@dataclass(frozen=True)
class Opened:
    """A library on a device of ``--on``."""

    module: AgentModule
    #: Shape that is left to choose.
    shape: list[str]
    #: The same network for TVM's runtime, whose functions describe the kernels.
    functions_of: Module | None


@contextmanager
def opened_there(
    file: Path, place: Place, requested: Requested, *, describes: bool = False
) -> Iterator[Opened]:
    """Open a library, or a model that is compiled for the device, there.

    With ``describes`` a model is compiled a second time, for TVM's runtime.
    """
    from ..compiler.pipeline import compile
    from ..compiler.remote import options_for

    with ExitStack() as stack:
        device = stack.enter_context(place.connect())
        path, shape = file, requested.shape
        functions_of: Module | None = None
        if file.suffix == MODEL:
            options = options_for(
                device,
                device_index=requested.device_index,
                shapes=parse_shapes(shape),
                **requested.options(),
            )
            path, shape = stack.enter_context(compile(file, options=options)).path, []
            if describes:
                of_tvm = replace(options, format="tvm", fallback=None)
                functions_of = stack.enter_context(compile(file, options=of_tvm))
        module = device.load(
            path,
            device_index=requested.device_index,
            check_weights=requested.check_weights,
            backend=requested.backend,
        )
        with module:
            yield Opened(module, shape, functions_of)
