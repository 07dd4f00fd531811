"""Building of candidates: from a task and knobs to a module that any OpenCL server can load.

Build processes schedule, lower and link candidates.  They also make a task's test cases: its
inputs, and the results of the function's unscheduled loops.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, tirx

from ..codegen.tir_pipeline import TIR_PIPELINE
from ..compiler.scheduling import reason_of
from ..devices.host import Host
from ..devices.target import TargetSpec, resolve
from ..ir.half_sums import half_lengths
from ..ir.scope import is_half
from ..ir.signatures import without_scopes
from ..ir.tensors import TensorInfo
from ..module.artifact import export_library
from ..module.blocked_layout import from_image, panels_of, to_image
from ..module.files import publish, staging
from ..runtime import plugin
from ..runtime.process import Pool, WorkerLostError
from ..schedules import schedule_function
from ..verify import tolerance
from .candidate_kernels import CandidateKernels
from .tasks import Argument, Knobs, Task, arguments_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Name of the only function in a module.
ENTRY = "candidate"
#: Time limit of building one candidate, in seconds.
BUILD_LIMIT_S = 60.0
#: Time limit of computing a task's results in unscheduled loops, in seconds.
CASE_LIMIT_S = 120.0


@dataclass(frozen=True)
class Built:
    """A candidate as a module, or the reason why there is none."""

    #: Digest of the task.
    task: str
    knobs: Mapping[str, object]
    #: Hash of the kernels' source: candidates with equal hashes are identical. Empty if none was
    #: made.
    source_hash: str
    #: A shared library in TVM's own format, with the function :data:`ENTRY`; candidates with the
    #: same source share it.
    path: Path | None
    #: Arguments of the function, results last.
    arguments: tuple[Argument, ...]
    #: Reason why there is no library.
    error: str | None


# -- in a build process --------------------------------------------------------------------------


@lru_cache(maxsize=64)
def function_of(text: str) -> tirx.PrimFunc:
    """Parse a function's text, once for all of its candidates."""
    return tvm.ir.load_json(text)


def build_candidate(
    text: str,
    target: TargetSpec,
    knobs: Knobs,
    digest: str,
    folder: str,
    as_kernels: bool = False,
    device_index: int | None = None,
) -> Built:
    """Schedule, lower and link one candidate; called in a worker process.

    ``text`` and ``digest`` are the task's, and libraries are in ``folder``.  With ``as_kernels``
    the file has kernels and launches (`CandidateKernels`) instead of a library.  The OpenCL device
    ``device_index`` also compiles the kernels; with ``None`` the measuring process does.
    """
    function = function_of(text)
    arguments = arguments_of(function)
    failed = partial(Built, digest, knobs, "", None, arguments)
    with target.tvm_target:
        scheduled = schedule_function(function, target, knobs)
        if scheduled.source != "given":
            return failed("The knobs do not lead to a schedule.")
        try:
            if as_kernels:
                made = CandidateKernels.generate(scheduled.schedule.mod["main"], target, ENTRY)
                path = made.write(Path(folder))
                return Built(digest, knobs, path.stem, path, arguments, None)
            library = lower(scheduled.schedule.mod["main"], target)
        except Exception as error:  # noqa: BLE001 (any exception of TVM is the candidate's fault)
            return failed(f"No code can be generated: {reason_of(error)}")
    source = source_hash(library, target)
    path = Path(folder, f"{source}.so")
    if not path.exists():
        link(library, path, target)
        if device_index is not None:
            compile_kernels(path, arguments, device_index)
    return Built(digest, knobs, source, path, arguments, None)


def compile_kernels(path: Path, arguments: Sequence[Argument], device_index: int) -> None:
    """Run a library once, so that the driver stores its compiled kernels in the program cache.

    CPU drivers compile most of a kernel at its first launch.
    """
    plugin.load()
    device = tvm.device("opencl", device_index)
    memory = [Memory(argument, device) for argument in arguments]
    for argument, each in zip(arguments, memory, strict=True):
        # Zeros are valid for every argument that may be an index.
        each.write(np.zeros(argument.shape, argument.dtype))
    # The cache is written when the library and the device are released.
    tvm_ffi.load_module(path, keep_module_alive=False)[ENTRY](*(each.tensor for each in memory))
    device.sync()


