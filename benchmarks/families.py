"""Schedule families over the layers of networks: speed, and heuristics against a small sweep.

Every distinct layer of MobileNetV1 and V2, ResNet-50 and FaceBoxNet is compiled alone, with
the knobs of the heuristic and with some others of its family's space, drawn at random.  The
kernels' own times, taken in turn, give GFLOP/s and GB/s, beside a product of matrices and a
copy on the same device, and how near the heuristic comes to the best of the sweep.

    python benchmarks/families.py [--layers 8] [--candidates 8]
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import exp, log, prod
from typing import Any

import numpy as np
import onnx
from common import opencl_device, report, write_json
from onnx import TensorProto, helper, numpy_helper, shape_inference

import tvmflow
from tvmflow.devices.target import resolve
from tvmflow.models import make
from tvmflow.schedules import FAMILIES
from tvmflow.schedules.family import drawn

BY_NAME: dict[str, Any] = {family.NAME: family for family in FAMILIES}
#: FaceBoxNet's first dense layer has 4.3 GB of weights at full size: a smaller picture's is taken.
NETWORKS = {"mobilenet_v1": {}, "mobilenet_v2": {}, "resnet50": {}, "facebox_net": {"size": 64}}


@dataclass(frozen=True)
class Layer:
    """One node of a network with constant weights, or a pool."""

    kind: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]

    def model(self) -> onnx.ModelProto:
        """The layer alone, with random weights."""
        inputs, weights = ["x"], []
        if self.weight:
            scale = 1 / np.sqrt(prod(self.weight[1:]))
            values = np.random.default_rng(0).standard_normal(self.weight) * scale
            weights.append(numpy_helper.from_array(values.astype(np.float32), "w"))
            inputs.append("w")
        graph = helper.make_graph(
            [helper.make_node(self.kind, inputs, ["y"], **dict(self.attributes))],
            "layer",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def work(self, output: tuple[int, ...]) -> tuple[int, int]:
        """Floating-point operations of the definition, and bytes read and written once."""
        values = prod(output)
        if self.kind == "Conv":
            operations = 2 * values * prod(self.weight[1:])
        elif self.kind == "Gemm":
            operations = 2 * prod(self.weight)
        else:
            operations = values * prod(dict(self.attributes).get("kernel_shape", self.shape[2:]))
        return operations, 4 * (prod(self.shape) + values + prod(self.weight) * bool(self.weight))

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape[1:]))} {'x'.join(map(str, self.weight))}"


def layers() -> Iterator[Layer]:
    """Every distinct layer of the networks."""
    seen = set()
    for name, parameters in NETWORKS.items():
        model = shape_inference.infer_shapes(make(name, **parameters))
        known = [*model.graph.value_info, *model.graph.input]
        shapes = {
            value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in known
        }
        weights = {w.name: tuple(w.dims) for w in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type not in ("Conv", "Gemm", "MaxPool", "GlobalAveragePool"):
                continue
            attributes = tuple((a.name, helper.get_attribute_value(a)) for a in node.attribute)
            attributes = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes)
            shape = shapes.get(node.input[0])
            weight = weights.get(node.input[1], ()) if len(node.input) > 1 else ()
            if shape is None or (node.op_type in ("Conv", "Gemm") and not weight):
                continue
            layer = Layer(node.op_type, shape, weight, attributes)
            if layer not in seen:
                seen.add(layer)
                yield layer


def kernel_us(module: tvmflow.Module, feed: np.ndarray, function: str) -> float:
    """Median time of a primary function's kernels."""
    times = module.profile([feed], runs=7)
    own = {k["name"] for k in module.metadata["kernels"] if k["function"] == function}
    return sum(t.median_us for t in times if t.kernel in own)


