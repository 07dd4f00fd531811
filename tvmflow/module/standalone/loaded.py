"""Standalone libraries as modules in Python, without TVM and the plug-in.

>>> module = tvmflow.load("libmobilenet.so")
>>> (scores,) = module(image)
>>> module.self_test().tolerance_used
0.02
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ...devices.choices import BACKENDS
from ...devices.target import check_choice
from ...errors import DeviceError, InputError, TargetError, TvmflowError, VerificationError
from ...ir.pictures import CHROMA_FORMATS, IMAGE_FORMATS, Image
from ...ir.tensors import TensorInfo, dtype_from_name
from ...runtime import forks
from ...runtime.json_types import JsonObject
from ...runtime.shared_library import FileIdentity
from .. import elf
from ..artifact import SIDECAR_SUFFIX, tensor_infos, unreadable
from ..blocked_layout import to_blocked
from ..kernel_time import KernelTime, kernel_times
from ..module import Module, Running
from ..values import Outputs, as_array, check_output, put
from . import binding, programs
from .code_digest import check_code
from .format import DTYPES, Section
from .read import INTERFACES, EncodedPlan, find_plans, interfaces, pictures_of, readable
from .tested import SelfTest
from .tuned import Tuned, check_budget


class StandaloneModule(Module):
    """A network in a library of ``tvmflow compile --standalone``.

    ``device_index`` counts OpenCL devices, GPUs first.  Raises `ArtifactError` if the plan is
    damaged or of another format, and `TargetError` if there is none for ``backend``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device_index: int = 0,
        check_weights: bool = True,
        backend: str = "auto",
        whole: tuple[StandaloneModule, int] | None = None,
    ):
        file = Path(path)
        if whole is None:
            with readable(file):
                identity = FileIdentity.of(file)
            plans = find_plans(file)
        else:
            identity, plans = whole[0]._file, whole[0]._plans
        if not plans:
            reason = "it has no plan that this tvmflow reads"
            raise unreadable(file, reason, "Compile the model again with this tvmflow.")
        check_choice("backend", backend, BACKENDS)
        there = ["cpu" if p.metadata.get("target") == "llvm" else "opencl" for p in plans]
        if backend not in ("auto", *there):
            raise TargetError(
                f"The backend {backend} was asked for of {file}, which has kernels for "
                f"{there[0]} only.",
                remedy=f"Compile it with `{'fallback=cpu' if backend == 'cpu' else 'target=opencl'}"
                "`, or leave `backend` out.",
            )
        plan = plans[0]
        sidecar = file.with_name(file.name + SIDECAR_SUFFIX)
        weights = sidecar if sidecar.is_file() else None
        inputs, outputs = tensor_interfaces(plan, whole[1] if whole else 0)
        about = {n: v for n, v in plan.metadata.items() if whole is None or n != "batch"}
        super().__init__(file, identity, about, inputs, outputs, device_index, weights, whole)
        self._plans: list[EncodedPlan] = plans
        self._plan = plan
        self._backend = backend
        self._flags = 0 if check_weights else binding.UNCHECKED_WEIGHTS

    @property
    def variants(self) -> tuple[Module, ...]:
        """Return a view of the module for each of its shapes; itself if there is only one."""
        if self._whole is not None or self._plan.shapes == 1:
            return (self,)
        index = self.device_index
        return tuple(
            StandaloneModule(
                self.path, device_index=index, backend=self._backend, whole=(self, number)
            )
            for number in range(self._plan.shapes)
        )

    @property
    def programs_path(self) -> Path | None:
        """Return the file of devices' binaries next to the library, if there is one."""
        path = programs.sidecar_path(self.path)
        return path if path.is_file() else None

    @property
    def has_self_test(self) -> bool:
        """Return whether the library has inputs and results to test a device with."""
        return len(self._plan[Section.TEST_OUTPUTS]) > 0

    @property
    def picture_inputs(self) -> dict[str, tuple[str, str]]:
        """Return format and range of luma (``full`` or ``video``) of each picture input."""
        return {row["input"]: (row["format"], row["luma"]) for row in pictures_of(self._plan)}

    def self_test(
        self, runs: int = 0, pause_ms: int = 0, budget_ms: int = 0, second_instance: bool = False
    ) -> SelfTest:
        """Run the library's test inputs for all shapes, and compare with the results in it.

        ``runs`` more runs must have equal outputs to the last bit; no run begins after
        ``budget_ms``, if that is not 0.  The second half of them follows a pause; with
        ``second_instance``, another instance of the library runs at the same time.

        Raises `VerificationError` if an element differs by more than its tolerance or outputs
        differ between runs, and `DeviceError` if there is no device, or it refuses.
        """
        options = binding.TestOptions.of(runs, pause_ms, budget_ms, second_instance)
        with self._lock:
            instance, result = self._instance(), binding.Test()
            both = ctypes.byref(options), ctypes.byref(result)
            failure: VerificationError | None = None
            try:
                instance._call("self_test_with", *both, attempt="Checking")
            except VerificationError as error:
                failure = error
            numbers = result.largest_error, result.tolerance_used, result.compared
            report = json.loads(instance._library["test_report"](instance._model))
            found = SelfTest(*numbers, report)
            if failure is not None:
                failure.details = found.details
                raise failure
            return found

    def tune(
        self, budget_ms: int = 1000, progress: Callable[[float], object] | None = None
    ) -> Tuned:
        """Time the choices in the library on the device, and use those that are faster.

        It ends when nothing is left to time, or the device and its compiler have worked for
        ``budget_ms``; the next call goes on from there.  ``progress`` gets the share that is done,
        in another thread.

        Raises `InputError` for a budget of 0, and `DeviceError` if the library has no choices, or
        the device fails.
        """
        check_budget(budget_ms)

        def report(_: object, done: float) -> None:
            if progress is not None:
                progress(done)

        callback = binding.TUNE_PROGRESS(report)
        with self._lock:
            instance = self._instance()
            instance._call("tune", budget_ms, callback, None, attempt="Tuning")
            # It must not be collected before the thread has ended.
            instance._call("tune_wait", attempt="Tuning")
            del callback
            return Tuned(json.loads(instance._library["tune_report"](instance._model)))

    def describe(self) -> JsonObject:
        """Return the library's report: device, memory, recording, and origin of its programs."""
        with self._lock:
            return self._instance()._describe()

    def memory(self) -> dict[str, int]:
        """Return the model's memory in bytes: ``weights``, ``tensors``, ``pictures``, ``host``.

        ``weights_shared`` is 1 if kernels read mapped weights without a copy.  Raises `DeviceError`
        if there is no device, or it refuses.
        """
        with self._lock:
            info = binding.MemoryInfo(ctypes.sizeof(binding.MemoryInfo))
            self._instance()._call("memory", ctypes.byref(info), attempt="Asking for memory of")
        return {name: getattr(info, name) for name, _ in binding.MemoryInfo._fields_[1:]}

    def cancel(self) -> None:
        """Cancel another thread's run, which raises `DeviceError`; do nothing without one."""
        # Do not take the lock, which that thread holds.
        if isinstance(self._running, Instance):
            self._running.cancel()

    def _instance(self) -> Instance:
        running = self._opened()
        assert isinstance(running, Instance)
        return running

    def _open(self) -> Running:
        self._require_host(elf.read_library(self.path).architecture)
        check_code(self.path)
        index = self.device_index
        # The C interface takes 32 bits: another number would become a different device.
        if not isinstance(index, int) or not 0 <= index < 1 << 32:
            raise DeviceError(
                f"Running {self.path} failed: there is no opencl device {index} on this machine.",
                remedy="`tvmflow devices` lists the devices and their numbers.",
            )
        backend = self._backend
        # The C runtime does this for libraries that were loaded before the process was forked.
        if backend == "auto" and len(self._plans) > 1 and forks.is_lost("opencl"):
            backend = "cpu"
        options = binding.Options(device_index=index, backend=BACKENDS.index(backend))
        return Instance(self.path, binding.Library(self.path), self._plans, options, self._flags)

    def _check_process(self) -> None:
        uses_opencl = self.target == "opencl" and self._backend != "cpu"
        if not uses_opencl or (self._backend == "auto" and len(self._plans) > 1):
            return
        forks.use("opencl", f"Running {self.path}")

    def _open_variant(self, first: Running, number: int) -> Running:
        assert isinstance(first, Instance)
        return first.of_shape(number)