def lower(function: tirx.PrimFunc, target: TargetSpec) -> tvm.runtime.Module:
    """Generate code for one scheduled function."""
    named = function.with_attrs(
        {"global_symbol": ENTRY, "tirx.noalias": True, "tirx.is_scheduled": True}
    )
    return tvm.tirx.build(IRModule({ENTRY: named}), target=target.tvm_target, pipeline=TIR_PIPELINE)


def link(library: tvm.runtime.Module, path: Path, target: TargetSpec) -> None:
    """Write a library for the target's host."""
    # Two processes may build the same library: each writes a whole file.
    with staging(path) as work:
        made = work / path.name
        export_library(library, made, Host.parse(target.host), work)
        publish({made: path})


def source_hash(library: tvm.runtime.Module, target: TargetSpec) -> str:
    """Return a hash of what runs: the kernels, and the host's code that launches them."""
    content = hashlib.sha256(str(target.host).encode())
    modules = [library]
    for module in modules:
        modules.extend(module.imports)
        # The host's code contains the launches' sizes.
        content.update(str(module.inspect_source()).encode())
    return content.hexdigest()[:24]


class StoredArgument:
    """An argument as it is stored on a device: in a buffer or an image.

    An image has whole rows of panels, so that it may be larger than its tensor, and is copied as a
    whole.
    """

    def __init__(self, argument: Argument):
        panels, shape = panels_of(argument.scope), list(argument.shape)
        self._blocks = shape[1] if panels > 1 else 0
        if self._blocks:
            shape[1] = -(-self._blocks // panels) * panels
        #: Shape, dtype and scope with the missing blocks added.
        self.info = TensorInfo("", tuple(shape), argument.dtype, scope=argument.scope or None)

    def to_stored(self, array: np.ndarray) -> np.ndarray:
        """Convert an array to the order of its memory, with the missing blocks added."""
        array = array.astype(self.info.dtype, copy=False)
        if self._blocks:
            missing = self.info.shape[1] - self._blocks
            array = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * 3)
            array = to_image(self.info, array)
        return array

    def from_stored(self, array: np.ndarray) -> np.ndarray:
        """Undo `to_stored`."""
        return from_image(self.info, array)[:, : self._blocks] if self._blocks else array


class Memory:
    """Memory of an argument on a device of TVM.

    It is allocated for a tensor with the missing blocks added, and the kernel gets a view.
    """

    def __init__(self, argument: Argument, device: tvm.runtime.Device):
        self._stored = StoredArgument(argument)
        info = self._stored.info
        self._whole = tvm.runtime.empty(info.shape, argument.dtype, device, mem_scope=info.scope)
        #: The tensor that kernels are called with.
        self.tensor = self._whole
        if info.shape != argument.shape:
            self.tensor = self._whole._create_view(argument.shape)

    def write(self, array: np.ndarray) -> None:
        """Copy an array to the device."""
        self._whole.copyfrom(self._stored.to_stored(array))

    def read(self) -> np.ndarray:
        """Copy the array back to the host."""
        return self._stored.from_stored(self._whole.numpy())


