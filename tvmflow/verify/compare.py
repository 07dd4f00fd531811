"""Comparison of a module's results with ONNX Runtime on the CPU, or ONNX's evaluator.

If the two disagree on NaN or infinity, the report names the first such tensor.  If an output is
beyond its tolerance, the noise model runs the reference with all numbers moved by a unit in their
last place: results of a quantized or ill-conditioned network may differ as much.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .._versions import install_command
from ..errors import EnvironmentMismatchError, InputError, ModelError, VerificationError
from ..ir.units import counted
from ..module.blocked_layout import all_to_logical
from ..module.module import Module, load
from ..module.samples import random_inputs
from ..runtime.regular_files import open_file
from .tolerance import (
    HALF_ROUNDING,
    Comparison,
    Tolerance,
    compare,
    is_half,
    table_for,
    tolerance_for,
)

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    from ..frontend.source import Source
    from ..runtime.json_types import JsonMapping

    Arrays = Mapping[str, np.ndarray]

T = TypeVar("T")

#: Perturbed networks that the noise model runs.
_NEIGHBOURS = 3
#: Largest noise allowed for a network without quantization, relative to the output's magnitude:
#: in fp32, and stored in 16 bits.
_LARGEST_NOISE = (1e-3, 5e-2)
#: Operators whose float inputs determine shapes; these inputs are not perturbed.
_SHAPING = ("Resize", "Upsample", "Range")
#: Operators that move elements without changing them.
_MOVES = ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Identity")


@dataclass(frozen=True)
class Report:
    """Comparison of every output, in the module's order."""

    outputs: tuple[Comparison, ...]
    reference: str  #: Name and version of the reference.
    #: Sentences about NaN and infinities that only one of the two has, and their origin.
    not_finite: tuple[str, ...] = ()
    #: Outputs beyond their tolerance whose reference differs as much when all numbers move by a
    #: unit in their last place: these inputs do not decide which result is right.
    undecided: tuple[str, ...] = ()
    #: Sentence about the first tensor that is infinite or loses digits in 16 bits.
    lost: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    def __repr__(self) -> str:
        worst = max(self.outputs, key=lambda output: output.used, default=None)
        most = f", at most {worst.used:.2%} of a tolerance used" if worst else ""
        verdict = "passed" if self.passed else "failed"
        outputs = counted(len(self.outputs), "output")
        return f"<Report: {verdict} against {self.reference}, {outputs}{most}>"

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` if outputs are beyond their tolerance."""
        failed = [output for output in self.outputs if not output.passed]
        if failed:
            worst = max(failed, key=lambda output: output.used)
            notes = (*self.not_finite, *self.lost, *map(_undecided_note, self.undecided))
            raise VerificationError(
                f"{len(failed)} of {len(self.outputs)} outputs differ from {self.reference} by "
                f"more than the tolerance, most of all {worst.name!r}, whose relative error is "
                + " ".join((f"{worst.max_rel_error:.3g}.", *notes)),
                remedy="Compile with `calibrate`, or with `dtype=fp32`."
                if self.lost
                else "Compile with `dump_ir` and compare the stages, or report the model.",
            )


def verify(
    model: str | os.PathLike[str],
    module: Module | str | os.PathLike[str],
    inputs: Arrays | None = None,
    *,
    seed: int = 0,
) -> Report:
    """Compare a module's results with ONNX Runtime's.

    A model with custom operators, which ONNX Runtime does not know, is run by ONNX's reference
    evaluator instead, which is slow.

    Raises `EnvironmentMismatchError` if ONNX Runtime is not installed, `ModelError` if the
    reference cannot read or run the model or it is not the module's model, and `InputError` if an
    input does not fit.

    Parameters
    ----------
    model
        The ONNX file that the module was compiled from (of any size).
    module
        The module, or its file.
    inputs
        Arrays by ONNX name; random ones of `seed` by default.
    """
    if isinstance(module, str | os.PathLike):
        with closing(load(module)) as opened:
            return verify(model, opened, inputs, seed=seed)
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    logical = all_to_logical(module.inputs, values)
    names = [info.name for info in module.outputs]
    wanted = module.metadata.get("options", {})
    reference, name = run_reference(model, logical, names, wanted)
    results = {
        key: np.asarray(result)
        for key, result in all_to_logical(module.outputs, dict(module(values).items())).items()
    }
    table = table_for(module.metadata)
    allowed = {key: tolerance_for(reference[key].dtype.name, table) for key in names}
    half = is_half(module.metadata, "dtype")
    outputs = _compare_all(results, reference, allowed)
    differs: dict[str, float] = {}
    if not all(output.passed for output in outputs):
        allowed, differs = _with_noise(Path(model), logical, reference, allowed, half, wanted)
        outputs = _compare_all(results, reference, allowed)
    undecided = tuple(
        output.name
        for output in outputs
        if not output.passed and output.max_abs_error <= 2 * differs.get(output.name, 0.0)
    )
    found = [disagreement(key, result, reference[key]) for key, result in results.items()]
    loss = None
    if half and not all(output.passed for output in outputs):
        from .halves import first_loss

        loss = first_loss(Path(model), logical, module.metadata, wanted)
    lost: tuple[str, ...] = ()
    if loss is not None and not loss.is_choice:
        # The results are wrong, and not a choice among nearly equal numbers.
        undecided, lost = (), (str(loss),)
    elif any(found):
        found.append(origin(model, logical, wanted))
    return Report(outputs, name, tuple(filter(None, found)), undecided, lost)


def _undecided_note(output: str) -> str:
    return (
        f"The reference's own results of {output!r} differ as much when all numbers move by a unit "
        "in their last place: it chooses among values that are nearly equal. Give inputs of the "
        "kind that the network was trained for."
    )


def _compare_all(
    results: Arrays, reference: Arrays, allowed: Mapping[str, Tolerance]
) -> tuple[Comparison, ...]:
    return tuple(compare(k, result, reference[k], allowed[k]) for k, result in results.items())


def _opened(model: Path | onnx.ModelProto, options: JsonMapping) -> Source:
    """Open a model and apply a module's options to it."""
    from ..frontend.apply_options import apply_options
    from ..frontend.source import open_model

    return apply_options(open_model(model), options)


def read_model(
    model: Path | onnx.ModelProto, options: JsonMapping, *, external: bool = False
) -> onnx.ModelProto:
    """Read a model with a module's options applied, and external weights if asked for."""
    import onnx

    # Rounding applies to external weights, too.
    external = external or bool(options.get("weights"))
    if isinstance(model, Path):
        with open_file(model) as file:
            model = onnx.load(file, load_external_data=external)
    return _opened(model, options).model


def run_reference(
    model: str | os.PathLike[str],
    inputs: Arrays,
    outputs: list[str],
    options: JsonMapping | None = None,
) -> tuple[dict[str, np.ndarray], str]:
    """Run an ONNX file with ONNX Runtime on the CPU, or with ONNX's evaluator.

    ``inputs`` are arrays by name, ``outputs`` names; the options are applied to the model first.
    Returns the outputs by name, and name and version of the reference.  Raises the errors of
    `verify`.
    """
    from ..frontend.apply_options import MODEL_OPTIONS

    options = options or {}
    path = Path(model)
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else "there is no such file"
        raise ModelError(f"Reading the model {path} failed: {found}.", remedy="Check the name.")
    from ..frontend.source import check_external_files

    is_changed = any(options.get(name) for name in MODEL_OPTIONS)
    source = _opened(path, options)
    check_external_files(source)
    if has_custom_operators(source.model):
        import onnx
        from onnx.inliner import inline_local_functions

        name = f"ONNX {onnx.__version__}'s reference evaluator"
        session = _attempt(
            f"Loading {path} in {name}",
            lambda: _evaluator(inline_local_functions(read_model(path, options, external=True))),
        )
        known: Sequence[list[str]] = session.input_names, session.output_names
    else:
        session = _open_session(path, read_model(path, options) if is_changed else None)
        import onnxruntime

        name = f"ONNX Runtime {onnxruntime.__version__}"
        nodes = session.get_inputs(), session.get_outputs()
        known = [[node.name for node in each] for each in nodes]
    if kind := options.get("weights"):
        name += f" with weights rounded to {kind}"
    _check_names("input", list(inputs), known[0], path)
    _check_names("output", outputs, known[1], path)
    with np.errstate(all="ignore"):  # NaN and infinity are results like others
        results = _attempt(f"Running {path} in {name}", lambda: session.run(outputs, dict(inputs)))
    return dict(zip(outputs, results, strict=True)), name


def has_custom_operators(model: onnx.ModelProto) -> bool:
    """Return whether a model, or a function in it, has nodes of our domain."""
    from ..frontend.nested import all_nodes
    from ..ir.operator import DOMAIN

    graphs = (model.graph, *model.functions)
    return any(node.domain == DOMAIN for graph in graphs for node in all_nodes(graph.node))


def _evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return ONNX's reference evaluator of a model, with our operators."""
    from onnx.reference import ReferenceEvaluator

    from ..ops.onnx_form import op_runs

    return ReferenceEvaluator(model, new_ops=op_runs())


def _open_session(
    path: Path, loaded: onnx.ModelProto | None = None, *, optimised: bool = True, int8: bool = False
) -> onnxruntime.InferenceSession:
    """Open a file, or the model loaded from it, with ONNX Runtime.

    With `int8`, operators between int8 tensors become quantized ones as on Arm; by default x86
    converts only operators whose tensors can be made uint8.
    """
    if find_spec("onnxruntime") is None:
        raise EnvironmentMismatchError(
            "Verifying needs ONNX Runtime, the reference, which is not installed.",
            remedy=install_command("verify"),
        )
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    # Compute products with 4-bit weights in fp32; by default their inputs are rounded to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if int8:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if loaded is not None:
        if loaded.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
            raise ModelError(
                f"Loading {path} in ONNX Runtime failed: its rounded weights have "
                f"{loaded.ByteSize() / 1e9:.1f} GB, of which it takes 2 without the file.",
                remedy="Compile the model without `weights`, and verify that.",
            )
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(path.parent)
        )
    return _attempt(
        f"Loading {path} in ONNX Runtime",
        lambda: onnxruntime.InferenceSession(
            os.fspath(path) if loaded is None else loaded.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        ),
    )


def _attempt(what: str, function: Callable[[], T]) -> T:
    try:
        return function()
    except Exception as error:
        # Remove ONNX Runtime's own source locations, which precede the reason.
        text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
        text = re.sub(r"/\S+\.(?:cc|h):\d+ \S.*\) (?=\S)", " ", text)
        lines = text.splitlines() or [type(error).__name__]
        message = f"{what} failed: {lines[0]}"
        if "InvalidArgument" in type(error).__name__:
            raise InputError(message, remedy="Check names, shapes and dtypes.") from error
        raise ModelError(
            message,
            remedy="Check the file with onnx.checker and export it again, or install a newer "
            "onnxruntime.",
            details="\n".join(lines[1:]) or None,
        ) from error


def _check_names(kind: str, wanted: list[str], found: list[str], path: Path) -> None:
    """Check that the model has the module's names."""
    for name in wanted:
        if name not in found:
            near = get_close_matches(name, found, 1)
            hint = f"the nearest is {near[0]!r}" if near else f"it has {', '.join(found)}"
            raise ModelError(
                f"The model {path} has no {kind} {name!r}; {hint}.",
                remedy="Give the model that the module was compiled from.",
            )


def disagreement(name: str, got: np.ndarray, reference: np.ndarray) -> str | None:
    """Describe where only one of two arrays has NaN or an infinity.

    Returns a sentence with the number of such elements and the first one; ``None`` without any.
    """
    if got.shape != reference.shape or reference.dtype.kind != "f":
        return None
    odd = ~np.isfinite(got) | ~np.isfinite(reference)
    different = odd & ~((got == reference) | (np.isnan(got) & np.isnan(reference)))
    if not different.any():
        return None
    gained = int((different & np.isfinite(reference)).sum())
    lost = int((different & np.isfinite(got)).sum())
    kinds = {
        "NaN or infinity at {} where the reference has numbers": gained,
        "numbers at {} where that has NaN or infinity": lost,
        "another of NaN, inf and -inf at {}": int(different.sum()) - gained - lost,
    }
    parts = [text.format(counted(count, "place")) for text, count in kinds.items() if count]
    first = tuple(int(i) for i in np.argwhere(different)[0])
    return (
        f"Output {name!r} has {', and '.join(parts)}, first at {list(first)}: "
        f"{got[first]:g} for {reference[first]:g}."
    )


def origin(
    model: str | os.PathLike[str], inputs: Arrays, options: JsonMapping | None = None
) -> str | None:
    """Find the first node of an ONNX file that yields NaN or an infinity in the reference.

    Returns a sentence; ``None`` if the reference cannot run the model's inner tensors.
    """
    for name, array in inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"Input {name!r} has NaN or infinity."
    try:
        loaded = read_model(Path(model), options or {})
        found = all_results(Path(model), loaded, inputs)
    except Exception:  # noqa: BLE001 (another comparison stands already; this only explains it)
        return None
    nodes = {name: node for node in loaded.graph.node for name in node.output}
    for name, array in found.items():
        if array.dtype.kind != "f":
            continue
        where = f"the result {name!r} of the node {nodes[name].name or name!r}"
        where += f" ({nodes[name].op_type})"
        if not np.isfinite(array).all():
            kind = "NaN" if np.isnan(array).any() else "infinity"
            return f"In the reference {kind} is first seen in {where}."
    return "No tensor in the reference has NaN or infinity."


def all_results(path: Path, model: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """Run a model with the reference, and return the arrays of all nodes in order.

    `path` is the model's file; external data is next to it.
    """
    import onnx

    names = [name for node in model.graph.node for name in node.output if name]
    if has_custom_operators(model):
        # The evaluator needs external data when it is created.
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
        onnx.load_external_data_for_model(whole, str(path.parent))
        with np.errstate(all="ignore"):
            arrays = _evaluator(whole).run(None, dict(inputs), intermediate=True)
    else:
        extended = onnx.ModelProto()
        extended.CopyFrom(model)
        known = {output.name for output in model.graph.output}
        extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
        # Without optimisations, which fuse nodes.
        session = _open_session(path, extended, optimised=False)
        with np.errstate(all="ignore"):
            arrays = _attempt(
                f"Running {path} in ONNX Runtime",
                lambda: dict(zip(names, session.run(names, dict(inputs)), strict=True)),
            )
    return {name: arrays[name] for name in names if isinstance(arrays.get(name), np.ndarray)}


def _with_noise(
    path: Path,
    inputs: Arrays,
    reference: Arrays,
    allowed: dict[str, Tolerance],
    half: bool,
    options: JsonMapping,
) -> tuple[dict[str, Tolerance], dict[str, float]]:
    """Widen the tolerances of outputs by the noise of ONNX Runtime's own results; return both.

    The noise model runs ONNX Runtime with its optimisations, with those for Arm, without any, and
    with all inputs and constants moved by a unit in their last place, which has the effect of
    another order of summation.  If the module stores 16 bits, the unit is that of 16 bits, and
    inner tensors are rounded to 16 bits.  Our results may differ by twice the noise.

    In a quantized network a number between two steps is rounded either way depending on its last
    bit, and later layers amplify that without a limit; outputs may be off by a step.  Without
    quantization, noise comes from an ill-conditioned network: it is limited to `_LARGEST_NOISE`,
    and integers must be equal.
    """
    from ..frontend.nested import all_nodes

    source = _opened(path, options).model
    if has_custom_operators(source):
        return allowed, {}
    names = {node.op_type for node in all_nodes(source.graph.node)}
    # Quantized networks round to integers inside.
    rounds = any(n in ("QuantizeLinear", "DynamicQuantizeLinear") or "QLinear" in n for n in names)
    differs = _noise(path, inputs, list(reference), half and not rounds, options)
    if rounds:
        steps = {key: step_of(source, key) for key in allowed}
        wider = {k: widened(t, reference[k], differs[k], steps[k]) for k, t in allowed.items()}
    else:
        wider = {
            key: widened(tolerance, reference[key], differs[key], most=_LARGEST_NOISE[half])
            if reference[key].dtype.kind == "f"
            else tolerance
            for key, tolerance in allowed.items()
        }
    return wider, differs


def _neighbour(array: np.ndarray, rng: np.random.Generator, half: bool) -> np.ndarray:
    """Move floats at random by one unit in the last place (of 16 bits with ``half``), or not."""
    if array.dtype.kind != "f":
        return array
    toward = rng.choice([-np.inf, 0, np.inf], array.shape)
    there = np.nextafter(array, toward.astype(array.dtype))
    if half:
        there = (array * (1 + np.sign(toward) * 2 * HALF_ROUNDING)).astype(array.dtype)
    return np.where((toward == 0) | ~np.isfinite(array), array, there)


def _noise(
    path: Path,
    inputs: Arrays,
    outputs: Sequence[str],
    half: bool,
    options: JsonMapping,
) -> dict[str, float]:
    """Return the largest difference between runs of the noise model, by output."""
    import onnx
    from onnx.numpy_helper import from_array, to_array

    from ..frontend.nested import all_nodes

    rng = np.random.default_rng(0)
    model = read_model(path, options)
    shaping = (n for n in all_nodes(model.graph.node) if n.op_type in _SHAPING)
    fixed = {name for node in shaping for name in node.input} | integers_of(model)
    moving = [
        (tensor, to_array(tensor))
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and tensor.data_location != onnx.TensorProto.EXTERNAL
        and tensor.name not in fixed
    ]

    def run(
        changed: onnx.ModelProto, feeds: Arrays, optimised: bool, int8: bool = False
    ) -> dict[str, np.ndarray]:
        session = _open_session(path, changed, optimised=optimised, int8=int8)
        return dict(zip(outputs, session.run(list(outputs), dict(feeds)), strict=True))

    runs = [run(model, inputs, optimised) for optimised in (True, False)]
    runs.append(run(model, inputs, optimised=True, int8=True))
    if half:
        rounded = stored_in_half(model, lambda name: name not in fixed)
        runs.append(run(rounded, inputs, optimised=False))
    for _ in range(_NEIGHBOURS):
        feeds = {name: _neighbour(array, rng, half) for name, array in inputs.items()}
        for tensor, array in moving:
            tensor.CopyFrom(from_array(_neighbour(array, rng, half), tensor.name))
        runs += [run(model, feeds, optimised) for optimised in (True, False)]
    first = runs[0]
    return {name: max(_distance(run[name], first[name]) for run in runs) for name in outputs}


def integers_of(model: onnx.ModelProto) -> set[str]:
    """Return the tensors computed from integers, booleans and scalars only, and their inputs.

    They are exact in any order: exporters compute indices as floats and round them down.
    """
    import onnx
    from onnx import TensorProto

    graph = onnx.shape_inference.infer_shapes(model).graph
    counts = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)
    known = {
        value.name
        for value in (*graph.input, *graph.value_info)
        if value.type.tensor_type.elem_type in counts
    }
    constants = [(t.name, t) for t in graph.initializer]
    constants += [(n.output[0], a.t) for n in graph.node for a in n.attribute if a.name == "value"]
    known |= {n for n, t in constants if t.data_type in counts or prod(t.dims) == 1}
    found: set[str] = set()
    for node in graph.node:
        if node.input and known.issuperset(filter(None, node.input)):
            known.update(node.output)
            found.update(node.input, node.output)
    return found


def stored_in_half(model: onnx.ModelProto, is_stored: Callable[[str], bool]) -> onnx.ModelProto:
    """Return a copy that rounds the fp32 results for which ``is_stored`` holds to 16 bits."""
    import onnx
    from onnx import TensorProto, helper

    rounded = onnx.shape_inference.infer_shapes(model)
    graph = rounded.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        casts = []
        for index, name in enumerate(node.output):
            if types.get(name) == TensorProto.FLOAT and is_stored(name):
                wide, stored = f"{name}/32 bits", f"{name}/16 bits"
                node.output[index] = wide
                casts.append(helper.make_node("Cast", [wide], [stored], to=TensorProto.FLOAT16))
                casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
        graph.node.extend([node, *casts])
    return rounded


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:  # the extent depends on values: no noise is allowed
        return 0.0
    both = np.isfinite(a) & np.isfinite(b)
    difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(difference[both].max(initial=0))


def step_of(model: onnx.ModelProto, output: str) -> float:
    """Return the step between values of a quantized output; 0 for other outputs."""
    import onnx
    from onnx.numpy_helper import to_array

    makers = {name: node for node in model.graph.node for name in node.output}
    inside = (t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL)
    constants = {tensor.name: tensor for tensor in inside}
    node = makers.get(output)
    while node is not None and node.op_type in _MOVES:
        node = makers.get(node.input[0])
    kind = "" if node is None else node.op_type
    if kind == "QuantizeLinear" or kind.startswith("QLinear"):
        return 1.0
    if node is None or kind != "DequantizeLinear" or node.input[1] not in constants:
        return 0.0
    return float(np.max(to_array(constants[node.input[1]])))


def widened(
    tolerance: Tolerance,
    reference: np.ndarray,
    differs: float,
    step: float = 0.0,
    most: float = np.inf,
) -> Tolerance:
    """Return a tolerance for an output with noise of ``differs``.

    `step` is the distance between two values of a quantized output; at most `most` of the
    reference's magnitude is allowed.
    """
    finite = np.abs(reference[np.isfinite(reference)].astype(np.float64))
    largest = float(finite.max(initial=0))
    if not largest:
        return tolerance
    allowed = min(max(step, 2 * differs) * (1 + 1e-6) / largest, most)
    steps = f"{2 * differs / step:.3g} steps" if step else f"{2 * differs:.3g}"
    reason = f"{'a step, or ' if step else ''}twice what ONNX Runtime's own results differ by when "
    reason += f"numbers move by a unit in their last place: {steps}"
    return replace(tolerance, absolute=max(tolerance.absolute, allowed), reason=reason)
