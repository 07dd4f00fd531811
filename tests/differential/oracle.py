"""The expected results of a network, and the error that a right result may have.

The reference is ONNX Runtime without its optimisations, or ONNX's evaluator for operators that it
lacks.  No table says which error is allowed: it is the deviation of the reference itself when every
rounding in the network errs by up to `ULPS` units in the last place, and with ``--dtype fp16`` when
any tensor is rounded to half precision.  Nodes that only move or choose elements do not round, and
nor do sums and products of small integers: after such nodes results must be equal.  Near a step (a
comparison, a rounding, an order) the reference itself jumps, and its values on both sides are
right; this widens nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from contexts import Network
from graphs import ERRATIC
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rounding_noise import ULPS, WEIGHTED, NoisyNetwork, is_tiled, largest, with_noise

from tvmflow.verify.reference import exact_session

onnxruntime.set_default_logger_severity(4)


#: Runs of the noisy network: few, many, and, before a result is called wrong, enough to meet a
#: step that one run in sixteen meets.
FEW, MANY, MOST = 6, 48, 400
#: Factor on deviations: the largest one in some runs is below the largest possible one.
MARGIN = 2.0
LARGEST_HALF = 65504
#: Largest sum that Winograd's algorithm computes in half precision without overflow.
LARGEST_TILED = LARGEST_HALF / 16
#: Factor with storage in half precision: fusion decides which tensors are rounded, and errors that
#: cancel in the samples need not cancel in the module.
MARGIN_IN_HALF = 4.0


def session(model: onnx.ModelProto) -> Any:
    """Return ONNX Runtime's session of an unoptimised model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return exact_session(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


#: Position of the indices among an operator's inputs, if they may be out of range.
INDEXED = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1,
    "RoiAlign": 2,
}  # fmt: skip


