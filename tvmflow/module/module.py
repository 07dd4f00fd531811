"""Compiled networks, which can be run, measured, inspected and saved.

>>> module = tvmflow.load("mobilenet_v2.so")
>>> module.inputs
(TensorInfo(name='input', shape=(1, 3, 224, 224), dtype='float32'),)
>>> (scores,) = module(image)
>>> scores = module(input=image)["scores"]
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, SupportsIndex

from .. import _versions
from ..devices.host import Host
from ..errors import ArtifactError, InputError
from ..ir.tensors import TensorInfo
from ..ir.units import counted
from ..journal.frames import MAGIC
from ..runtime.forks import RunLock, use
from ..runtime.json_types import JsonObject
from ..runtime.shared_library import FileIdentity
from . import elf
from .artifact import SIDECAR_SUFFIX, Artifact, is_sidecar, remove_stale_sidecar
from .files import Kind, begins_with, place_copy, publish, staging
from .html import module_html
from .run_time_sizes import RunTimeSizes
from .shapes import Interface, find, run_any
from .standalone.programs import SUFFIX as PROGRAMS_SUFFIX
from .standalone.read import is_standalone
from .values import Outputs, order_inputs, order_outputs, plain, put

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

    from .kernel_time import KernelTime
    from .session import Session


#: Attributes of modules that only other packages of tvmflow use; `dir` does not list them.
_INTERNAL = frozenset({
    "artifact", "call_at_end", "network_outputs", "prepare", "programs_path", "read_functions",
    "run_network", "weights_path",
})  # fmt: skip


class Running(Protocol):
    """A module's network, loaded onto its device."""

    upload_ms: float | None  #: Time in which the weights were copied to the device, if known.

    def run(
        self, values: Sequence[object], *, on_device: bool, into: Sequence[np.ndarray | None] = ()
    ) -> Outputs:
        """Run the network once; with ``on_device`` the outputs stay on the device.

        ``into`` has, for each output, an array that the result is written to, or ``None``.
        """
        ...

    def profile(self, values: Sequence[object], runs: int) -> list[KernelTime]:
        """Measure every kernel launch."""
        ...


