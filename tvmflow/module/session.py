"""Sessions: a module that TVM's virtual machine runs on its device."""

from __future__ import annotations

import copy
import itertools
import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..errors import ArtifactError, DeviceError, InputError
from ..ir.scope import is_half
from ..ir.tensors import TensorInfo, dtype_from_name
from ..runtime import plugin
from ..runtime.devices import FP16_EXTENSION, opencl_devices
from ..runtime.plugin import no_device_remedy, translate, translated
from ..runtime.shared_library import OpenLibrary
from ..runtime.threads import share_threads
from .artifact import Artifact
from .blocked_layout import from_image, stored_as, to_blocked, to_image
from .call_checks import call_checks, validate
from .kernel_time import KernelTime, Launch, kernel_times
from .values import (
    Outputs,
    as_array,
    check_input,
    check_output,
    from_dlpack,
    is_shareable,
    is_tensor,
    put,
    writable_alias,
)
from .weights import ALIGN_BYTES, release_pages

#: TVM's device type for each target.
DEVICES = {"llvm": "cpu", "opencl": "opencl", "cuda": "cuda"}


class Session:
    """A module's library loaded, the weights on the device, and buffers for the inputs.

    Raises `ArtifactError` if TVM cannot load the library, and `DeviceError` if there is no such
    device, or it lacks an extension that the kernels need.
    """

    def __init__(
        self, artifact: Artifact, device_index: int, input_bytes: Sequence[int] | None = None
    ):
        """Open a module; ``input_bytes`` are sizes of input buffers that all shapes share."""
        self.target = str(artifact.metadata["target"])
        if self.target not in DEVICES:
            raise ArtifactError(
                f"Running {artifact.path} failed: its target {self.target!r} is unknown.",
                remedy="Compile the model again with this tvmflow.",
            )
        self.device = find_device(self.target, device_index, f"Running {artifact.path}")
        _check_extensions(artifact, device_index)
        self.on_host = self.target == "llvm"
        self._input_bytes = input_bytes
        self._staging: dict[int, tvm_ffi.Tensor] = {}
        self._uploaded: dict[str, tvm_ffi.Tensor] = {}
        with self.errors(f"Loading {artifact.path}"):
            self.library = _load(artifact.path, share=self.on_host)
            self._machine = self.new_machine()
            self._begin(artifact)

    def of_shape(self, artifact: Artifact) -> Session:
        """Return a session for another shape, which shares library, weights and buffers."""
        other = copy.copy(self)
        with self.errors(f"Loading {artifact.path}"):
            other._begin(artifact)
        return other

    def _begin(self, artifact: Artifact) -> None:
        """Set the state of one shape: its entry function, weights and inputs."""
        self.artifact, self.inputs = artifact, artifact.inputs
        self.entry = self._machine[self.entry_name]
        self._names = tuple(info.name for info in artifact.outputs)
        self._dtypes = tuple(dtype_from_name(info.dtype) for info in self.inputs)
        scopes = artifact.metadata.get("weight_scopes", {})
        started = time.perf_counter()
        for name, array in artifact.weights.items():
            if name not in self._uploaded:
                self._uploaded[name] = self._upload(array, scopes.get(name))
        taken = artifact.metadata.get("weight_names", artifact.weights)
        self.weights = tuple(self._uploaded[name] for name in taken)
        self.upload_ms: float | None = (time.perf_counter() - started) * 1e3
        self._staged: list[tvm_ffi.Tensor | None] = [None] * len(self.inputs)
        self._checks = call_checks(artifact.metadata)

    @property
    def entry_name(self) -> str:
        """Return the name of the function that runs the network."""
        return str(self.artifact.metadata.get("entry", "main"))

    def new_machine(self) -> tvm.relax.VirtualMachine:
        """Return a new virtual machine for the library and the device."""
        return tvm.relax.VirtualMachine(self.library, [self.device])

    def errors(self, attempt: str) -> AbstractContextManager[None]:
        """Translate errors of TVM and the plug-in into errors of tvmflow."""
        return translated(attempt, self.target)

    def run(
        self, values: Sequence[object], *, on_device: bool, into: Sequence[np.ndarray | None] = ()
    ) -> Outputs:
        """Run the network once; with ``on_device`` return tensors on the device, not arrays.

        ``into`` has, for each output, an array that the result is copied to, or ``None``.
        """
        arguments = self.bring(values, reuse=not on_device)
        try:
            results = self.entry(*arguments, *self.weights)
            if isinstance(results, tvm.runtime.Tensor):
                results = (results,)
            if on_device:
                self.device.sync()
                return Outputs(self._names, results)
            infos = self.artifact.outputs
            given = into or (None,) * len(infos)
            arrays = map(self._to_host, infos, results, given)
            return Outputs(self._names, arrays)
        except Exception as error:
            # As `translated` does, without the cost of a context manager in every run.
            if (ours := translate(error, f"Running {self.artifact.path}", self.target)) is not None:
                raise ours from error
            raise

    def profile(self, values: Sequence[object], runs: int) -> list[KernelTime]:
        """Measure every kernel launch, in order; an unmeasured run precedes the measured ones.

        Raises `DeviceError` if the device does not report launches, or they are one CUDA graph.
        """
        if self.artifact.metadata.get("options", {}).get("cuda_graph"):
            raise DeviceError(
                f"Measuring kernels of {self.artifact.path} failed: they are launched as one CUDA "
                "graph.",
                remedy="Compile without `cuda_graph`; the kernels are the same.",
            )
        self.run(values, on_device=False)
        measure = _profile_events if self.target == "opencl" else _profile_calls
        return measure(self, values, max(1, runs))

    def bring(self, values: Sequence[object], *, reuse: bool) -> list[tvm_ffi.Tensor]:
        """Check the inputs, given in order, and copy them to the device.

        With ``reuse``, every call copies into the same device buffers.  Results that stay on the
        device need new buffers, since they may share memory with an input.
        """
        pairs = list(zip(self.inputs, values, strict=True))
        brought = [
            (self._bring_plain if info.layout is None else self._bring_blocked)(index, value, reuse)
            for index, (info, value) in enumerate(pairs)
        ]
        for check in self._checks:
            validate(check, {info.name: value for info, value in pairs if info.layout is None})
        return brought

    def _bring_plain(self, index: int, value: Any, reuse: bool) -> tvm_ffi.Tensor:
        info = self.inputs[index]
        if is_tensor(value):
            return self._bring_tensor(index, value, reuse)
        fits = isinstance(value, np.ndarray) and value.shape == info.shape
        if not fits or value.dtype != self._dtypes[index]:
            value = as_array(info, value)
        if self.on_host and is_shareable(value):
            return tvm_ffi.from_dlpack(value)
        buffer = self._buffer(index, reuse)
        if self.on_host:
            np.copyto(np.from_dlpack(buffer), value)
            return buffer
        return buffer.copyfrom(value)

    def _bring_blocked(self, index: int, value: object, reuse: bool) -> tvm_ffi.Tensor:
        """Copy a blocked input, a tensor in the kernels' form or an array, to the device."""
        info = self.inputs[index]
        if is_tensor(value):
            tensor = from_dlpack(info.name, value)
            # The plug-in's description of the tensor's image; empty for a buffer.
            storage = self.target == "opencl" and tvm_ffi.get_global_func("tvmflow.opencl.storage")
            found, wanted = str(storage(tensor)) if storage else "", stored_as(info)
            fits = tuple(tensor.shape) == info.shape and found == wanted
            if tensor.device == self.device and fits:
                return self._bring_tensor(index, tensor, reuse)
            if found:
                raise InputError(
                    f"The input {info.name!r} is in an image of {found} texels, but the network "
                    f"takes {f'one of {wanted}' if wanted else 'a buffer'}.",
                    remedy="`tvmflow inspect` shows image and scope of each input.",
                )
            value = tensor.numpy()
        array = to_blocked(info, np.asarray(value))
        if info.scope is None:
            return self._bring_plain(index, array, reuse)
        image = to_image(info, as_array(info, array))
        return self._buffer(index, reuse).copyfrom(image)

    def _bring_tensor(self, index: int, value: object, reuse: bool) -> tvm_ffi.Tensor:
        info = self.inputs[index]
        tensor = from_dlpack(info.name, value)
        check_input(info, tuple(tensor.shape), str(tensor.dtype))
        if tensor.device == self.device and _is_aligned(value):
            return tensor
        buffer = self._buffer(index, reuse)
        with self.errors(f"Copying the input {info.name!r} to the device"):
            tensor.copyto(buffer)
        return buffer

    def _buffer(self, index: int, reuse: bool) -> tvm_ffi.Tensor:
        info = self.inputs[index]
        buffer = self._staged[index] if reuse else None
        if buffer is None:
            with self.errors(f"Reserving memory for the input {info.name!r}"):
                if reuse and info.scope is None and self._input_bytes is not None:
                    buffer = self._shared_buffer(index, info, self._input_bytes[index])
                else:
                    buffer = tvm.runtime.empty(
                        info.shape, info.dtype, self.device, mem_scope=info.scope
                    )
            if reuse:
                self._staged[index] = buffer
        return buffer

    def _shared_buffer(self, index: int, info: TensorInfo, size: int) -> tvm_ffi.Tensor:
        """Return a view of the beginning of a buffer that this input has in all shapes."""
        if index not in self._staging:
            self._staging[index] = tvm.runtime.empty((size,), "uint8", self.device)
        return self._staging[index]._create_view(info.shape, info.dtype)

    def _upload(self, array: np.ndarray, scope: str | None) -> tvm_ffi.Tensor:
        """Share a mapped weight with the host's kernels, or copy it to the device.

        ``scope`` is the memory scope of a weight that kernels read as a texture.
        """
        aligned = array.__array_interface__["data"][0] % ALIGN_BYTES == 0
        if self.on_host and aligned and array.size and array.dtype.name != "bfloat16":
            return tvm_ffi.from_dlpack(writable_alias(array))
        if scope is not None and is_half(scope):
            # The file and the device store it in 16 bits, but TVM has it as a tensor of fp32.
            array = array.astype(np.float32)
        tensor = tvm.runtime.empty(array.shape, array.dtype.name, self.device, mem_scope=scope)
        if array.size:
            tensor.copyfrom(array)
        release_pages(array)
        return tensor

    def _to_host(
        self, info: TensorInfo, tensor: tvm_ffi.Tensor, into: np.ndarray | None
    ) -> np.ndarray:
        """Copy a result into a given array or a new one."""
        array: np.ndarray
        if self.on_host:
            # Copy also on the host: the result may be a constant or an input of the network.
            array = np.from_dlpack(tensor)
            return array.copy() if into is None else put(info.name, array, into)
        if into is not None and info.layout is None and into.flags.c_contiguous:
            check_output(info.name, into, tuple(tensor.shape), str(tensor.dtype))
            if into.dtype.name != "bfloat16":  # NumPy cannot pass bfloat16 through DLPack.
                tensor.copyto(tvm_ffi.from_dlpack(into))
                return into
        return put(info.name, from_image(info, tensor.numpy()), into)