class Instance:
    """A model, created by the library on its device."""

    upload_ms: float | None = None  #: Unknown, because it is part of creating the model.

    def __init__(
        self,
        path: Path,
        library: binding.Library,
        plans: list[EncodedPlan],
        options: binding.Options,
        flags: int,
    ):
        self._path, self._plans, self._options = path, plans, options
        plan = self._plan = plans[0]
        self._shape = 0
        self._whole: Instance | None = None
        self._inputs, self._outputs = tensor_interfaces(plan, 0)
        #: Formats of pictures, by the index of the input.
        self._pictures = {
            int(row["input"]): IMAGE_FORMATS[row["format"]] for row in plan[Section.PICTURES]
        }
        self._library = library
        self._model = ctypes.c_void_p()
        # The model must be destroyed before its code is unloaded.
        self._finalizer = weakref.finalize(self, _end, self._library, self._model)
        self._create(flags)

    def of_shape(self, number: int) -> Instance:
        """Return the same model, for calls of another shape."""
        other = copy.copy(self)
        # Keep the object that created the model, which is destroyed with it.
        other._whole = self
        other._shape = number
        other._inputs, other._outputs = tensor_interfaces(self._plan, number)
        return other

    def run(
        self, values: Sequence[object], *, on_device: bool, into: Sequence[np.ndarray | None] = ()
    ) -> Outputs:
        """Run the network once; ``into`` has an array for each output, or ``None``."""
        if on_device:
            raise InputError(
                f"Running {self._path} with DLPack outputs is not possible: a standalone "
                "module copies its outputs.",
                remedy="Take them as 'numpy'.",
            )
        self._set_inputs(values)
        self._call("run")
        given = into or (None,) * len(self._outputs)
        arrays = map(self._output, range(len(given)), self._outputs, given)
        return Outputs([info.name for info in self._outputs], arrays)

    def profile(self, values: Sequence[object], runs: int) -> list[KernelTime]:
        """Measure every kernel launch, in a second instance, because measuring slows runs down."""
        runs = max(1, runs)
        # The first instance has checked the weights, unless the user does not want that.
        flags = binding.PROFILE | binding.UNCHECKED_WEIGHTS
        instance = Instance(self._path, self._library, self._plans, self._options, flags)
        instance = instance.of_shape(self._shape)
        instance._set_inputs(values)
        measured = [instance._profile_once() for _ in range(runs + 1)][1:]
        plan = self._plans[-1 if instance._describe().get("backend") == "cpu" else 0]
        sizes = plan.sizes_by_kernel(self._shape)
        for found in measured[0]:
            if not sizes[found["kernel"]]:
                raise DeviceError(
                    f"Measuring kernels failed: the library reported a launch of "
                    f"{found['kernel']}, which its plan does not have.",
                    remedy="Run `tvmflow bench` without `kernels` for the whole network's time.",
                )
            found |= sizes[found["kernel"]].popleft()
        return kernel_times(measured, "device")

    def cancel(self) -> None:
        """Cancel the run of another thread."""
        self._library["cancel"](self._model)

    def _create(self, flags: int) -> None:
        options = self._options
        options.struct_size, options.flags = ctypes.sizeof(binding.Options), flags
        if self._plan.metadata.get("target") == "opencl" and BACKENDS[options.backend] != "cpu":
            forks.note("opencl")
        if folder := binding.cache_folder():
            options.cache_folder = os.fsencode(folder)
        error: TvmflowError | None = None
        on_cpu = False
        for library in binding.opencl_libraries():
            options.opencl_library = None if library is None else os.fsencode(library)
            status = self._library["create"](ctypes.byref(options), ctypes.byref(self._model))
            if status == 0:
                # If the CPU was used instead of OpenCL, another OpenCL library may have a device.
                on_cpu = self._describe().get("opencl_status") == binding.NO_OPENCL
                if not on_cpu:
                    return
            else:
                failure = self._library.error(status, self._model, f"Opening {self._path}")
                # Keep the first error: drivers from pip, which are tried later, are optional.
                error = error or failure
            self._library["destroy"](self._model)
            self._model.value = None
            if status not in (0, binding.NO_OPENCL):
                raise failure
        if not on_cpu:
            assert error is not None
            raise error
        self._library["create"](ctypes.byref(options), ctypes.byref(self._model))

    def _describe(self) -> JsonObject:
        found: JsonObject = json.loads(self._library["describe"](self._model))
        return found

    def _set_inputs(self, values: Sequence[object]) -> None:
        if self._plan.shapes > 1:
            self._call("choose_shape", self._shape)
        for index, (info, value) in enumerate(zip(self._inputs, values, strict=True)):
            is_image = isinstance(value, Image)
            if is_image and index not in self._pictures:
                raise InputError(
                    f"The input {info.name!r} takes no pictures, and one was given.",
                    remedy="Compile the network with `image_inputs`, or give an array.",
                )
            if is_image or (index in self._pictures and np.ndim(value) in (2, 3)):  # type: ignore[arg-type]
                given = value if isinstance(value, Image) else Image(value)
                image, _kept = image_data(info.name, given, self._pictures[index])
                self._call("set_image", index, ctypes.byref(image))
                continue
            array = np.ascontiguousarray(as_array(info, to_blocked(info, _on_host(info, value))))
            self._call("set_input", index, *_memory(array))

    def _output(self, index: int, info: TensorInfo, into: np.ndarray | None) -> np.ndarray:
        array = into
        if into is not None:
            check_output(info.name, into, info.shape, info.dtype)
        if array is None or not array.flags.c_contiguous:
            array = np.empty(info.shape, dtype_from_name(info.dtype))
        self._call("get_output", index, *_memory(array))
        return put(info.name, array, into)

    def _profile_once(self) -> list[JsonObject]:
        kernels, count = ctypes.POINTER(binding.MeasuredKernel)(), ctypes.c_uint32()
        found = ctypes.byref(kernels), ctypes.byref(count)
        self._call("profile", *found, attempt="Measuring kernels of")
        return [
            {
                "kernel": kernel.name.decode(),
                "start_us": kernel.start_ns / 1e3,
                "us": (kernel.end_ns - kernel.start_ns) / 1e3,
            }
            for kernel in kernels[: count.value]
        ]

    def _call(self, name: str, *arguments: object, attempt: str = "Running") -> None:
        status = self._library[name](self._model, *arguments)
        if status != 0:
            raise self._library.error(status, self._model, f"{attempt} {self._path}")


