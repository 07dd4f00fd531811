"""Attention as one primary function, as products and a softmax, and by ONNX Runtime.

Sizes of ViT and DeiT (197 patches), Swin's windows, MobileViT's patches and long sequences, by each
in turn.  Times are of all kernels, each the median of five runs a round; ONNX Runtime's are a
call's.

    python benchmarks/attention.py [--rounds 12] [--targets llvm opencl] [CASE ...]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import onnx
import onnxruntime
from common import in_turn, opencl_device, report, summary, write_json
from onnx import TensorProto, helper

import tvmflow
from tvmflow.compiler import passes

#: By name: batch, heads, queries (and keys), numbers of a head, and the mask's shape.
CASES: dict[str, tuple[int, int, int, int, tuple[int, ...] | None]] = {
    "ViT, 3 heads": (1, 3, 197, 64, None),
    "ViT, 6 heads": (1, 6, 197, 64, None),
    "ViT, 12 heads": (1, 12, 197, 64, None),
    "BERT, masked": (1, 12, 128, 64, (1, 1, 1, 128)),
    "Swin, 64 windows": (64, 3, 49, 32, (1, 3, 49, 49)),
    "Swin, 4 windows": (4, 12, 49, 32, (1, 12, 49, 49)),
    "MobileViT, 256": (4, 4, 256, 36, None),
    "MobileViT, 64": (4, 4, 64, 48, None),
    "MobileViT, 16": (4, 4, 16, 60, None),
    "one query": (1, 12, 1, 64, None),
    "long": (1, 4, 1024, 64, None),
    "4,096 keys": (1, 1, 4096, 64, None),
}


def model(
    batch: int, heads: int, rows: int, depth: int, mask: tuple[int, ...] | None
) -> onnx.ModelProto:
    """Attention as exporters write it; one query attends 512 keys."""
    keys = rows if rows > 1 else 512
    shapes = {"q": (batch, heads, rows, depth)}
    shapes |= dict.fromkeys("kv", (batch, heads, keys, depth))
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Softmax", ["masked" if mask else "scores"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    if mask:
        shapes["mask"] = mask
        nodes.insert(3, node("Add", ["scores", "mask"], ["masked"]))
    fp32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(name, fp32, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", fp32, shapes["q"])],
        [helper.make_tensor("scale", fp32, [], [depth**-0.5])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@contextmanager
def unfused() -> Iterator[None]:
    """Compile without the pass."""
    fuse, passes.fuse_attention = passes.fuse_attention, lambda mod, _device, **_: mod
    try:
        yield
    finally:
        passes.fuse_attention = fuse


def candidates(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], targets: list[str]
) -> dict[str, Callable[[], float]]:
    """What is compared, by name: each measures itself, in milliseconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    # Its threads would spin into what is timed next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)

    def call() -> float:
        return statistics.median(
            in_turn({"": lambda: session.run(None, feeds)}, rounds=5, warmup=1)[""]
        )

    found: dict[str, Callable[[], float]] = {"ONNX Runtime": call}
    for target in targets:
        fused = tvmflow.compile(proto, target=target)
        with unfused():
            apart = tvmflow.compile(proto, target=target)
        for name, module in {"fused": fused, "apart": apart}.items():
            found[f"{target} {name}"] = partial(kernels_ms, module, feeds)
    return found


def kernels_ms(module: tvmflow.Module, feeds: dict[str, np.ndarray]) -> float:
    """The time of a module's kernels."""
    return sum(kernel.median_us for kernel in module.profile(feeds, 5)) / 1e3


def main() -> None:
    """Measure the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--targets", nargs="+", default=["llvm", "opencl"])
    arguments = parser.parse_args()
    chosen = {
        name: case for name, case in CASES.items()
        if not arguments.cases or name.startswith(tuple(arguments.cases))
    }  # fmt: skip
    results: dict[str, dict[str, dict[str, float]]] = {}
    rows = []
    for name, case in chosen.items():
        proto, rng = model(*case), np.random.default_rng(0)
        feeds = {
            value.name: rng.standard_normal(
                [d.dim_value for d in value.type.tensor_type.shape.dim], np.float32
            )
            for value in proto.graph.input
        }
        compared = candidates(proto, feeds, arguments.targets)
        times: dict[str, list[float]] = {each: [] for each in compared}
        for _ in range(arguments.rounds):
            for each, measure in compared.items():
                times[each].append(measure())
        found = {each: summary(values) for each, values in times.items()}
        results[name] = found
        rows.append([name, *(f"{figures['median_ms']:.3f}" for figures in found.values())])
    report("medians, ms", ["case", *found], rows)
    if not arguments.cases:
        print(write_json("attention", {"device": opencl_device(), "cases": results}))


if __name__ == "__main__":
    main()