def _load(path: Path, *, share: bool) -> tvm.runtime.Module:
    """Load a library with TVM; with ``share`` its loops run on the plug-in's threads."""
    # The loader may still have an earlier file open under this path; `OpenLibrary` has a name that
    # only stands for the current file.
    try:
        opened = OpenLibrary(path)
    except OSError as error:
        raise ArtifactError(
            f"Loading {path} failed: {error}.",
            remedy="Compile the model again, for this machine's host.",
        ) from error
    try:
        # `tvm.runtime.load_module` would keep the library loaded; this way closing unloads it.
        library: tvm.runtime.Module = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(
            opened.name, "so"
        )
        if share:
            share_threads(opened.name)
        return library
    finally:
        opened.close()


def find_device(target: str, index: int, attempt: str) -> tvm.runtime.Device:
    """Return TVM's device for a target; raise `DeviceError`, begun by ``attempt``, without one."""
    try:
        if target == "opencl":
            # `import tvm` has loaded the plug-in, unless that failed: then this raises the reason.
            plugin.load()
        device = tvm.device(DEVICES[target], index)
        # The host is one device, but for TVM it exists with any index.
        if device.exist and not (target == "llvm" and index):
            return device
        # The use of a missing OpenCL device raises the reason.
        tvm.runtime.empty((1,), "uint8", device)
    except Exception as error:
        if (ours := translate(error, attempt, target)) is not None:
            raise ours from error
    number, remedy = "", no_device_remedy(target)
    if index:
        number, remedy = f" {index}", "`tvmflow devices` lists the devices and their numbers."
    raise DeviceError(
        f"{attempt} failed: there is no {target} device{number} on this machine.", remedy=remedy
    )