class Module(ABC):
    """A compiled network in a module file.

    `tvmflow.bench` and `tvmflow.profile` measure a module, and `tvmflow.verify` compares its
    results with ONNX Runtime's.

    Nothing is loaded before the first call (or `open`), so that a module for
    another machine can be inspected and saved.  Calls from several threads are
    safe and run one after the other; a process waits for running calls before it forks.
    """

    def __init__(
        self,
        path: Path,
        file: FileIdentity,
        metadata: JsonObject,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        device_index: int,
        weights_path: Path | None,
        whole: tuple[Module, int] | None = None,
    ) -> None:
        self.path = path  #: The module file.
        self._file = file
        self.weights_path = weights_path  #: The sidecar with the weights, if there is one.
        #: The file's metadata: target, device, versions, kernels, options and more.
        self.metadata = metadata
        #: Name, shape and dtype of every input and output, in order, for the first shape.
        self.inputs = inputs
        # Cuts outputs with a bounded dynamic size; further outputs hold these sizes.
        self._sizes = RunTimeSizes.of(metadata, outputs)
        self.outputs = self._sizes.outputs
        self.network_outputs = outputs  #: All outputs of `run_network`, those sizes included.
        self.target = str(metadata["target"])  #: ``opencl``, ``cuda`` or ``llvm``.
        self.device_index = device_index  #: Index of its device among the target's.
        #: The module of which this is one shape, and the shape's number.
        self._whole = whole
        self._running: Running | None = None
        #: The loaded networks of further shapes.
        self._others: list[Running] = []
        self._lock: RunLock = RunLock() if whole is None else whole[0]._lock
        self._cleanup: weakref.finalize[[], Module] | None = None

    def call_at_end(self, cleanup: Callable[[], object]) -> None:
        """Call a function once, when the module is closed or collected, or the process ends.

        It must not hold a reference to the module.  Children that are forked do not call it.
        """
        process = os.getpid()
        self._cleanup = weakref.finalize(
            self, lambda: cleanup() if os.getpid() == process else None
        )

    @property
    def programs_path(self) -> Path | None:
        """Return the file of devices' binaries; only standalone libraries can have one."""
        return None

    @property
    def variants(self) -> tuple[Module, ...]:
        """Return a view of the module for each of its shapes; itself if there is only one.

        They share library, weights and the device's memory with the whole; closing one closes all.
        """
        return (self,)

    @cached_property
    def _shapes(self) -> tuple[Interface, ...]:
        """Return the interfaces of all shapes; cached, because `variants` makes new modules."""
        return tuple(Interface(each.inputs, each.outputs) for each in self.variants)

    @property
    def upload_ms(self) -> float | None:
        """Return the time in which the weights were copied to the device; ``None`` if unknown."""
        if self._whole is not None:
            return self._whole[0].upload_ms
        return None if self._running is None else self._running.upload_ms

    def read_functions(self) -> bytes:
        """Return the scheduled primary functions that the file carries, packed; empty without."""
        return b""

    def device_sources(self) -> list[str]:
        """Return the source of the kernels that the file has."""
        return []

    @abstractmethod
    def _open(self) -> Running:
        """Load the library, and copy the weights to the device."""

    def _open_variant(self, first: Running, number: int) -> Running:
        """Load another shape after the first one."""
        raise NotImplementedError

    def prepare(self) -> Self:
        """Import the packages that `open` needs, so that its time can be measured without them."""
        return self

    def open(self) -> Self:
        """Load the library and copy the weights to the device, unless that is done already.

        Raises `ArtifactError` if the module is for another machine, or its code or weights are
        damaged, and `DeviceError` if there is no device for its target.
        """
        with self._lock:
            self._opened()
        return self

    def __call__(self, /, *inputs: object, output: object = None, **named: object) -> Outputs:
        """Run the network on host or device data, by default into new NumPy arrays.

        Parameters
        ----------
        inputs, named
            NumPy arrays, DLPack tensors or lists, in the network's order or by name.  A
            single mapping has names and values (for names that are no Python identifiers).
        output
            Form of the results, as for `run`; or an input, if the network has one of this name.

        Raises `InputError` if an input, or an array for a result, is missing or has the wrong name,
        shape or dtype; `DeviceError` if there is no device, or it refuses; and `KernelBuildError`
        if a kernel does not build.
        """
        if output is None:
            output = "numpy"
        elif any(info.name == "output" for info in self.inputs):
            named["output"], output = output, "numpy"
        if len(inputs) == 1 and not named and isinstance(inputs[0], Mapping):
            return self.run(inputs[0], output=output)
        return self.run(order_inputs(self.inputs, inputs, named), output=output)

    def run(
        self,
        inputs: Mapping[str, object] | Sequence[object],
        *,
        output: object = "numpy",
        pad_batch: bool = False,
    ) -> Outputs:
        """Run the network, as a call does, with a choice of the results' form.

        A module with several shapes accepts each of them.  Another batch runs in parts if samples
        are independent of each other.

        Parameters
        ----------
        inputs
            Values by name, or in the network's order.
        output
            ``"numpy"`` for arrays, ``"dlpack"`` for tensors that stay on the device, which any
            library takes with ``from_dlpack``.  Those of bounded dynamic size then have all
            elements of their bound, and ``NAME.count`` next to them.  Or arrays that results are
            written into, which saves their allocation in each call: by name (for some outputs or
            all), in order, or the array of a single output.  They need the shape and dtype that
            `outputs` states.
        pad_batch
            Whether a batch that was not compiled may be padded to the next larger compiled one.

        Raises `InputError` if a size exceeds the bound that was given for it.
        """
        if not isinstance(output, str):
            arrays = order_outputs(self.outputs, output)
            given = {info.name: a for info, a in zip(self.outputs, arrays, strict=True)}
            return self._sizes.cut(self.run_network(inputs, pad_batch=pad_batch, into=given))
        if output not in ("numpy", "dlpack"):
            raise InputError(
                f"Outputs can be 'numpy' or 'dlpack', not {output!r}.",
                remedy="Choose one of them, or give arrays that results are written into.",
            )
        results = self.run_network(inputs, on_device=output == "dlpack", pad_batch=pad_batch)
        return self._sizes.cut(results) if output == "numpy" else results

    def run_network(
        self,
        inputs: Mapping[str, object] | Sequence[object],
        *,
        on_device: bool = False,
        pad_batch: bool = False,
        into: Mapping[str, np.ndarray | None] | None = None,
    ) -> Outputs:
        """Run the network and return all of its outputs, without cutting them.

        ``into`` has arrays that results are written into, by name.
        """
        values, shapes = self._in_order(inputs), self._shapes

        def run_shape(number: int, given: Sequence[object]) -> Outputs:
            return self._opened(number).run(given, on_device=on_device)

        with self._lock:
            if len(shapes) > 1:
                batch = self.metadata.get("batch")
                found = run_any(
                    shapes, values, batch, run_shape, on_device=on_device, pad=pad_batch
                )
            elif into is None:
                return run_shape(0, values)
            else:
                wanted = [into.get(info.name) for info in self.network_outputs]
                return self._opened().run(values, on_device=on_device, into=wanted)
        if into is None:
            return found
        return Outputs(found.names, [put(n, a, into.get(n)) for n, a in found.items()])

    def profile(
        self, inputs: Mapping[str, object] | Sequence[object], runs: int = 10
    ) -> list[KernelTime]:
        """Measure every kernel launch of a network's run on the device, in launch order.

        ``runs`` is the number of measured runs; an unmeasured one precedes them.
        """
        values, shapes = self._in_order(inputs), self._shapes
        with self._lock:
            # Values that fit no shape raise an error as inputs of the first shape.
            number = find(shapes, values) if len(shapes) > 1 else 0
            return self._opened(number or 0).profile(values, runs)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the module and its sidecars: weights, devices' binaries.

        Parameters
        ----------
        path
            The file to write.  An existing module is replaced; where it is open, it still runs.
        overwrite
            Whether an existing file that is no module may be replaced, such as the model.

        Raises `ArtifactError`, and changes no file, if a file that is no module would be replaced
        without ``overwrite``, or a file cannot be written.
        """
        final = Path(path)
        self._require_file("Saving")
        if final.exists() and final.samefile(self.path):
            return final
        # By suffix of the module's file name; the module itself comes last.
        sources = {SIDECAR_SUFFIX: self.weights_path, PROGRAMS_SUFFIX: self.programs_path}
        if not overwrite:
            written = [suffix for suffix, source in sources.items() if source is not None]
            check_overwritten(final, written)
        with staging(final) as stage:
            files: dict[Path, Path] = {}
            for suffix, source in {**sources, "": self.path}.items():
                if source is not None:
                    copy = stage / (final.name + suffix)
                    place_copy(source, copy)
                    files[copy] = final.with_name(copy.name)
            publish(files)
        if self.weights_path is None:
            remove_stale_sidecar(final.with_name(final.name + SIDECAR_SUFFIX))
        return final

    def close(self) -> None:
        """Unload the library, free the device's memory and remove a temporary file."""
        if self._whole is not None:
            self._whole[0].close()
            return
        with self._lock:
            self._others.clear()
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
        further = len(self._shapes) - 1
        more = f", and {counted(further, 'other shape')}" if further else ""
        about = f"{self.metadata['name']} ({self.target})"
        return f"<tvmflow.Module {about}: {inputs} -> {outputs}{more}>"

    def __dir__(self) -> list[str]:
        """Return names for users, without private ones and those for other packages."""
        names = super().__dir__()
        return [n for n in names if n not in _INTERNAL and (n[0] != "_" or n[:2] == "__")]

    def _repr_html_(self) -> str:
        """Return HTML of inputs, outputs, target and the memory plan, for notebooks."""
        return module_html(self.metadata, self.inputs, self.outputs, len(self.variants))

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise ArtifactError(
            f"Pickling or copying the module {self.metadata['name']} failed: it has a device's "
            "memory and code that is loaded.",
            remedy="Pass its path on (`save` writes it somewhere), and load that there with "
            "`tvmflow.load`.",
        )

    def _in_order(self, inputs: Mapping[str, object] | Sequence[object]) -> list[object]:
        args, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
        values = order_inputs(self.inputs, args, named)
        return list(map(plain, self.inputs, values))

    def _require_file(self, attempt: str) -> None:
        try:
            found = FileIdentity.of(self.path)
        except OSError as error:
            raise ArtifactError(
                f"{attempt} the module {self.metadata['name']} failed: its file {self.path} "
                "is gone, or the module was closed.",
                remedy="Load it again from where it was saved, or compile the model again.",
            ) from error
        if found != self._file:
            raise ArtifactError(
                f"{attempt} the module {self.metadata['name']} failed: its file {self.path} was "
                "replaced or changed after it was loaded.",
                remedy="Load it again. A module that is opened (`open`) before its file is "
                "replaced goes on with the old one.",
            )

    def _require_host(self, architecture: str) -> None:
        """Raise `ArtifactError` if the host code is for another machine."""
        host, native = str(self.metadata["host"]), Host.native()
        if host != native.triple or architecture != native.architecture:
            raise ArtifactError(
                f"Running the module {self.path} failed: its host code is for {host}, "
                f"but this machine is {native.triple}.",
                remedy=f"Run it on such a machine, or compile with `host={native.triple}`. Saving "
                "it does not need it open: call `save` without `with`.",
            )

    def _check_process(self) -> None:
        """Raise an error if only the parent of this forked process can use the device's driver."""
        if self.target != "llvm":
            use(self.target, f"Running {self.path}")

    def _opened(self, number: int = 0) -> Running:
        if self._whole is not None:
            whole, number = self._whole
            return whole._opened(number)
        self._check_process()
        if self._running is None:
            self._require_file("Running")
            first = self._open()
            # The file must not have been replaced before or while it was opened.
            self._require_file("Running")
            further = range(1, len(self._shapes))
            self._others = [self._open_variant(first, other) for other in further]
            self._running = first
        return self._others[number - 1] if number else self._running