def tensor_interfaces(plan: EncodedPlan, shape: int) -> Iterator[tuple[TensorInfo, ...]]:
    """Yield the inputs and the outputs of one of a plan's shapes."""
    return (tensor_infos(interfaces(plan, side, shape)) for side in INTERFACES)


def image_data(
    name: str, given: Image, compiled: str
) -> tuple[binding.ImageData, list[np.ndarray]]:
    """Return the C structure of a picture, and the arrays that it points to.

    ``compiled`` is the format that the library was compiled for.  Raises `InputError` if the arrays
    do not fit the format.
    """
    format = compiled if given.format is None else given.format
    if format not in IMAGE_FORMATS:
        raise InputError(
            f"The picture for input {name!r} has the format {format!r}; expected one of "
            f"{', '.join(IMAGE_FORMATS)}.",
            remedy="Give one of them, or none for the one that the library was compiled for.",
        )
    parts = given.pixels if isinstance(given.pixels, tuple) else (given.pixels,)
    arrays = [np.asarray(part) for part in parts]
    size = _picture_size(format, arrays)
    if size is None:
        found = ", ".join(f"{list(array.shape)} of {array.dtype}" for array in arrays)
        raise InputError(
            f"The picture for input {name!r}: expected {_expected_arrays(format)} of uint8, as "
            f"{format} has it, got {found}.",
            remedy="Convert it, or compile the network with `image_inputs` for another format.",
        )
    image = binding.ImageData(width=size[0], height=size[1])
    image.struct_size = ctypes.sizeof(image)
    image.rotation = given.rotation if 0 <= given.rotation < 1 << 32 else 1
    image.has_format, image.format = given.format is not None, IMAGE_FORMATS.index(format)
    # Strides must be positive: kernels read rows from left to right, and downwards.
    whole = len(arrays) == 1 or format not in _PLANAR
    kept = [_as_rows(array, whole=i == 0 and len(arrays) == 1, planar=not whole)
            for i, array in enumerate(arrays)]  # fmt: skip
    for number, array in enumerate(kept):
        stride = array.strides[0] if len(arrays) > 1 or format not in CHROMA_FORMATS else 0
        image.planes[number], image.strides[number] = array.ctypes.data, stride
        if not whole:
            image.pixel_strides[number] = array.strides[1]
    return image, kept


