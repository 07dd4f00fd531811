"""Layers of each family and networks that `torch_cuda.py` compares, and their modules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import network_of
from cuda_code import keep_machine_code
from onnx import helper

import tvmflow
from tvmflow.errors import TargetError
from tvmflow.models import make

DTYPES = ("fp32", "fp16")
BATCHES = (1, 32)


@dataclass(frozen=True)
class Layer:
    """One node of a network with constant weights, or a pool."""

    kind: str
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    attributes: tuple[tuple[str, Any], ...]

    def model(self) -> onnx.ModelProto:
        """Return a model of the layer alone, with random weights."""
        weights = {}
        if self.weight:
            scale = 1 / np.sqrt(prod(self.weight[1:]))
            values = np.random.default_rng(0).standard_normal(self.weight) * scale
            weights["w"] = values.astype(np.float32)
        node = helper.make_node(self.kind, ["x", *weights], ["y"], **dict(self.attributes))
        return network_of([node], {"x": np.empty(self.shape, np.float32)}, "y", weights)

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.shape[1:]))} {'x'.join(map(str, self.weight))}"


@dataclass(frozen=True)
class Case:
    """A layer or a network, in one precision."""

    name: str
    dtype: str
    model: Callable[[], onnx.ModelProto]
    #: The family that it is for; empty for a network.
    family: str = ""

    @property
    def file(self) -> str:
        """Return the stem of its files."""
        return f"{self.name}-{self.dtype}"


def convolution(
    batch: int, shape: tuple[int, int, int], outputs: int, kernel: int, groups: int = 1
) -> Layer:
    """Return a convolution that keeps the size of its picture."""
    weight = (outputs, shape[0] // groups, kernel, kernel)
    attributes = (("pads", (kernel // 2,) * 4), ("group", groups))
    return Layer("Conv", (batch, *shape), weight, attributes)


def product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Return a model of the product of two inputs."""
    inputs = {"x": (rows, depth), "z": (depth, columns)}
    arrays = {name: np.empty(shape, np.float32) for name, shape in inputs.items()}
    return network_of([helper.make_node("MatMul", ["x", "z"], ["y"])], arrays)


def layers() -> Iterator[tuple[str, str, Callable[[], onnx.ModelProto]]]:
    """Yield family, name and model of each layer."""
    window = (("kernel_shape", (3, 3)), ("strides", (2, 2)), ("pads", (1,) * 4))
    for b in BATCHES:
        for family, layer in (
            ("conv3x3", convolution(b, (64, 56, 56), 64, 3)),
            ("conv3x3", convolution(b, (256, 14, 14), 256, 3)),
            ("conv1x1", convolution(b, (256, 56, 56), 64, 1)),
            ("conv1x1", convolution(b, (512, 7, 7), 2048, 1)),
            ("depthwise", convolution(b, (144, 56, 56), 144, 3, 144)),
            ("depthwise", convolution(b, (960, 7, 7), 960, 3, 960)),
            ("pooling", Layer("MaxPool", (b, 64, 112, 112), (), window)),
            ("pooling", Layer("GlobalAveragePool", (b, 2048, 7, 7), (), ())),
            ("softmax", Layer("Softmax", (128 * b, 1000), (), (("axis", 1),))),
            ("normalization", Layer("LayerNormalization", (128 * b, 768), (768,), ())),
            ("gemv" if b == 1 else "dense", Layer("MatMul", (b, 4096), (4096, 4096), ())),
            ("gemv" if b == 1 else "dense", Layer("Gemm", (b, 25088), (4096, 25088),
                                                  (("transB", 1),))),
        ):  # fmt: skip
            name = re.sub(r"\W+", "_", f"{layer} b{b}")
            yield family, name, layer.model
    for size in (512, 2048):
        yield "matmul", f"MatMul_{size}", lambda size=size: product(size, size, size)


def cases(only: str) -> list[Case]:
    """Return the cases that match a regular expression."""
    found = [
        Case(name, dtype, model, family) for family, name, model in layers() for dtype in DTYPES
    ]
    for name in ("mobilenet_v2", "resnet50"):
        for batch in BATCHES:
            for dtype in DTYPES:
                model = lambda name=name, batch=batch: make(name, batch=batch)  # noqa: E731
                found.append(Case(f"{name}_b{batch}", dtype, model))
    return [case for case in found if re.search(only, case.file)]


def compile_modules(folder: Path, target: str, arch: str, only: str) -> None:
    """Compile every case; networks for CUDA as one graph."""
    folder.mkdir(parents=True, exist_ok=True)
    keep_machine_code(folder, arch)
    entries = []
    for case in cases(only):
        model, options = case.model(), {}
        if target == "cuda" and not case.family:
            options["cuda_graph"] = True
        try:
            module = tvmflow.compile(model, target=target, dtype=case.dtype, **options)
        except TargetError as error:
            print(f"{case.file} is left out: {error.message}")
            continue
        module.save(folder / f"{case.file}.so")
        module.close()
        onnx.save(model, folder / f"{case.name}.onnx")
        entries.append({"name": case.name, "dtype": case.dtype, "family": case.family})
        print(f"compiled {case.file}")
    content = {"target": target, "arch": arch, "entries": entries}
    (folder / "modules.json").write_text(json.dumps(content, indent=2) + "\n")
