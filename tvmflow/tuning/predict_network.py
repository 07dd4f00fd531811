"""Predicted time of a network on a GPU that is not connected, by layer.

Kernels that :mod:`.device_model` supports have its prediction.  The time of any other kernel is at
least that of its bytes or of its multiply-adds, at the rates that the model's constants allow.
Intervals come from :mod:`.verified`.  Errors of one GPU's kernels have common causes, such as its
clock and its driver, so they do not cancel out in a sum: both ends of a network's interval are the
sums of its layers' ends.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from ..compiler.compilation import Compilation
from ..compiler.lookup import lookup_in
from ..compiler.options import CompileKeywords, takes_options, with_keywords
from ..compiler.passes import journals_of
from ..compiler.scheduling import log_journal_hits
from ..devices.gpus import Gpu, find_gpu
from ..errors import TargetError, TvmflowError
from ..ir.expressions import nodes_in
from ..ir.names import nodes_of_functions
from ..ir.signatures import wants_schedule
from ..ir.traffic import buffer_bytes, count_reads, element_bytes, points_of
from ..ir.units import counted
from ..runtime.json_types import JsonObject
from ..schedules import schedule_function
from .device_model import least_seconds, rates_of
from .offline import Descent, why_unknown
from .session import Network
from .tasks import Knobs, Task, network_tasks
from .verified import Range, Verification, verification_of

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Layer:
    """Predicted time of a primary function, or of some that are the same task."""

    functions: tuple[str, ...]
    #: Names of the ONNX nodes that the functions compute.
    nodes: tuple[str, ...]
    family: str
    knobs: Knobs
    #: ``heuristic`` or ``journal``.
    source: str
    #: Number of calls in a run of the network.
    calls: int
    #: Seconds of a call, and their range.
    seconds: float
    range: Range
    #: Reason why ``seconds`` is a lower bound; ``None`` for a prediction of the model.
    bound: str | None

    @property
    def label(self) -> str:
        """Return the first ONNX node, or the first function if they compute none."""
        first, *others = self.nodes or self.functions
        return f"{first}, {len(others)} more" if others else first

    @property
    def total(self) -> float:
        """Return the seconds of all calls."""
        return self.calls * self.seconds

    @property
    def total_range(self) -> Range:
        """Return the range of the seconds of all calls."""
        low, high = self.range
        return self.calls * low, self.calls * high


@dataclass(frozen=True)
class NetworkTime:
    """Predicted time of a network's kernels on a GPU."""

    verification: Verification
    #: Device preset or GPU that the kernels are for, and precision of tensors and sums.
    device: str
    dtype: str
    accumulate: str
    #: Layers in the order of their first calls.
    layers: tuple[Layer, ...]
    #: Parts of the network that the time does not contain, as sentences.
    missing: tuple[str, ...]

    def __repr__(self) -> str:
        low, high = (f"{1e3 * end:.3g}" for end in self.range)
        layers = counted(len(self.layers), "layer")
        return (
            f"<NetworkTime: {1e3 * self.seconds:.3g} ms ({low} to {high}) on {self.gpu}, {layers}>"
        )

    @property
    def gpu(self) -> str:
        """Return the name of the GPU."""
        return self.verification.gpu

    @property
    def seconds(self) -> float:
        """Return the sum of the layers."""
        return sum(layer.total for layer in self.layers)

    @property
    def range(self) -> Range:
        """Return the range of the sum, the sums of both ends."""
        lows, highs = zip(*(layer.total_range for layer in self.layers), strict=True)
        return sum(lows), sum(highs)

    @property
    def bound_share(self) -> float:
        """Return the share of the sum that is lower bounds."""
        return sum(layer.total for layer in self.layers if layer.bound) / self.seconds

    def share(self, layer: Layer) -> float:
        """Return a layer's share of the sum."""
        return layer.total / self.seconds

    def to_json(self) -> JsonObject:
        """Return the times in seconds, with each layer and its share."""
        verification = self.verification
        return {
            "gpu": self.gpu,
            **{name: getattr(self, name) for name in ("device", "dtype", "accumulate")},
            **{name: getattr(self, name) for name in ("seconds", "range", "bound_share")},
            "verified": verification.is_verified,
            "verification": {
                "sentence": verification.sentence,
                "measured": verification.measured,
                **asdict(verification.errors),
            },
            "missing": self.missing,
            "layers": [
                {
                    **asdict(layer),
                    "total": layer.total,
                    "total_range": layer.total_range,
                    "share": self.share(layer),
                }
                for layer in self.layers
            ],
        }


