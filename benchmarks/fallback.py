"""Layers that only move elements, and other functions without an anchor, against stock dlight.

Primary functions of single operators, in the plain and in the blocked layout, are scheduled
twice: by tvmflow and by ``dlight``'s fallback rule for GPUs. Everything else is the same, the
code generator and the device included. Times are those of the device's profiling events, in
turn; a ratio is the median over the rounds of ours by dlight's.

    python benchmarks/fallback.py [--device cpu] [--rounds 30] [CASE ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from common import opencl_device, report, write_json
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx
from tvm.s_tir import dlight

from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.options import CompileOptions
from tvmflow.compiler.pipeline import run_stages
from tvmflow.devices.target import TargetSpec, resolve, with_storage
from tvmflow.ir.signatures import wants_schedule
from tvmflow.schedules import schedule_function

#: Families that are no layers of products, sums or windows: what this benchmark compares.
FAMILIES = ("fallback", "moving", "transpose")

PICTURE = (1, 64, 112, 112)


def model(operator: str, *shapes: tuple[int, ...], blocked: bool = False,
          constants: dict[str, np.ndarray] | None = None, indices: bool = False,
          **attributes: Any) -> onnx.ModelProto:  # fmt: skip
    """One operator; ``blocked`` puts pointwise convolutions before and behind it."""
    nodes, weights = [], dict(constants or {})
    inputs = {f"x{i}": shape for i, shape in enumerate(shapes)}
    kinds = [TensorProto.FLOAT] * len(inputs)
    if indices:
        kinds[-1] = TensorProto.INT64
    names = list(inputs)
    if blocked:
        for name, shape in inputs.items():
            weights[f"w{name}"] = np.eye(shape[1], dtype=np.float32)[:, :, None, None]
            nodes.append(helper.make_node("Conv", [name, f"w{name}"], [f"c{name}"]))
        names = [f"c{name}" for name in names]
    # A name that is empty stands for an input that is left out.
    operands = [*names, *("" if n.startswith("none") else n for n in constants or {})]
    result = "moved" if blocked else "y"
    nodes.append(helper.make_node(operator, operands, [result], **attributes))
    if blocked:
        nodes.append(helper.make_node("Conv", [result, "last"], ["y"]))
        weights["last"] = np.zeros((8, 1, 1, 1), np.float32)
    graph = helper.make_graph(
        nodes,
        operator,
        [
            helper.make_tensor_value_info(name, kind, shape)
            for (name, shape), kind in zip(inputs.items(), kinds, strict=True)
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for n, a in weights.items() if not n.startswith("none")],
    )
    opsets = [helper.make_opsetid("", 18)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    if not blocked:
        return onnx.shape_inference.infer_shapes(made)
    # The last convolution reads as many channels as the operator made.
    del made.graph.node[-1]
    made.graph.output[0].name = "moved"
    shaped = onnx.shape_inference.infer_shapes(made)
    dims = shaped.graph.output[0].type.tensor_type.shape.dim
    last = np.ones((8, dims[1].dim_value, 1, 1), np.float32)
    made.graph.node.append(nodes[-1])
    made.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
    for tensor in made.graph.initializer:
        if tensor.name == "last":
            tensor.CopyFrom(numpy_helper.from_array(last, "last"))
    return onnx.shape_inference.infer_shapes(made)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _resize(mode: str, scale: float, **more: Any) -> dict[str, Any]:
    scales = np.array([1, 1, scale, scale], np.float32)
    return {"constants": {"none": scales[:0], "scales": scales}, "mode": mode, **more}


_REFLECT = {"constants": {"pads": _ints(0, 0, 1, 2, 0, 0, 2, 1)}, "mode": "reflect"}
_ZEROS = {"constants": {"pads": _ints(0, 0, 1, 2, 0, 0, 2, 1)}}
_EVERY_THIRD = {"constants": {"places": np.random.default_rng(0).integers(0, 64, 64)}, "axis": 1}
_SLICE = {"constants": {"b": _ints(3, 3), "e": _ints(60, 100), "a": _ints(1, 3)}}

CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "transpose_to_nhwc": lambda: model("Transpose", PICTURE, perm=[0, 2, 3, 1]),
    "transpose_to_nchw": lambda: model("Transpose", (1, 112, 112, 64), perm=[0, 3, 1, 2]),
    "transpose_matrix": lambda: model("Transpose", (1000, 1001), perm=[1, 0]),
    "transpose_rows": lambda: model("Transpose", (12, 197, 64), perm=[1, 0, 2]),
    "transpose_shuffle": lambda: model("Transpose", (1, 4, 16, 56, 56), perm=[0, 2, 1, 3, 4]),
    "concat_channels": lambda: model("Concat", PICTURE, (1, 37, 112, 112), axis=1),
    "concat_columns": lambda: model("Concat", PICTURE, PICTURE, axis=3),
    "pad_constant": lambda: model("Pad", PICTURE, **_ZEROS),
    "pad_reflect": lambda: model("Pad", PICTURE, **_REFLECT),
    "slice": lambda: model("Slice", PICTURE, **_SLICE),
    "resize_nearest": lambda: model("Resize", (1, 32, 56, 56), **_resize("nearest", 2)),
    "resize_linear": lambda: model("Resize", (1, 32, 56, 56), **_resize("linear", 2)),
    "resize_cubic": lambda: model("Resize", (1, 8, 56, 56), **_resize("cubic", 2)),
    "gather_rows": lambda: model("Gather", (3000, 64), (500,), indices=True, axis=0),
    "gather_channels": lambda: model("Gather", PICTURE, **_EVERY_THIRD),
    "gather_elements": lambda: model("GatherElements", (64, 500), (64, 500), indices=True, axis=1),
    "depth_to_space": lambda: model("DepthToSpace", (1, 64, 56, 56), blocksize=2),
    "space_to_depth": lambda: model("SpaceToDepth", (1, 16, 112, 112), blocksize=2),
    "expand": lambda: model("Expand", (1, 64, 1, 1), constants={"s": _ints(*PICTURE)}),
    "tile": lambda: model("Tile", (1, 64, 28, 28), constants={"r": _ints(1, 1, 3, 3)}),
    "where": lambda: _where(),  # noqa: PLW0108 - it is defined below
    "add": lambda: model("Add", PICTURE, PICTURE),
    "add_odd": lambda: model("Add", (1, 61, 57, 57), (1, 61, 1, 1)),
    "gelu_vector": lambda: model("Erf", (197, 768)),
    "cumsum": lambda: model("CumSum", (64, 500), constants={"axis": _ints(1)[0:1].reshape(())}),
    "convert": lambda: model("Relu", PICTURE, blocked=True),
    "blocked_concat_aligned": lambda: model("Concat", PICTURE, PICTURE, blocked=True, axis=1),
    "blocked_concat_seam": lambda: model(
        "Concat", (1, 35, 56, 56), (1, 37, 56, 56), blocked=True, axis=1
    ),
    "blocked_pad_constant": lambda: model("Pad", PICTURE, blocked=True, **_ZEROS),
    "blocked_pad_reflect": lambda: model("Pad", PICTURE, blocked=True, **_REFLECT),
    "blocked_slice": lambda: model("Slice", PICTURE, blocked=True, **_SLICE),
    "blocked_resize_nearest": lambda: model(
        "Resize", (1, 32, 56, 56), blocked=True, **_resize("nearest", 2)
    ),
    "blocked_resize_linear": lambda: model(
        "Resize", (1, 32, 56, 56), blocked=True, **_resize("linear", 2)
    ),
    "blocked_resize_cubic": lambda: model(
        "Resize", (1, 32, 56, 56), blocked=True, **_resize("cubic", 2)
    ),
    "blocked_gather_channels": lambda: model("Gather", PICTURE, blocked=True, **_EVERY_THIRD),
    "blocked_depth_to_space": lambda: model(
        "DepthToSpace", (1, 64, 56, 56), blocked=True, blocksize=2
    ),
    "blocked_space_to_depth": lambda: model(
        "SpaceToDepth", (1, 16, 112, 112), blocked=True, blocksize=2
    ),
    "blocked_transpose": lambda: model(
        "Transpose", (1, 64, 56, 60), blocked=True, perm=[0, 1, 3, 2]
    ),
}  # fmt: skip


def _where() -> onnx.ModelProto:
    made = model("Where", PICTURE, PICTURE, PICTURE)
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    return onnx.shape_inference.infer_shapes(made)


def functions(
    source: onnx.ModelProto, spec: TargetSpec, storage: str = "buffer"
) -> Iterator[tuple[str, tirx.PrimFunc]]:
    """Primary functions of a model, not scheduled yet."""
    job = Compilation(source, CompileOptions(), target=spec, storage=storage)
    mod = run_stages(job, until="weights")
    for gv, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and wants_schedule(function):
            yield gv.name_hint, function


def stock_schedule(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """What dlight's fallback makes of a function, for TVM's default OpenCL target."""
    with tvm.target.Target("opencl"):
        return dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(tvm.IRModule({"main": function}))[
            "main"
        ]


def build(function: tirx.PrimFunc, spec: TargetSpec) -> Callable[..., None]:
    """A scheduled function, ready to be called."""
    named = function.with_attrs({"global_symbol": "measured", "tirx.is_scheduled": True})
    mod = tvm.IRModule({"measured": named})
    with spec.tvm_target:
        return tvm.compile(mod, target=spec.tvm_target, tir_pipeline=TIR_PIPELINE)["measured"]


def arguments(function: tirx.PrimFunc) -> list[Any]:
    """Random tensors on the device for every parameter; integers are valid as indices."""
    rng = np.random.default_rng(0)
    made = []
    for param in function.params:
        shape, dtype = [int(d) for d in param.shape], str(param.dtype)
        values = rng.integers(0, 2, shape) if dtype[0] in "iub" else rng.standard_normal(shape)
        made.append(tvm.runtime.tensor(np.asarray(values, dtype), tvm.opencl()))
    return made


def kernel_us(run: Callable[[], None]) -> float:
    """Device time of all kernels of a call, in microseconds."""
    begin = tvm_ffi.get_global_func("tvmflow.opencl.profile_begin")
    end = tvm_ffi.get_global_func("tvmflow.opencl.profile_end")
    begin(0)
    run()
    tvm.opencl().sync()
    return float(sum(launch["us"] for launch in json.loads(end(0))))


def measure(function: tirx.PrimFunc, spec: TargetSpec, rounds: int) -> dict[str, Any] | None:
    """Times of both schedules, in turn; ``None`` for functions with an anchor of their own."""
    with spec.tvm_target:
        ours = schedule_function(function, spec)
    if ours.family not in FAMILIES:
        return None
    taken = [build(f, spec) for f in (ours.schedule.mod["main"], stock_schedule(function))]
    tensors = [arguments(function) for _ in taken]
    times: list[list[float]] = [[], []]
    for round_ in range(rounds + 3):
        for index, (run, operands) in enumerate(zip(taken, tensors, strict=True)):
            us = kernel_us(lambda run=run, operands=operands: run(*operands))
            if round_ >= 3:
                times[index].append(us)
    for ours_, stock in zip(*tensors, strict=True):
        np.testing.assert_allclose(ours_.numpy(), stock.numpy(), rtol=1e-4, atol=1e-4)
    return {
        "family": ours.family,
        "knobs": ours.knobs,
        "ours_us": round(statistics.median(times[0]), 1),
        "dlight_us": round(statistics.median(times[1]), 1),
        "ratio": round(statistics.median(a / b for a, b in zip(*times, strict=True)), 3),
    }


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="names of cases, default all")
    parser.add_argument("--device", default="cpu", help="preset that ours is scheduled for")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    described = opencl_device()
    spec = with_storage(resolve("opencl", options.device), "buffer")
    results, rows = {}, []
    for case in options.cases or CASES:
        for name, function in functions(CASES[case](), spec):
            found = measure(function, spec, options.rounds)
            if found is None:
                continue
            results[f"{case}/{name}"] = found
            rows.append([f"{case}/{name}", found["family"], found["ours_us"],
                         found["dlight_us"], found["ratio"]])  # fmt: skip
    columns = ["function", "family", "ours µs", "dlight µs", "ours / dlight"]
    report(f"preset {options.device} on {described['name']}", columns, rows)
    ratios = [found["ratio"] for found in results.values()]
    mean = statistics.geometric_mean(ratios)
    print(f"geometric mean {mean:.3f}, largest {max(ratios):.3f} of {len(ratios)}")
    if not options.cases:
        path = write_json(
            f"fallback_{options.device}",
            {"device": described, "rounds": options.rounds, "functions": results},
        )
        print(path)


if __name__ == "__main__":
    main()
