"""A compiled network: run, measured, inspected and saved.

>>> module = tvmflow.load("mobilenet_v2.so")
>>> module.inputs
(TensorInfo(name='input', shape=(1, 3, 224, 224), dtype='float32'),)
>>> (scores,) = module(image)
>>> scores = module(input=image)["scores"]
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..devices.host import Host
from ..errors import ArtifactError, InputError
from ..ir.tensors import TensorInfo
from .files import place_copy, publish, staging
from .reader import SIDECAR_SUFFIX, read_artifact
from .standalone.recognise import is_standalone
from .values import Outputs, order_inputs
from .writer import remove_stale_sidecar

if TYPE_CHECKING:
    from typing_extensions import Self

    from .kernel_time import KernelTime


class Running(Protocol):
    """A module that was loaded onto its device."""

    #: How long bringing the weights to the device took, where it is known.
    upload_ms: float | None

    def run(self, values: Sequence[Any], *, on_device: bool) -> Outputs:
        """Run the network once; ``on_device`` leaves the outputs there."""
        ...

    def profile(self, values: Sequence[Any], runs: int) -> list[KernelTime]:
        """Measure every kernel launch."""
        ...


class Module(ABC):
    """A compiled network in a module file.

    Nothing is loaded before the first call (or `open`), so that a module for
    another machine can be inspected and saved.  Calls from several threads are
    safe and run one after the other.
    """

    def __init__(self, device_index: int) -> None:
        #: Which of the target's devices runs it.
        self.device_index = device_index
        self._running: Running | None = None
        self._lock = threading.Lock()
        self._cleanup: weakref.finalize[[], Module] | None = None

    @classmethod
    def from_temporary(
        cls, path: str | os.PathLike[str], cleanup: Callable[[], object], *, device_index: int = 0
    ) -> Module:
        """Take over a module file that nobody else keeps.

        Parameters
        ----------
        path
            The file, as `tvmflow.compile` wrote it.
        cleanup
            Removes it; called once, when the module is closed, collected, or the
            process ends.  It must not hold a reference to the module.
        """
        module = load(path, device=device_index)
        module._cleanup = weakref.finalize(module, cleanup)
        return module

    @property
    @abstractmethod
    def path(self) -> Path:
        """The module file."""

    @property
    @abstractmethod
    def weights_path(self) -> Path | None:
        """The weights beside the module file, if they are not inside."""

    @property
    def programs_path(self) -> Path | None:
        """Devices' binaries beside the module file: only standalone libraries have any."""
        return None

    @property
    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """Target, device, versions, kernels, options: what the file says of itself."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of every input, in order."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of every output, in order."""

    @property
    def upload_ms(self) -> float | None:
        """How long bringing the weights to the device took; ``None`` where it is not known."""
        return None if self._running is None else self._running.upload_ms

    def read_functions(self) -> bytes | None:
        """The scheduled primary functions that the file carries, packed; ``None`` without any."""
        return None

    def device_sources(self) -> list[str]:
        """Source of the kernels, where the file holds any."""
        return []

    @abstractmethod
    def _open(self) -> Running:
        """Load the library, and bring the weights to the device."""

    def prepare(self) -> Self:
        """Import what opening needs: for whoever measures how long opening takes."""
        return self

    @property
    def target(self) -> str:
        """``opencl``, ``cuda`` or ``llvm``."""
        return str(self.metadata["target"])

    def open(self) -> Self:
        """Load the library, and bring the weights to the device; once, then nothing.

        Returns
        -------
        Module
            Itself.

        Raises
        ------
        ArtifactError
            If the module is for another machine, or its code or weights are damaged.
        DeviceError
            If there is no device for its target.
        """
        with self._lock:
            self._opened()
        return self

    def __call__(self, /, *inputs: Any, **named: Any) -> Outputs:
        """Run the network on host or device data and return NumPy arrays.

        Parameters
        ----------
        inputs, named
            NumPy arrays or DLPack tensors, in the network's order or by name.  A
            single mapping is taken as names and values (for names that are no
            Python identifiers).

        Returns
        -------
        Outputs
            Arrays by position and by name.

        Raises
        ------
        InputError
            If an input is missing or has the wrong name, shape or dtype.
        DeviceError
            If there is no device, or it refuses; `KernelBuildError` if a kernel
            does not build.
        """
        if len(inputs) == 1 and not named and isinstance(inputs[0], Mapping):
            return self.run(inputs[0])
        values = order_inputs(self.inputs, inputs, named)
        with self._lock:
            return self._opened().run(values, on_device=False)

    def run(self, inputs: Mapping[str, Any] | Sequence[Any], *, output: str = "numpy") -> Outputs:
        """Run the network; like a call, with the choice of what comes back.

        Parameters
        ----------
        inputs
            Values by name, or in the network's order.
        output
            ``"numpy"`` for arrays, ``"dlpack"`` for tensors on the device, not
            copied, that any library takes with ``from_dlpack``.
        """
        if output not in ("numpy", "dlpack"):
            raise InputError(
                f"Outputs can be 'numpy' or 'dlpack', not {output!r}.",
                remedy="Choose one of them.",
            )
        if isinstance(inputs, Mapping):
            values = order_inputs(self.inputs, (), inputs)
        else:
            values = order_inputs(self.inputs, inputs, {})
        with self._lock:
            return self._opened().run(values, on_device=output == "dlpack")

    def profile(
        self, inputs: Mapping[str, Any] | Sequence[Any], runs: int = 10
    ) -> list[KernelTime]:
        """Measure every kernel of a run on the device.

        Parameters
        ----------
        inputs
            As for `run`.
        runs
            How many runs to measure, after one that is not.

        Returns
        -------
        list of KernelTime
            One a launch, in launch order.
        """
        if isinstance(inputs, Mapping):
            values = order_inputs(self.inputs, (), inputs)
        else:
            values = order_inputs(self.inputs, inputs, {})
        with self._lock:
            return self._opened().profile(values, runs)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the module, and what lies beside it: weights, devices' binaries.

        Returns
        -------
        Path
            The module file.

        Raises
        ------
        ArtifactError
            If a file cannot be written; nothing is left then.
        """
        final = Path(path)
        self._require_file("Saving")
        if final.exists() and final.samefile(self.path):
            return final
        with staging(final) as stage:
            files: dict[Path, Path] = {}
            final_sidecar = final.with_name(final.name + SIDECAR_SUFFIX)
            if self.weights_path is not None:
                files[stage / final_sidecar.name] = final_sidecar
                place_copy(self.weights_path, stage / final_sidecar.name)
            if (programs := self.programs_path) is not None:
                # Behind the name of the module's file, as beside this one.
                name = final.name + programs.name.removeprefix(self.path.name)
                files[stage / name] = final.with_name(name)
                place_copy(programs, stage / name)
            files[stage / final.name] = final
            place_copy(self.path, stage / final.name)
            publish(files)
        if self.weights_path is None:
            remove_stale_sidecar(final_sidecar)
        return final

    def close(self) -> None:
        """Unload the library, free the device's memory and remove a temporary file."""
        with self._lock:
            self._running = None
            if self._cleanup is not None:
                self._cleanup()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        return f"<tvmflow.Module {self.metadata['name']} ({self.target}): {inputs} -> {outputs}>"

    def _require_file(self, attempt: str) -> None:
        if not self.path.exists():
            raise ArtifactError(
                f"{attempt} the module {self.metadata['name']} failed: its file {self.path} "
                "is gone, or the module was closed.",
                remedy="Load it again from where it was saved, or compile the model again.",
            )

    def _require_host(self, architecture: str) -> None:
        """Refuse to run code that is for another machine than this one."""
        host, native = str(self.metadata["host"]), Host.native()
        if host != native.triple or architecture != native.architecture:
            raise ArtifactError(
                f"Running the module {self.path} failed: its host code is for {host}, "
                f"but this machine is {native.triple}.",
                remedy=f"Run it on such a machine, or compile with `host={native.triple}`. Saving "
                "it does not need it open: call `save` without `with`.",
            )

    def _opened(self) -> Running:
        if self._running is None:
            self._require_file("Running")
            self._running = self._open()
        return self._running


def load(path: str | os.PathLike[str], *, device: int = 0, check_weights: bool = True) -> Module:
    """Open a module file that `Module.save` or ``tvmflow compile`` wrote.

    A library of ``tvmflow compile --standalone`` runs without TVM, which is not imported then.

    Parameters
    ----------
    path
        The module file; large weights lie beside it as ``PATH.weights``.
    device
        Index of the device among those of the module's target.
    check_weights
        Whether opening the module compares its weights with their checksum; code is always
        compared.  That reads all of them: several gigabytes take about as long as a first run.

    Raises
    ------
    ArtifactError
        If there is no such file, it is damaged, or it was compiled with another
        version of TVM.
    """
    # Not at the top: both derive from the class above.
    if is_standalone(path):
        from .standalone.loaded import StandaloneModule

        return StandaloneModule(path, device_index=device, check_weights=check_weights)
    from .relax import RelaxModule

    return RelaxModule(read_artifact(path), device_index=device, check_weights=check_weights)