@takes_options
def predict(
    model: str | os.PathLike[str] | onnx.ModelProto,
    gpu: str,
    **options: Unpack[CompileKeywords],
) -> NetworkTime:
    """Predict a network's time on the GPU of a phone that is not connected, by layer.

    Nothing is compiled to machine code, and nothing runs.  The time is that of the kernels only.

    Parameters
    ----------
    model
        An ONNX model: a path, or a model in memory.
    gpu
        The GPU's name, such as ``adreno-740`` (`tvmflow.devices.gpus.GPUS`).
    options
        How the network is compiled, as for `tvmflow.compile`: the keywords below.  The default of
        ``device`` is the GPU.

    Returns
    -------
    NetworkTime
        Its ``seconds`` and their ``range``, and the same of its ``layers``.

    Raises
    ------
    TvmflowError
        If the model is refused, or no rates of the GPU are known.

    Examples
    --------
    >>> tvmflow.predict("mobilenet_v2.onnx", "adreno-740", dtype="fp16")
    <NetworkTime: 1.14 ms (0.897 to 1.65) on adreno-740, 34 layers>
    """
    return predict_network(Network(model, with_keywords(None, options, "predict")), find_gpu(gpu))


def predict_network(network: Network, gpu: Gpu) -> NetworkTime:
    """Predict a network's time on a GPU, for which it is compiled unless its options say otherwise.

    Raises as `predict` does.
    """
    rates_of(gpu)
    if network.options.device == "auto":
        network = replace(network, options=replace(network.options, device=gpu.name))
    job = network.job()
    if job.target.kind != gpu.target:
        raise TargetError(
            f"Predicting times on {gpu.name} failed: it runs kernels for {gpu.target}, but kernels "
            f"for {job.target.kind} were asked for.",
            remedy=f"Use `target={gpu.target}`.",
        )
    tasks = network_tasks(job)
    if not tasks:
        raise TvmflowError(
            f"Predicting times on {gpu.name} failed: the network has no kernels.",
            remedy="Choose a network that computes something from its inputs.",
        )
    verification = verification_of(gpu)
    # A loop's body may have functions of the same names.
    nodes = {} if job.model.loops else nodes_of_functions(job.mod, job.nodes)
    layers = []
    for task, (knobs, source) in zip(tasks, _knobs_of(job, tasks), strict=True):
        of_task = (node for name in task.names for node in nodes.get(name, ()))
        bound = why_unknown(task)
        errors = verification.errors
        if bound is None:
            seconds, (low, high) = Descent(task, gpu).seconds(knobs), errors.model
        else:
            seconds, (low, high) = bound_of(task, gpu), errors.bound
        layers.append(
            Layer(
                *(task.names, tuple(dict.fromkeys(of_task)), task.family.NAME, knobs, source),
                *(task.calls, seconds),
                # A systematic error may exclude the prediction itself.
                (min(low, 1.0) * seconds, max(high, 1.0) * seconds),
                bound,
            )
        )
    options = job.options
    return NetworkTime(
        *(verification, options.device, options.dtype, options.accumulate),
        *(tuple(layers), tuple(_missing(job))),
    )


def _knobs_of(job: Compilation, tasks: Sequence[Task]) -> list[tuple[Knobs, str]]:
    """Return the knobs that `compile` chooses for tasks, and their source."""
    if not job.attempt.journals:
        return [(task.heuristic, "heuristic") for task in tasks]
    with journals_of(job) as journals, job.target.tvm_target:
        found = {
            task.digest: schedule_function(
                *(task.function, job.target, None, task.name),
                lookup_in(journals, task.function, job.target),
            )
            for task in tasks
        }
    log_journal_hits(job.attempt, found)
    return [(found[task.digest].knobs, found[task.digest].source) for task in tasks]


def _missing(job: Compilation) -> list[str]:
    """Return sentences on functions without a task, and on loops, which are counted once.

    TVM's own sorts, scans and scatters have no task.
    """
    said = []
    if loops := len(job.model.loops):
        said.append(f"{counted(loops, 'loop')} counted with one iteration.")
    others = sum(
        isinstance(function, tirx.PrimFunc) and not wants_schedule(function)
        for function in job.mod.functions.values()
    )
    if others:
        said.append(f"{counted(others, 'function')} with TVM's own loops left out.")
    return said


# -- lower bounds ---------------------------------------------------------------------------------


def bound_of(task: Task, gpu: Gpu) -> float:
    """Return the least seconds of a task's kernel: one launch, its bytes, its multiply-adds.

    Each tensor counts once, an input only with the elements that are read.  Multiply-adds are the
    steps of reductions; what else a kernel computes is left out.
    """
    function, workload = task.function, task.workload
    tensors = [p for p in function.params if isinstance(p, tirx.Buffer)]
    moved = sum(buffer_bytes(tensor) for tensor in tensors[len(tensors) - task.results :])
    for tensor in tensors[: len(tensors) - task.results]:
        moved += min(buffer_bytes(tensor), count_reads(function, tensor) * element_bytes(tensor))
    steps = sum(
        points_of(block)
        for block in nodes_in(function.body, s_tir.SBlock)
        if any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)
    )
    is_half = workload.dtype == "fp16" and workload.accumulate != "fp32"
    return least_seconds(moved, steps, gpu, 0.5 if is_half else 1.0)
