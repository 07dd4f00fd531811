"""A tiny network for the CPU, built with Relax alone: two outputs and one weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.ir.tensors import TensorInfo
from tvmflow.module.artifact import Artifact, write_artifact

X = TensorInfo("x/in", (1, 3, 8, 8), "float32")
SHIFT = TensorInfo("shift", (4, 1, 1), "float32")
OUTPUTS = (TensorInfo("sum", (1, 4, 8, 8), "float32"), TensorInfo("mask", (1, 4, 8, 8), "bool"))


def build(host: str | None = None) -> Any:
    """Compile ``conv2d(x, w) + shift`` and ``… > 0``; `host` is an LLVM triple."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, X.dtype))
    shift = relax.Var("shift", relax.TensorType(SHIFT.shape, SHIFT.dtype))
    w = relax.Var("w", relax.TensorType((4, 3, 3, 3), "float32"))
    with builder.function("main", [x, shift, w]):
        with builder.dataflow():
            total = builder.emit(relax.op.add(relax.op.nn.conv2d(x, w, padding=1), shift))
            mask = builder.emit(relax.op.greater(total, relax.const(0, "float32")))
            result = builder.emit_output(relax.Tuple([total, mask]))
        builder.emit_func_output(result)
    kind: dict[str, Any] = {"kind": "llvm"}
    if host is not None:
        kind["mtriple"] = host
    return tvm.relax.build(builder.get(), tvm.target.Target(kind, host=kind))


def metadata(**changes: Any) -> dict[str, Any]:
    """Return the metadata that the pipeline would write for the network."""
    return {
        "name": "tiny",
        "target": "llvm",
        "device": "cpu",
        "inputs": (X, SHIFT),
        "outputs": OUTPUTS,
        "kernels": [{"name": "conv2d", "function": "conv2d"}],
        "memory": dict.fromkeys(("peak_bytes", "lower_bound_bytes"), 0)
        | {part: [] for part in ("steps", "blocks", "tensors")},
        "options": {"storage": "buffer"},
        "stage_ms": {"build": 1.5},
        **changes,
    }


def write(executable: Any, path: Path, **options: Any) -> Artifact:
    """Write a module of the network; ``options`` are those of `write_artifact`."""
    given = {"metadata": metadata(), "weights": {"w": weight()}, **options}
    return write_artifact(executable, path, **given)


def weight() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((4, 3, 3, 3), np.float32)


def values() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(8)
    return {info.name: generator.standard_normal(info.shape, np.float32) for info in (X, SHIFT)}


def expected(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first output, computed with NumPy in double precision."""
    padded = np.pad(inputs["x/in"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight()) + inputs["shift"]
