"""A module's results against ONNX Runtime on the CPU, or ONNX's evaluator for custom operators."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EnvironmentMismatchError, InputError, ModelError, VerificationError
from ..module.kept import all_to_logical
from ..module.samples import random_inputs
from .not_finite import disagreement, origin
from .tolerance import (
    NETWORK,
    STORED_AS_HALF,
    Comparison,
    Tolerance,
    compare,
    summed_in_half,
    tolerance_for,
)

if TYPE_CHECKING:
    import onnx

    from ..module.module import Module


@dataclass(frozen=True)
class Report:
    """The comparison of every output.

    Parameters
    ----------
    outputs
        One comparison an output, in the module's order.
    reference
        What the results were compared with: name and version.
    not_finite
        Sentences on NaN and infinities that only one of both has, and where they come from.
    """

    outputs: tuple[Comparison, ...]
    reference: str
    not_finite: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.passed for output in self.outputs)

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` that names the outputs beyond their tolerance."""
        failed = [output for output in self.outputs if not output.passed]
        if failed:
            worst = max(failed, key=lambda output: output.used)
            raise VerificationError(
                f"{len(failed)} of {len(self.outputs)} outputs differ from {self.reference} by "
                f"more than the tolerance, most of all {worst.name!r}, whose relative error is "
                + " ".join((f"{worst.max_rel_error:.3g}.", *self.not_finite)),
                remedy="Compile with `dump_ir` and compare the stages, or report the model.",
            )


def verify(
    model: str | os.PathLike[str],
    module: Module,
    inputs: Mapping[str, np.ndarray] | None = None,
    *,
    seed: int = 0,
) -> Report:
    """Compare a module's results with ONNX Runtime's.

    A model with custom operators, which ONNX Runtime does not know, is run by ONNX's reference
    evaluator instead, which is slow.

    Parameters
    ----------
    model
        The ONNX file that the module was compiled from (of any size).
    module
        The compiled network.
    inputs
        Arrays by ONNX name, default random ones.
    seed
        Seeds the random inputs.

    Raises
    ------
    EnvironmentMismatchError
        If ONNX Runtime is not installed.
    ModelError
        If the reference cannot read or run the model, or it is not the module's.
    InputError
        If an input does not fit.
    """
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    logical = all_to_logical(module.inputs, values)
    names = [info.name for info in module.outputs]
    reference, name = run_reference(model, logical, names)
    results = all_to_logical(module.outputs, dict(module(values).items()))
    table = table_for(module.metadata)
    allowed = {key: tolerance_for(reference[key].dtype.name, table) for key in names}
    allowed = _with_noise(Path(model), logical, reference, allowed)
    outputs = tuple(
        compare(key, np.asarray(result), reference[key], allowed[key])
        for key, result in results.items()
    )
    return Report(outputs, name, _not_finite(model, module, logical, results, reference))


def _not_finite(
    model: str | os.PathLike[str],
    module: Module,
    inputs: Mapping[str, np.ndarray],
    results: Mapping[str, Any],
    reference: Mapping[str, np.ndarray],
) -> tuple[str, ...]:
    found = [disagreement(key, np.asarray(value), reference[key]) for key, value in results.items()]
    sentences = [sentence for sentence in found if sentence is not None]
    if not sentences:
        return ()
    half = module.metadata.get("options", {}).get("dtype", "fp32") == "fp16"
    source = origin(model, inputs, half=half)
    return (*sentences, *([source] if source is not None else []))


def _with_noise(
    path: Path,
    inputs: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    allowed: dict[str, Tolerance],
) -> dict[str, Tolerance]:
    """The tolerances of a network's outputs, wider ones if it is quantized."""
    from ..frontend.source import open_model
    from .quantization_noise import is_quantized, noise, step_of, widened

    source = open_model(path).model
    if has_custom_operators(source) or not is_quantized(source):
        return allowed
    differs = noise(path, inputs, list(reference))
    return {
        key: widened(tolerance, reference[key], differs[key], step_of(source, key))
        for key, tolerance in allowed.items()
    }


def table_for(metadata: Mapping[str, Any]) -> dict[str, Tolerance]:
    """The tolerances of a module, by how it stores tensors and takes sums."""
    options = metadata.get("options", {})
    if options.get("accumulate", "fp32") == "fp16":
        return summed_in_half(metadata["half_sums"])
    return STORED_AS_HALF if options.get("dtype", "fp32") == "fp16" else NETWORK