def measure(layer: Layer, count: int) -> dict[str, Any] | None:
    """One layer: its speed, and its heuristic against ``count`` other choices of knobs."""
    model = layer.model()
    modules = {"heuristic": tvmflow.compile(model, target="opencl")}
    chosen = modules["heuristic"].metadata["schedules"]
    served = {
        n: c
        for n, c in chosen.items()
        if c["knobs"] and c["family"] not in ("moving", "transpose", "fallback")
    }
    if not served:
        return None
    # Winograd's product stands for its convolution: it has nearly all of the arithmetic.
    function = max(served, key=lambda n: ("product" in served[n]["family"], n))
    family = BY_NAME[served[function]["family"]]
    shape = family.Shape(**served[function]["shape"]) if hasattr(family, "Shape") else None
    if shape is None:
        shape = BY_NAME["conv2d"].Shape(**served[function]["shape"])
    device = resolve("opencl").device
    space = drawn(family, shape, device, random.Random(0))
    for number, knobs in enumerate(dict.fromkeys(islice(space, count))):
        given = {function: dataclasses.asdict(knobs)}
        modules[str(number)] = tvmflow.compile(model, target="opencl", knobs=given)
    feed = np.random.default_rng(1).standard_normal(layer.shape).astype(np.float32)
    output = modules["heuristic"](feed)[0].shape
    times: dict[str, list[float]] = {name: [] for name in modules}
    for _ in range(5):
        for name, module in modules.items():
            times[name].append(kernel_us(module, feed, function))
    best = {name: min(values) for name, values in times.items()}
    for module in modules.values():
        module.close()
    operations, moved = layer.work(output)
    own = best["heuristic"]
    return {
        "layer": str(layer),
        "family": family.NAME,
        "knobs": served[function]["knobs"],
        "us": round(own, 1),
        "gflops": round(operations / own / 1e3, 1),
        "gbytes": round(moved / own / 1e3, 1),
        "of_best": round(min(best.values()) / own, 3),
        "candidates": len(modules) - 1,
    }


def peaks() -> dict[str, float]:
    """GFLOP/s of a product of matrices, and GB/s of a copy, on the same device."""
    rng = np.random.default_rng(2)
    size = 1024
    weight = numpy_helper.from_array(rng.standard_normal((size, size)).astype(np.float32), "w")
    found = {}
    for name, kind, shape in (
        ("matmul", "MatMul", (size, size)),
        ("copy", "Neg", (64 << 20 >> 2,)),
    ):
        inputs = ["x", "w"] if kind == "MatMul" else ["x"]
        graph = helper.make_graph(
            [helper.make_node(kind, inputs, ["y"])],
            name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [weight] if kind == "MatMul" else [],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        feed = rng.standard_normal(shape).astype(np.float32)
        with tvmflow.compile(model, target="opencl") as module:
            us = min(sum(t.median_us for t in module.profile([feed], runs=7)) for _ in range(3))
        work = 2 * size**3 if kind == "MatMul" else 8 * prod(shape)
        found["gflops" if kind == "MatMul" else "gbytes"] = round(work / us / 1e3, 1)
    return found


def main() -> None:
    """Measure some layers of every family, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8, help="of each kind and window, at most")
    parser.add_argument("--candidates", type=int, default=8, help="of each layer's sweep")
    options = parser.parse_args()
    device = opencl_device()
    peak = peaks()
    groups: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in layers():
        depthwise = dict(layer.attributes).get("group", 1) > 1
        groups.setdefault((layer.kind, layer.weight[2:], depthwise), []).append(layer)
    results = []
    for members in groups.values():
        step = max(1, len(members) // options.layers)
        for layer in members[::step][: options.layers]:
            result = measure(layer, options.candidates)
            if result is not None:
                results.append(result)
    report(
        f"Layers on {device['name']}: a matmul {peak['gflops']} GFLOP/s, a copy "
        f"{peak['gbytes']} GB/s",
        ("layer", "family", "us", "GFLOP/s", "GB/s", "of the best"),
        [
            (r["layer"], r["family"], r["us"], r["gflops"], r["gbytes"], r["of_best"])
            for r in results
        ],
    )
    ratios = {
        name: [r["of_best"] for r in results if r["family"] == name]
        for name in sorted({r["family"] for r in results})
    }
    means = {name: round(exp(sum(map(log, v)) / len(v)), 3) for name, v in ratios.items()}
    everything = [r["of_best"] for r in results]
    means["all"] = round(exp(sum(map(log, everything)) / len(everything)), 3)
    report("Heuristic, of the best found", ("family", "geometric mean"), list(means.items()))
    content = {"device": device, "peak": peak, "heuristic_of_best": means, "layers": results}
    print(f"written: {write_json('families', content)}")


if __name__ == "__main__":
    main()