def check_overwritten(path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise `ArtifactError` if writing a module would replace files of another kind.

    ``suffixes`` are the suffixes of the sidecars that are written next to the module.
    """
    for suffix in ("", *suffixes):
        _KINDS[suffix].check(
            Path(f"{path}{suffix}"),
            remedy="Name another file, or allow it with `overwrite=True`.",
        )


def _is_module(path: Path) -> bool:
    try:
        return elf.META in elf.read_library(path).sections or is_standalone(path)
    except elf.ElfError:
        return False


#: Kinds of a module's files, by their suffix after the module's file name.
_KINDS = {
    "": Kind("a module of tvmflow", _is_module),
    SIDECAR_SUFFIX: Kind("the weights of a module", is_sidecar),
    PROGRAMS_SUFFIX: Kind("a file of devices' binaries", begins_with(MAGIC)),
}


class RelaxModule(Module):
    """A network that TVM's runtime runs; raises `ArtifactError` if another TVM compiled it."""

    def __init__(
        self,
        artifact: Artifact,
        *,
        device_index: int = 0,
        check_weights: bool = True,
        whole: tuple[RelaxModule, int] | None = None,
    ):
        _check_versions(artifact)
        described = artifact.metadata, artifact.inputs, artifact.outputs
        super().__init__(
            artifact.path, artifact.file, *described, device_index, artifact.sidecar, whole
        )
        self.artifact = artifact  #: The module file's content, without the library.
        self._check_weights = check_weights

    @property
    def variants(self) -> tuple[Module, ...]:
        """Return a view of the module for each of its shapes; itself if there is only one."""
        found = self.artifact.variants
        if self._whole is not None or len(found) == 1:
            return (self,)
        options = {"device_index": self.device_index, "check_weights": self._check_weights}
        return tuple(
            RelaxModule(each, **options, whole=(self, number))  # type: ignore[arg-type]
            for number, each in enumerate(found)
        )

    def prepare(self) -> Self:
        """Import TVM."""
        import tvm  # noqa: F401

        return self

    def read_functions(self) -> bytes:
        """Return the scheduled primary functions that the file carries, packed; empty without."""
        return self.artifact.read_functions()

    def device_sources(self) -> list[str]:
        """Return the source of the kernels; none for ``llvm``."""
        from .functions import sources_in
        from .session import Session

        with self._lock:
            session = self._opened()
            assert isinstance(session, Session)
            return sources_in(session.library)

    def _open(self) -> Session:
        from .session import Session

        self._require_host(self.artifact.architecture)
        _check_cpu(self.artifact)
        self.artifact.check_library()
        if self._check_weights:
            self.artifact.check_weights()
        variants = self.artifact.variants
        sizes = self.artifact.input_bytes if len(variants) > 1 else None
        return Session(variants[0], self.device_index, sizes)

    def _open_variant(self, first: Running, number: int) -> Running:
        from .session import Session

        assert isinstance(first, Session)
        return first.of_shape(self.artifact.variants[number])


def _check_versions(artifact: Artifact) -> None:
    """Raise `ArtifactError` for a module of another TVM, whose VM has another program format."""
    required = _versions.REQUIRED_TVM
    for key, package in (("tvm", "apache-tvm"), ("tvm_ffi", "apache-tvm-ffi")):
        found = artifact.metadata.get(key)
        if found != required[package]:
            raise ArtifactError(
                f"Loading the module {artifact.path} failed: it was compiled with {package} "
                f"{found}, but {required[package]} is installed.",
                remedy="Compile the model again with this tvmflow.",
            )


def _check_cpu(artifact: Artifact) -> None:
    """Raise `ArtifactError` if this CPU lacks instructions that the module's code may use."""
    cpu = artifact.metadata.get("cpu")
    if not cpu:
        return
    from tvm.target.codegen import llvm_get_system_cpu

    from ..devices.target import features_of

    here = str(llvm_get_system_cpu())
    if cpu == here:
        return
    needed, present = features_of(cpu), features_of(here)
    if needed <= present:
        return
    raise ArtifactError(
        f"Running the module {artifact.path} failed: it was compiled for the CPU {cpu}, and this "
        f"one ({here}) lacks {', '.join(sorted(map(str, needed - present)))}.",
        remedy=f"Compile on this machine, or with `host={Host.native().triple}` for any such CPU.",
    )
