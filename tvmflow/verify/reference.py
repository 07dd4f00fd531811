"""Runs of a model by ONNX Runtime on the CPU, or by ONNX's evaluator for custom operators."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .._versions import install_command
from ..errors import EnvironmentMismatchError, InputError, ModelError
from ..runtime.regular_files import open_file

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    from ..frontend.source import Source
    from ..runtime.json_types import JsonMapping

    Arrays = Mapping[str, np.ndarray]

T = TypeVar("T")


def opened(model: Path | onnx.ModelProto, options: JsonMapping) -> Source:
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
    return opened(model, options).model


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
    from ..frontend.source import external_files

    is_changed = any(options.get(name) for name in MODEL_OPTIONS)
    source = opened(path, options)
    external_files(source)  # Another program reads them: they must be in the model's folder.
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
        session = open_session(path, read_model(path, options) if is_changed else None)
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


def open_session(
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
        lambda: exact_session(
            os.fspath(path) if loaded is None else loaded.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        ),
    )


def exact_session(
    model: str | bytes, options: onnxruntime.SessionOptions, **more: list[str]
) -> onnxruntime.InferenceSession:
    """Open a session that does not saturate sums of products of bytes, where it can.

    On x86 without VNNI, ONNX Runtime adds two such products in 16 bits, unless it turns signed
    weights into unsigned ones; it then refuses some convolutions of int8, which are opened without.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

    key = "session.x64quantprecision"
    options.add_session_config_entry(key, "1")
    try:
        return onnxruntime.InferenceSession(model, options, **more)
    except NoKernel:
        options.add_session_config_entry(key, "0")
        return onnxruntime.InferenceSession(model, options, **more)


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
        session = open_session(path, extended, optimised=False)
        with np.errstate(all="ignore"):
            arrays = _attempt(
                f"Running {path} in ONNX Runtime",
                lambda: dict(zip(names, session.run(names, dict(inputs)), strict=True)),
            )
    return {name: arrays[name] for name in names if isinstance(arrays.get(name), np.ndarray)}
