"""Binaries of a library's programs, as the driver of a device of this machine builds them.

They are what the library itself keeps in a cache folder, so that they are complete also where
drivers compile at the first launch.  Each start has a process of its own: what a driver keeps in
memory does not shorten the second one, and a driver that crashes or hangs ends nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ArtifactError, DeviceError, TvmflowError
from ...runtime.json_types import JsonObject
from ...runtime.process import Worker, WorkerLostError
from ..artifact import SIDECAR_SUFFIX
from ..files import place_copy, require_space, staging
from ..weights import dtype_from_name
from .loaded import StandaloneModule
from .programs import OWNER, SOURCE, Program, from_folder, read, sidecar_path, update
from .read import EncodedPlan, find_plan, find_weights, is_standalone

#: Compiling a network may take minutes on a phone; a driver that takes longer hangs.
START_LIMIT_S = 900.0
#: Room that there must be for what a driver builds and keeps; a network's binaries take megabytes.
ROOM_BYTES = 16 << 20
#: Where drivers keep what they have built: without these a first start is none.
_DRIVER_CACHES = (
    "POCL_CACHE_DIR",
    "NEO_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MESA_SHADER_CACHE_DIR",
    "XDG_CACHE_HOME",
)


@dataclass(frozen=True)
class Precompiled:
    """A device's binaries of a library's programs."""

    device: str
    platform: str
    driver: str
    #: From opening the library to the first outputs, without any binaries and with these.
    without_ms: float
    with_ms: float
    programs: tuple[Program, ...]

    @property
    def binary_bytes(self) -> int:
        """Size of all binaries."""
        return sum(len(program.binary) for program in self.programs)


@dataclass(frozen=True)
class Source:
    """A library that binaries can be added to."""

    library: Path
    plan: EncodedPlan
    weights_file: Path | None  #: The weights beside the library, if they are not inside.

    @classmethod
    def open(cls, library: Path) -> Source:
        """Read a library, and see that a file can be written beside it.

        An `ArtifactError` says that it is no whole standalone library, or that the file beside it
        is of another kind or cannot be written.
        """
        # First: it says why a file cannot be read.
        plan = find_plan(library)
        if plan is None or not is_standalone(library):
            raise ArtifactError(
                f"Precompiling {library} failed: a standalone library was expected, but it is none "
                "that this tvmflow reads.",
                remedy="Compile the model with `format=standalone`; other modules are not compiled "
                "by the device's driver ahead of time.",
            )
        if plan.metadata.get("target") != "opencl":
            raise ArtifactError(
                f"Precompiling {library} failed: kernels for OpenCL were expected, but it has the "
                "CPU's only, which are compiled already.",
                remedy="Ship the library as it is.",
            )
        weights = find_weights(library, plan).path
        with staging(sidecar_path(library)) as stage:
            # A driver that cannot keep what it builds says that the kernels are wrong.
            require_space(stage, ROOM_BYTES)
            if sidecar_path(library).exists():
                read(sidecar_path(library))
        return cls(library, plan, None if weights == library else weights)


def precompile(source: Source, device_index: int) -> Precompiled:
    """Start a library twice on a device: without binaries, and with those that this gave.

    A `DeviceError` says that there is none, or its driver fails, gives no binaries or refuses them.
    """
    library = source.library
    with staging(sidecar_path(library)) as stage:
        # Elsewhere than the library: what lies beside that would be taken.
        copy = stage / library.name
        place_copy(library.resolve(), copy)
        if source.weights_file is not None:
            copy.with_name(copy.name + SIDECAR_SUFFIX).symlink_to(source.weights_file.resolve())
        folder = stage / "cache"
        first = {"TVMFLOW_CACHE": "1", "TVMFLOW_CACHE_DIR": str(folder)}
        without_ms, about = _start(copy, device_index, first, stage / "first")
        device = about["device"]
        description = {
            "device": device["name"],
            "driver": device["driver"],
            "platform": f"{device['platform']} {device['version']}",
            SOURCE: source.plan.source_digest,
        }
        programs = tuple(from_folder(folder / "standalone", description))
        if not programs:
            raise DeviceError(
                f"Precompiling {library} on {device['name']} failed: binaries were expected, but "
                f"its driver gave none{': ' + about['cache'] if about['cache'] else ''}.",
                remedy="Update the driver; without binaries each start compiles the kernels.",
            )
        update(sidecar_path(copy), programs)
        with_ms, again = _start(copy, device_index, {"TVMFLOW_CACHE": "0"}, stage / "second")
    if again["programs_shipped"] != len(programs):
        raise DeviceError(
            f"Precompiling {library} on {device['name']} failed: its driver took "
            f"{again['programs_shipped']} of the {len(programs)} binaries that it had built.",
            remedy="Update the driver; with this one each start compiles the kernels.",
        )
    owner = {name: description[name] for name in OWNER}
    return Precompiled(**owner, without_ms=without_ms, with_ms=with_ms, programs=programs)


def _start(
    library: Path, index: int, settings: Mapping[str, str], driver_cache: Path
) -> tuple[float, JsonObject]:
    driver_cache.mkdir()
    environment = {**dict.fromkeys(_DRIVER_CACHES, str(driver_cache)), **settings}
    with closing(Worker(environment)) as worker:
        try:
            result = worker.call(start, library, index, timeout_s=START_LIMIT_S)
        except (WorkerLostError, RuntimeError) as error:
            raise DeviceError(
                f"Starting {library.name} failed: {error}.",
                remedy="Update the device's driver, or choose another device.",
            ) from error
    if isinstance(result, TvmflowError):
        # Its folder is gone when the message is read.
        result.message = result.message.replace(str(library), library.name)
        raise result
    ms, about = result
    return ms, about


def start(library: Path, device_index: int) -> tuple[float, JsonObject] | TvmflowError:
    """Open a library and run it once, in a process of its own; return the time in ms.

    Errors are returned, as a worker raises only their text.
    """
    began = time.perf_counter()
    try:
        # Where it may take the CPU instead, it keeps its choice next to the binaries, and would
        # take the CPU without saying what is wrong with the device.
        with StandaloneModule(library, device_index=device_index, backend="opencl") as module:
            inputs = module.inputs
            module.run(
                [np.zeros(i.logical_shape or i.shape, dtype_from_name(i.dtype)) for i in inputs]
            )
            return (time.perf_counter() - began) * 1e3, module.describe()
    except TvmflowError as error:
        return error
