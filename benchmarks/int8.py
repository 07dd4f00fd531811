"""Quantized layers and networks: ours in int8, ours in fp32, and ONNX Runtime's of both.

Models are quantized by ONNX Runtime's own tool (static, uint8 activations, int8 weights with a
scale for each output channel, QuantizeLinear and DequantizeLinear around real operators), so that
all run the same file.  Engines take turns in one process, with as many threads as there are cores.

    python benchmarks/int8.py [--targets llvm,opencl]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import in_blocks, report, summary, write_json
from kernel_counts import Layer
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import tvmflow
from tvmflow.models import make

#: Layers of MobileNetV2 and ResNet-50 at 224.
LAYERS = (
    Layer("first 3-32 at 112", 3, 32, 3, 112),
    Layer("3x3 64-64 at 56", 64, 64, 3, 56),
    Layer("3x3 256-256 at 14", 256, 256, 3, 14),
    Layer("pointwise 16-96 at 112", 16, 96, 1, 112),
    Layer("pointwise 256-64 at 56", 256, 64, 1, 56),
    Layer("pointwise 1024-256 at 14", 1024, 256, 1, 14),
    Layer("depthwise 144 at 56", 144, 144, 3, 56, groups=144),
)
NETWORKS = ("mobilenet_v2", "resnet50")


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc] (not typed)
    """Two random inputs."""

    def __init__(self, name: str, shape: list[int]):
        rng = np.random.default_rng(1)
        self.feeds = [{name: rng.standard_normal(shape).astype(np.float32)} for _ in range(2)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next input, ``None`` after the last one."""
        return self.feeds.pop() if self.feeds else None


def quantized(model: onnx.ModelProto) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model without batch normalisations, in fp32 and quantized."""
    value = model.graph.input[0]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, name)) for name in ("model.onnx", "fp32.onnx", "int8.onnx")]
        onnx.save(model, paths[0])
        quant_pre_process(*paths[:2], skip_symbolic_shape=True)
        quantization.quantize_static(
            *paths[1:],
            Calibration(value.name, shape),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return onnx.load(paths[1]), onnx.load(paths[2])


def measure(model: onnx.ModelProto, targets: list[str]) -> dict[str, Any]:
    """Times of one model by each engine, and the largest difference of the quantized results."""
    models = dict(zip(("fp32", "int8"), quantized(model), strict=True))
    value = model.graph.input[0]
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    runs, modules = {}, []
    for kind, form in models.items():
        session = onnxruntime.InferenceSession(form.SerializeToString())
        runs[f"ONNX Runtime {kind}"] = partial(session.run, None, {value.name: x})
        for target in targets:
            module = tvmflow.compile(form, target=target, device="cpu")
            modules.append(module)
            runs[f"{target} {kind}"] = partial(module, **{value.name: x})
    reference = runs["ONNX Runtime int8"]()[0]
    result: dict[str, Any] = {name: summary(times) for name, times in in_blocks(runs).items()}
    largest = float(np.abs(reference).max())
    for target in targets:
        output = runs[f"{target} int8"]()[0]
        result[f"{target} int8"]["difference"] = float(np.abs(output - reference).max()) / largest
    for module in modules:
        module.close()
    return result


def main() -> None:
    """Measure every layer and network, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default="llvm,opencl", help="of ours, by commas")
    options = parser.parse_args()
    targets = options.targets.split(",")
    results = {}
    for layer in LAYERS:
        results[layer.name] = measure(layer.model(), targets)
    for name in NETWORKS:
        results[name] = measure(make(name), targets)
    engines = [f"{e} {kind}" for kind in ("int8", "fp32") for e in ("ONNX Runtime", *targets)]
    report(
        "Quantized and in fp32, ms",
        ("", *engines),
        [(name, *(r[engine]["median_ms"] for engine in engines)) for name, r in results.items()],
    )
    print(f"written: {write_json('int8', {'results': results})}")


if __name__ == "__main__":
    main()