def limit_indices(model: onnx.ModelProto) -> onnx.ModelProto:
    """Limit indices that are inputs of a model to their range, as tvmflow does.

    ONNX Runtime refuses indices out of range.
    """
    fed = {value.name for value in model.graph.input}
    limited = onnx.ModelProto()
    limited.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []

    def emit(op_type: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"limit_{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def number(value: int) -> str:
        return emit("Constant", value=numpy_helper.from_array(np.array([value], np.int64)))

    for node in limited.graph.node:
        place = INDEXED.get(node.op_type, 0)
        if place and node.input[place] in fed:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            indices = emit("Cast", node.input[place], to=TensorProto.INT64)
            first, last = number(attributes.get("axis", 0)), None
            if node.op_type.endswith("ND"):
                first = number(attributes.get("batch_dims", 0))
                depth = emit("Gather", emit("Shape", indices), number(-1))
                last = emit("Add", first, depth)
            extents = emit("Shape", node.input[0])
            if last is None:
                extents = emit("Gather", extents, first)
            else:
                extents = emit("Slice", extents, first, last)
            lowest = emit("Neg", extents) if node.op_type != "RoiAlign" else number(0)
            most = emit("Sub", extents, number(1))
            node.input[place] = emit("Min", emit("Max", indices, lowest), most)
        nodes.append(node)
    if len(nodes) == len(model.graph.node):
        return model
    del limited.graph.node[:]
    limited.graph.node.extend(nodes)
    return limited


class Reference:
    """Runs a model with ONNX Runtime, or with ONNX's evaluator if that lacks an operator."""

    def __init__(self, model: onnx.ModelProto):
        self.names = [output.name for output in model.graph.output]
        self._model = model = limit_indices(model)
        try:
            self._run = session(model).run
        except Exception:  # noqa: BLE001 (its errors share no other class)
            self._fall_back()

    fallback = False

    def _fall_back(self) -> None:
        if any(node.op_type == "QLinearMatMul" for node in self._model.graph.node):
            raise NoReferenceError("ONNX's evaluator rounds after adding the zero point")
        self._run = ReferenceEvaluator(self._model).run
        self.fallback = True

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            try:
                results = self._run(None, dict(feeds))
            except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
                # ONNX Runtime makes a session of some cases that it then cannot run.
                self._fall_back()
                results = self._run(None, dict(feeds))
            return [np.asarray(r) for r in results]


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the results of a model."""
    return Reference(model)(feeds)


class NoReferenceError(Exception):
    """Raised if neither ONNX Runtime nor ONNX's evaluator computes a network."""


@dataclass
class Oracle:
    """Judge of a network's results.

    Parameters
    ----------
    network
        The network.
    half
        Whether tensors may be stored in half precision.
    Products in the longest sum that may be computed in half precision; 0 if none is.
        Products in the longest sum that may be taken in it, too; 0 where none is.
    winograd
        Whether Winograd's algorithm may compute convolutions: it also rounds sums of integers.
    expected
        Results known from another source, by name.
    """

    network: Network
    half: bool = False
    longest_in_half: int = 0
    winograd: bool = True
    expected: Mapping[str, np.ndarray] | None = None
    reference: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        n = self.network
        values = self._all_values()
        known = self.expected or {}
        self.reference = {t.name: known.get(t.name, values[t.name]) for t in n.outputs}
        for tensor in n.outputs:
            if self.reference[tensor.name].shape != tensor.shape:
                raise NoReferenceError("ONNX and the reference disagree on a shape")
        self._samples: list[list[np.ndarray]] = []
        self._noisy: NoisyNetwork | None = None
        self._rng = np.random.default_rng(1)
        self._values = values

    def _all_values(self) -> dict[str, np.ndarray]:
        """Return every tensor of the network."""
        n = self.network
        model = n.model
        known = {output.name for output in model.graph.output}
        more = [o for node in n.nodes for o in node.output if o not in known]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
        try:
            evaluate = Reference(model)
            results = evaluate(n.feeds)
        except Exception as error:
            raise NoReferenceError(str(error)) from error
        self._fallback = evaluate.fallback
        names = [output.name for output in model.graph.output]
        return {**n.constants, **n.feeds, **dict(zip(names, results, strict=True))}

    def samples(self, count: int) -> list[list[np.ndarray]]:
        """Return results with random rounding errors: for each run an array per output."""
        if self._noisy is None:
            self._noisy = with_noise(
                self.network, self._values,
                half=self.half, longest_in_half=self.longest_in_half, winograd=self.winograd,
            )  # fmt: skip
            if self._noisy is None:
                return []
            self._run_noisy = Reference(self._noisy.model)
        try:
            while len(self._samples) < count:
                feeds = {**self.network.feeds, **self._noisy.draw(self._rng)}
                self._samples.append(self._run_noisy(feeds))
        except Exception as error:
            raise NoReferenceError(f"with errors it does not run: {error}") from error
        if self._run_noisy.fallback and not self._fallback:
            # The two references differ by more than rounding errors.
            raise NoReferenceError("with errors ONNX Runtime does not take it")
        return self._samples[:count]

    def judge(self, found: Mapping[str, np.ndarray]) -> str | None:
        """Return what is wrong with the results, ``None`` if they are right."""
        complaint = None
        nodes = self.network.nodes
        erratic = any(node.op_type in ERRATIC for node in nodes)
        sources = [
            self._values[node.input[0]]
            for node in nodes
            if self.winograd and is_tiled(node, self._values)
        ]
        spreads = any(not np.isfinite(x).all() for x in sources)
        tiled = len(sources) > 0
        # Products in half precision may read values that are infinite there, but not in fp32.
        exceeds = self.longest_in_half > 0 and any(
            self._values[name].dtype == np.float32 and largest(self._values[name]) > LARGEST_HALF
            for node in nodes
            if node.op_type in WEIGHTED
            for name in node.input[:2]
        )
        for count in (0, FEW, MANY, MOST):
            samples = self.samples(count) if count else []
            complaint = None
            for index, tensor in enumerate(self.network.outputs):
                complaint = complaint or _compare(
                    tensor.name,
                    found[tensor.name],
                    self.reference[tensor.name],
                    [sample[index] for sample in samples],
                    self.half,
                    erratic,
                    spreads,
                    tiled,
                    exceeds,
                )
            if complaint is None:
                return None
            if count and not samples:
                break
        return complaint


@np.errstate(all="ignore")
def _compare(
    name: str,
    found: np.ndarray,
    reference: np.ndarray,
    samples: Sequence[np.ndarray],
    half: bool,
    erratic: bool = False,
    spreads: bool = False,
    tiled: bool = False,
    exceeds: bool = False,
) -> str | None:
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return (
            f"{name}: {found.dtype}{list(found.shape)} instead of "
            f"{reference.dtype}{list(reference.shape)}"
        )
    a, b = _wide(found), _wide(reference)
    margin = MARGIN_IN_HALF if half else MARGIN
    with np.errstate(all="ignore"):
        right = (a == b) | (np.isnan(a) & np.isnan(b))
        if exceeds:
            right |= ~np.isfinite(a)
        if erratic:
            right |= ~(np.isfinite(a) & np.isfinite(b))
        if spreads:
            # NaN reaches all elements of its tile.
            right |= np.isnan(a)
        if tiled and half:
            # Partial sums are stored, and exceed 65504 before their sum does; the difference of two
            # infinite ones is NaN.
            right |= ~np.isfinite(a) & (np.abs(b) > LARGEST_TILED)
        allowed = np.zeros(a.shape)
        if not right.all() and samples:
            noisy = [_wide(sample) for sample in samples]
            deviation = np.zeros(b.shape)
            for sample in noisy:
                distance = np.abs(sample - b)
                deviation = np.fmax(deviation, np.where(np.isfinite(distance), distance, 0))
            # If errors lead out of a function's domain, no run says anything about an element.
            finite = np.any([np.isfinite(sample) for sample in noisy], axis=0)
            counts = finite & np.isfinite(b) & (b != 0)
            relative = np.where(counts, deviation / np.abs(b), np.nan)
            least = 2.0**-11 if half else ULPS * 2.0**-23
            usual = np.nanmedian(relative) if np.isfinite(relative).any() else least
            # For such an element even its share of larger ones is unknown.
            scale = np.where(finite, np.abs(b), np.abs(b[np.isfinite(b)]).max(initial=0))
            allowed = margin * np.fmax(deviation, np.where(np.isfinite(b), usual * scale, 0))
            if half:
                # If most runs overflow, the few others need not round what they do not overflow.
                overflows = np.any([np.isinf(sample) for sample in noisy], axis=0)
                allowed = np.where(overflows, np.fmax(allowed, 2.0**-11 * np.abs(b)), allowed)
            # Devices may flush subnormal numbers to zero.
            allowed = np.fmax(allowed, np.finfo(np.float32).tiny)
            right |= np.abs(a - b) <= allowed
            numbers = [np.where(np.isfinite(sample), sample, np.nan) for sample in noisy]
            low, high = np.fmin.reduce(numbers), np.fmax.reduce(numbers)
            allowed = np.where(np.isfinite(b), allowed, margin * (high - low))
            right |= (a >= low - allowed) & (a <= high + allowed) & ~np.isfinite(b)
            # At a pole, such as log(0), errors give numbers, however large, and NaN; hardly any
            # run meets infinity.
            pole = finite & np.any([np.isnan(sample) for sample in noisy], axis=0)
            right |= pole & ~(np.isfinite(a) & np.isfinite(b))
            for sample in noisy:
                right |= (np.isnan(a) & np.isnan(sample)) | (a == sample)
                if half:
                    # Storage decides which intermediate values overflow.
                    right |= ~(np.isfinite(a) | np.isfinite(sample))
                right |= np.abs(a - sample) <= allowed
    if right.all():
        return None
    error = np.abs(a - b)
    wrong = np.argwhere(~right)
    worst = tuple(wrong[int(np.nanargmax(np.where(np.isfinite(error), error, np.inf)[~right]))])
    scale = np.abs(b[np.isfinite(b)]).max(initial=0)
    return (
        f"{name}: {len(wrong)} of {found.size} values are wrong; at {[int(i) for i in worst]} "
        f"{found[worst]!r} instead of {reference[worst]!r}, where {allowed[worst]:.3g} is allowed "
        f"(largest value {scale:.3g})"
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.longdouble if array.dtype.itemsize == 8 else np.float64)