#: Formats with separate planes for luma, U and V.
_PLANAR = ("yuv420", "i420", "yv12")
_LANES = {"rgba8": 4, "bgra8": 4, "rgb8": 3, "grey8": 1}


def _expected_arrays(format: str) -> str:
    if format in _LANES:
        return f"an array [height, width, {_LANES[format]}]"
    rest = "two planes [height / 2, width / 2]"
    pairs = "a plane [height / 2, width / 2, 2]"
    return (
        "an array [height * 3 / 2, width] of even sides, or a tuple of a plane [height, width] and "
        f"{rest if format in _PLANAR else pairs}"
    )


def _picture_size(format: str, arrays: Sequence[np.ndarray]) -> tuple[int, int] | None:
    """Return width and height of a picture; ``None`` if its arrays do not fit the format."""
    first = arrays[0]
    if any(array.dtype != np.uint8 for array in arrays) or first.ndim not in (2, 3):
        return None
    height, width = first.shape[:2]
    if format in _LANES:
        lanes = first.shape[2] if first.ndim == 3 else 1
        return (width, height) if lanes == _LANES[format] and len(arrays) == 1 else None
    if first.ndim != 2:
        return None
    if len(arrays) == 1:
        even = height % 3 == 0 and width % 2 == 0
        return (width, height * 2 // 3) if even else None
    half = ((height + 1) // 2, (width + 1) // 2)
    wanted = [half] * 2 if format in _PLANAR else [(*half, 2)]
    return (width, height) if [array.shape for array in arrays[1:]] == wanted else None


def _as_rows(array: np.ndarray, *, whole: bool, planar: bool) -> np.ndarray:
    """Return the array, or a copy if pictures cannot have its strides."""
    row, pixel = array.strides[:2]
    if whole and array.ndim == 2:
        fits = array.flags.c_contiguous
    elif planar:
        fits = pixel > 0 and row > pixel * (array.shape[1] - 1)
    else:
        lanes = array.shape[2] if array.ndim == 3 else 1
        dense = pixel == lanes and (array.ndim == 2 or array.strides[2] == 1)
        fits = dense and row >= lanes * array.shape[1]
    return array if fits else np.ascontiguousarray(array)


def _memory(array: np.ndarray) -> tuple[int, int, int]:
    return DTYPES[array.dtype.name], array.ctypes.data, array.nbytes


def _end(library: binding.Library, model: ctypes.c_void_p) -> None:
    library["destroy"](model)


def _on_host(info: TensorInfo, value: object) -> np.ndarray:
    """Return a value as an array, including DLPack tensors on the host."""
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"The input {info.name!r} cannot be shared through DLPack: {error}.",
                remedy="Give a tensor on the host, or a NumPy array.",
            ) from error
    return np.asarray(value)