def run_reference(
    model: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], outputs: list[str]
) -> tuple[dict[str, np.ndarray], str]:
    """Run an ONNX file with ONNX Runtime on the CPU, or with ONNX's evaluator.

    Parameters
    ----------
    model
        The ONNX file.
    inputs
        Arrays by name.
    outputs
        Names of the outputs wanted.

    Returns
    -------
    tuple
        Arrays by name, and name and version of the reference.

    Raises
    ------
    EnvironmentMismatchError, ModelError, InputError
        As for `verify`.
    """
    path = Path(model)
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else "there is no such file"
        raise ModelError(f"Reading the model {path} failed: {found}.", remedy="Check the name.")
    from ..frontend.source import check_external_files, open_model

    source = open_model(path)
    check_external_files(source)
    if has_custom_operators(source.model):
        return _run_evaluator(path, inputs, outputs)
    return _run_onnxruntime(path, inputs, outputs)


def has_custom_operators(model: onnx.ModelProto) -> bool:
    """Whether a model, or a function in it, has nodes of our domain."""
    from ..ir.operator import DOMAIN

    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    return any(node.domain == DOMAIN for node in nodes)


def _run_evaluator(
    path: Path, inputs: Mapping[str, np.ndarray], outputs: list[str]
) -> tuple[dict[str, np.ndarray], str]:
    """Run a model with ONNX's reference evaluator, which takes our operators."""
    import onnx
    from onnx.inliner import inline_local_functions
    from onnx.reference import ReferenceEvaluator

    from ..ops.onnx_form import op_runs

    name = f"ONNX {onnx.__version__}'s reference evaluator"
    loaded = _attempt(f"Loading {path} in {name}", lambda: onnx.load(path))
    session = _attempt(
        f"Loading {path} in {name}",
        lambda: ReferenceEvaluator(inline_local_functions(loaded), new_ops=op_runs()),
    )
    _check_names("input", list(inputs), session.input_names, path)
    _check_names("output", outputs, session.output_names, path)
    with np.errstate(all="ignore"):  # NaN and infinity are results like others
        results = _attempt(f"Running {path} in {name}", lambda: session.run(outputs, dict(inputs)))
    return dict(zip(outputs, results, strict=True)), name


def _run_onnxruntime(
    path: Path, inputs: Mapping[str, np.ndarray], outputs: list[str]
) -> tuple[dict[str, np.ndarray], str]:
    session = open_reference(path)
    import onnxruntime

    _check_names("input", list(inputs), [node.name for node in session.get_inputs()], path)
    _check_names("output", outputs, [node.name for node in session.get_outputs()], path)
    results = _attempt(
        f"Running {path} in ONNX Runtime", lambda: session.run(outputs, dict(inputs))
    )
    reference = f"ONNX Runtime {onnxruntime.__version__}"
    return dict(zip(outputs, results, strict=True)), reference


def open_reference(path: Path, optimised: bool = True) -> Any:
    """ONNX Runtime's session for a file, with its optimisations of graphs or without."""
    if find_spec("onnxruntime") is None:
        raise EnvironmentMismatchError(
            "Verifying needs ONNX Runtime, the reference, which is not installed.",
            remedy="python -m pip install 'tvmflow[verify]'",
        )
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: they are raised as well
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _attempt(
        f"Loading {path} in ONNX Runtime",
        lambda: onnxruntime.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        ),
    )


def _attempt(what: str, function: Any) -> Any:
    try:
        return function()
    except Exception as error:
        lines = _without_origin(str(error)).splitlines() or [type(error).__name__]
        message = f"{what} failed: {lines[0]}"
        if "InvalidArgument" in type(error).__name__:
            raise InputError(message, remedy="Check names, shapes and dtypes.") from error
        raise ModelError(
            message,
            remedy="Check the file with onnx.checker and export it again, or install a newer "
            "onnxruntime.",
            details="\n".join(lines[1:]) or None,
        ) from error


def _without_origin(message: str) -> str:
    """Drop what ONNX Runtime says of its own source code before the reason."""
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message.strip())
    return re.sub(r"/\S+\.(?:cc|h):\d+ \S.*\) (?=\S)", " ", message)


def _check_names(kind: str, wanted: list[str], found: list[str], path: Path) -> None:
    """Compare the module's names with the model's: another model has others."""
    for name in wanted:
        if name not in found:
            near = get_close_matches(name, found, 1)
            hint = f"the nearest is {near[0]!r}" if near else f"it has {', '.join(found)}"
            raise ModelError(
                f"The model {path} has no {kind} {name!r}; {hint}.",
                remedy="Give the model that the module was compiled from.",
            )