def _check_extensions(artifact: Artifact, index: int) -> None:
    """Raise `DeviceError` for missing extensions, before the driver rejects kernel after kernel."""
    if not (needed := set(artifact.metadata.get("extensions", ()))):
        return
    device = opencl_devices()[index]
    if not (missing := ", ".join(sorted(needed - set(device.extensions)))):
        return
    remedy = "Run it on another device; `tvmflow devices` lists them with their extensions."
    if missing == FP16_EXTENSION:
        remedy = "Compile the model again in fp32 arithmetic, or run it on a device with fp16 "
        if artifact.metadata["options"].get("accumulate") in ("mixed", "fp16"):
            remedy = "Compile the model with `accumulate=fp32`, or run it on a device with fp16 "
        remedy += "(`tvmflow devices` says which have it)."
    raise DeviceError(
        f"Running {artifact.path} failed: its kernels need {missing}, which the OpenCL device "
        f"{device.name} lacks.",
        remedy=remedy,
    )


def _is_aligned(value: object) -> bool:
    """Return whether a DLPack tensor's memory is aligned as TVM's kernels require."""
    try:
        tvm_ffi.from_dlpack(value, require_alignment=ALIGN_BYTES, require_contiguous=True)
    except RuntimeError:
        return False
    return True


def _profile_events(session: Session, values: Sequence[object], runs: int) -> list[KernelTime]:
    begin = tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")
    end = tvm_ffi.get_global_func("tvmflow.opencl.profile_end")
    with session.errors("Measuring kernels"):
        begin(session.device.index)
        try:
            for _ in range(runs):
                session.run(values, on_device=False)
        finally:
            launches = json.loads(end(session.device.index))
    # If the runs differ, `kernel_times` finds other kernels at the same positions.
    bounds = [len(launches) * number // runs for number in range(runs + 1)]
    return kernel_times([launches[a:b] for a, b in itertools.pairwise(bounds)], "device")


def _profile_calls(session: Session, values: Sequence[object], runs: int) -> list[KernelTime]:
    """Time the calls in a second virtual machine, which leaves the first without instruments."""
    machine = session.new_machine()
    wait = (lambda: None) if session.on_host else session.device.sync
    measured: list[Launch] = []
    started = 0.0

    def instrument(function: object, name: str, before: bool, *_: object) -> int:
        nonlocal started
        # Only kernels are plain functions; functions of the VM, which call them, are closures.
        if name.startswith("vm.builtin.") or not isinstance(function, tvm_ffi.Function):
            return 0
        wait()
        if before:
            started = time.perf_counter()
        else:
            us = (time.perf_counter() - started) * 1e6
            measured.append({"kernel": name, "start_us": started * 1e6, "us": us})
        return 0

    machine.set_instrument(tvm_ffi.convert(instrument))
    arguments, entry = session.bring(values, reuse=True), machine[session.entry_name]
    by_run = []
    with session.errors("Measuring kernels"):
        for _ in range(runs + 1):
            measured.clear()
            entry(*arguments, *session.weights)
            by_run.append(measured.copy())
    # Drop the first run, in which a new machine allocates its memory.
    return kernel_times(by_run[1:], "host")