# -- a task's test case --------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Inputs and results of a task in an ``.npz`` file: ``a0``, ``a1``, … and ``r0``, …."""

    path: Path
    #: Lengths of the function's sums in 16 bits.
    lengths: tuple[int, ...] = ()

    def load(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the inputs and the results."""
        with np.load(self.path, allow_pickle=False) as arrays:
            names = arrays.files
            inputs = [arrays[name] for name in names if name.startswith("a")]
            return inputs, [arrays[name] for name in names if name.startswith("r")]


def compare_results(
    arguments: Sequence[Argument],
    lengths: Sequence[int],
    got: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
) -> list[tolerance.Comparison]:
    """Compare results with the case's, by the tolerances of networks.

    Those of operators are too small, as several operators are fused.  ``lengths`` are the lengths
    of the function's sums in 16 bits.
    """
    table = tolerance.NETWORK
    if lengths:
        table = tolerance.summed_in_half(lengths)
    elif any(is_half(argument.scope) for argument in arguments):
        table = tolerance.STORED_AS_HALF
    return [
        tolerance.compare(
            f"result {index}", *pair, tolerance.tolerance_for(pair[1].dtype.name, table)
        )
        for index, pair in enumerate(zip(got, wanted, strict=True))
    ]


def write_case(text: str, results: int, path: Path, with_results: bool) -> Case:
    """Compute the case of a function on this CPU and write it; called in a worker process.

    The function's loops run unscheduled, so that an error of a schedule family cannot affect the
    results that its kernels are compared with.
    """
    function = function_of(text)
    arguments = arguments_of(function)
    rng = np.random.default_rng(0)
    inputs = [_values(argument, rng) for argument in arguments[:-results]]
    arrays = {f"a{index}": array for index, array in enumerate(inputs)}
    if with_results:
        outputs = [np.zeros(a.shape, a.dtype) for a in arguments[-results:]]
        target = resolve("llvm")
        plain = without_scopes(function)
        with target.tvm_target, tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "plain.so")
            link(lower(plain, target), library, target)
            tensors = [tvm.runtime.tensor(array) for array in (*inputs, *outputs)]
            tvm_ffi.load_module(library)[ENTRY](*tensors)
        arrays |= {f"r{i}": tensor.numpy() for i, tensor in enumerate(tensors[len(inputs) :])}
    np.savez(path, allow_pickle=False, **arrays)
    return Case(path, tuple(half_lengths(function)))


def _values(argument: Argument, rng: np.random.Generator) -> np.ndarray:
    """Return random values that every function accepts."""
    dtype = np.dtype(argument.dtype)
    if dtype.kind == "b":
        return rng.random(argument.shape) < 0.5
    if dtype.kind in "iu":
        # Wide integers may be indices, and most axes have at least two elements.
        high = 2 if dtype.itemsize > 1 else 16
        return rng.integers(0, high, argument.shape).astype(dtype)
    values = rng.standard_normal(argument.shape, dtype=np.float32)
    return values.astype(np.float16 if is_half(argument.scope) else dtype).astype(dtype)


# -- in the tuning process -----------------------------------------------------------------------


@dataclass(frozen=True)
class ExclusiveCpu:
    """Exclusive use of the CPUs that builds and searches also run on, while a kernel is timed."""

    #: A lock file, which the tuning process locks while it computes.
    lock: Path
    #: Ids of the build processes, which are stopped and continued.
    processes: tuple[int, ...]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop all other work; called in the measuring process, a sibling of the builds."""
        with locked(self.lock):
            self._signal(signal.SIGSTOP, os.getppid())
            try:
                yield
            finally:
                self._signal(signal.SIGCONT, os.getppid())

    def release(self) -> None:
        """Continue the builds; called in the tuning process when the measuring one was lost."""
        self._signal(signal.SIGCONT, os.getpid())

    def _signal(self, number: signal.Signals, parent: int) -> None:
        for pid in self.processes:
            with suppress(OSError):
                # The name in parentheses may contain any characters.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # The process may have ended, and its id may have been reused.
                if int(fields[1]) == parent:
                    os.kill(pid, number)


@contextmanager
def locked(lock: Path) -> Iterator[None]:
    """Hold a file lock, so that only one of its users computes or measures at a time."""
    with open(lock, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: Environment of processes that build and measure: without it, a CPU's driver would compile each
#: candidate again as part of the kernel that launches a network's kernels together.
ONE_BY_ONE = {"TVMFLOW_CHAINS": "0"}


class Builder:
    """A pool of build processes, by default one a core; a build may take ``limit_s`` seconds.

    If candidates are for an OpenCL device of this machine's CPUs, ``device_index`` is its index,
    and builds also run its driver's compiler.  ``None`` means another device.  With ``as_kernels``
    candidates are kernels without host code.
    """

    def __init__(
        self,
        workers: int | None = None,
        limit_s: float = BUILD_LIMIT_S,
        device_index: int | None = None,
        as_kernels: bool = False,
    ):
        self._owner = tempfile.TemporaryDirectory(prefix="tvmflow-tune-")
        self.folder = Path(self._owner.name)
        #: Folder of the program cache that builds fill, if they compile kernels.
        self.programs = None if device_index is None else self.folder / "programs"
        environment = {
            "TVMFLOW_CACHE": "1",
            "TVMFLOW_CACHE_DIR": str(self.programs),
            # For a program of one kernel, declarations of all functions would take most of the
            # time.
            "TVMFLOW_FEW_DECLARATIONS": "1",
            **ONE_BY_ONE,
        }
        self._pool = Pool(workers or len(os.sched_getaffinity(0)), environment)
        self._limit_s = limit_s
        self._device_index = device_index
        self._as_kernels = as_kernels

    def submit(self, task: Task, knobs: Mapping[str, object] | None) -> Future[Built]:
        """Build a candidate; ``None`` means the heuristic's knobs.  The future never fails."""
        chosen = dict(task.heuristic if knobs is None else knobs)
        # A copy without cached TVM objects, which cannot be sent to another process.
        target = replace(task.target)
        arguments = task.text, target, chosen, task.digest, str(self.folder), self._as_kernels

        def build(device_index: int | None, _: BaseException | None) -> Future[Built]:
            everything = *arguments, device_index
            return self._pool.submit(build_candidate, *everything, timeout_s=self._limit_s)

        def failed(error: BaseException | None) -> Future[Built]:
            reason = failure_text(error)
            return finished(Built(task.digest, chosen, "", None, task.arguments, reason))

        # If the kernel or driver ended the process, build without them: measuring finds the error.
        indices = dict.fromkeys((self._device_index, None))
        return first_success(*(partial(build, index) for index in indices), failed)

    def make_case(self, task: Task) -> Future[Case]:
        """Compute a task's case, without results if that fails.  The future never fails."""
        path = self.folder / f"{task.digest}.npz"

        def compute(error: BaseException | None) -> Future[Case]:
            if error is not None:
                logger.warning(
                    "The results that %s should compute could not be determined: %s. Its "
                    "candidates are not checked.",
                    *(task.name, error),
                )
            arguments = task.text, task.results, path, error is None
            return self._pool.submit(write_case, *arguments, timeout_s=CASE_LIMIT_S)

        return first_success(compute, compute, lambda _: finished(Case(path)))

    @property
    def exclusive_cpu(self) -> ExclusiveCpu:
        """Return exclusive use of this machine's CPUs, which builds currently run on."""
        return ExclusiveCpu(self.folder / "busy", self._pool.processes)

    def close(self) -> None:
        """End the processes, and remove their files."""
        self._pool.close()
        self._owner.cleanup()


def failure_text(error: BaseException | None) -> str:
    """Return why a build process made no candidate."""
    kind = "The build failed" if isinstance(error, WorkerLostError) else "No code"
    return f"{kind}: {error}"


def finished(value: T) -> Future[T]:
    """Return a future that already has its result."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def first_success(*calls: Callable[[BaseException | None], Future[T]]) -> Future[T]:
    """Return the result of the first call that does not fail; the last one must not fail.

    Each call is started when the one before has failed, with its error.  The result is cancelled
    when a worker was interrupted, which ends all work and is not a failure.
    """
    result: Future[T] = Future()
    left = iter(calls)

    def start(error: BaseException | None) -> None:
        next(left)(error).add_done_callback(finish)

    def finish(done: Future[T]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or (isinstance(error, WorkerLostError) and error.interrupted):
            result.cancel()
        elif error is not None:
            start(error)
        else:
            result.set_result(done.result())

    start(None)
    return result
