"""NaN and infinities in a module's results: where they disagree with the reference's, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir.units import counted

if TYPE_CHECKING:
    import onnx

#: Beyond this number a tensor that is stored in 16 bits is infinite.
LARGEST_HALF = float(np.finfo(np.float16).max)


def disagreement(name: str, got: np.ndarray, reference: np.ndarray) -> str | None:
    """Say where NaN or an infinity stands in one of two arrays and not in the other.

    Returns
    -------
    str or None
        A sentence with the numbers of such places and the first one, ``None`` without any.
    """
    if got.shape != reference.shape or reference.dtype.kind != "f":
        return None
    odd = ~np.isfinite(got) | ~np.isfinite(reference)
    different = odd & ~((got == reference) | (np.isnan(got) & np.isnan(reference)))
    if not different.any():
        return None
    gained = int((different & np.isfinite(reference)).sum())
    lost = int((different & np.isfinite(got)).sum())
    other = int(different.sum()) - gained - lost
    parts = []
    if gained:
        places = counted(gained, "place")
        parts.append(f"NaN or infinity at {places} where the reference has numbers")
    if lost:
        parts.append(f"numbers at {counted(lost, 'place')} where that has NaN or infinity")
    if other:
        parts.append(f"another of NaN, inf and -inf at {counted(other, 'place')}")
    first = tuple(int(i) for i in np.argwhere(different)[0])
    return (
        f"Output {name!r} has {', and '.join(parts)}, first at {list(first)}: "
        f"{got[first]:g} for {reference[first]:g}."
    )


def origin(
    model: str | os.PathLike[str], inputs: Mapping[str, np.ndarray], *, half: bool
) -> str | None:
    """Say which node of a model yields NaN or an infinity first, in the reference.

    Parameters
    ----------
    model
        The ONNX file.
    inputs
        Arrays by name.
    half
        Whether the module stores tensors in 16 bits: then the first number that is infinite there
        counts, too.

    Returns
    -------
    str or None
        A sentence; ``None`` if the reference does not tell what is inside of the network.
    """
    for name, array in inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"Input {name!r} has NaN or infinity."
    try:
        results = list(_every_result(Path(model), inputs))
    except Exception:  # noqa: BLE001 (another comparison stands already; this only explains it)
        return None
    for node, name, array in results:
        kind = _kind(array)
        where = f"the result {name!r} of the node {node.name or name!r} ({node.op_type})"
        if kind is not None:
            return f"In the reference {kind} is first seen in {where}."
        largest = float(np.abs(array).max(initial=0)) if array.dtype.kind == "f" else 0.0
        if half and largest > LARGEST_HALF:
            return (
                f"The first numbers that are infinite in 16 bits, up to {largest:.3g}, are in "
                f"{where}; compile with `dtype=fp32`."
            )
    return "No tensor in the reference has NaN or infinity."


def _kind(array: np.ndarray) -> str | None:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return None
    return "NaN" if np.isnan(array).any() else "infinity"


def _every_result(
    path: Path, inputs: Mapping[str, np.ndarray]
) -> Iterator[tuple[onnx.NodeProto, str, np.ndarray]]:
    """Run a model with the reference; yield all nodes' results in the order of the nodes."""
    import onnx

    from .compare import has_custom_operators

    loaded = onnx.load(path, load_external_data=False)
    custom = has_custom_operators(loaded)
    if custom:
        loaded = onnx.load(path)
    run = _by_evaluator if custom else _by_onnxruntime
    arrays = run(loaded, path, inputs)
    for node in loaded.graph.node:
        for name in node.output:
            if isinstance(arrays.get(name), np.ndarray):
                yield node, name, arrays[name]


def _by_evaluator(
    loaded: onnx.ModelProto, _path: Path, inputs: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    from onnx.reference import ReferenceEvaluator

    from ..ops.onnx_form import op_runs

    with np.errstate(all="ignore"):
        return ReferenceEvaluator(loaded, new_ops=op_runs()).run(
            None, dict(inputs), intermediate=True
        )


def _by_onnxruntime(
    loaded: onnx.ModelProto, path: Path, inputs: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    import onnx
    import onnxruntime

    known = {output.name for output in loaded.graph.output}
    names = [name for node in loaded.graph.node for name in node.output if name]
    loaded.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Nodes that were made one would not be told apart.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(path.parent)
    )
    session = onnxruntime.InferenceSession(
        loaded.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
