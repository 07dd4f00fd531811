"""Texture, buffer and auto storage side by side on the running OpenCL device.

For single layers and whole networks, the same inputs in one process; results are checked
against each other.  On a GPU it shows what textures bring; on a CPU, which
has no texture units, that ``auto`` chooses buffers and costs nothing.

    python benchmarks/texture_vs_buffer.py [--rounds 30] [--size 224]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import in_turn, opencl_device, report, summary, write_json
from kernel_counts import Layer

import tvmflow
from tvmflow.models import build as build_model

STORAGES = ("buffer", "texture", "auto")

#: Layers of MobileNetV2 at 224 and of a ResNet.
LAYERS = (
    Layer("pointwise 96-24 at 56", 96, 24, 1, 56),
    Layer("pointwise 320-1280 at 7", 320, 1280, 1, 7),
    Layer("3x3 64-64 at 56", 64, 64, 3, 56),
    Layer("depthwise 144 at 56", 144, 144, 3, 56, groups=144),
)


def measure(model: Any, rounds: int) -> dict[str, Any]:
    """Times of one model in each storage, and how many of its tensors are textures."""
    modules = {s: tvmflow.compile(model, target="opencl", storage=s) for s in STORAGES}
    (info,) = modules["buffer"].inputs
    x = np.random.default_rng(0).standard_normal(info.shape).astype(np.float32)
    reference = next(iter(modules["buffer"](x).values()))
    for name, module in modules.items():
        difference = np.abs(next(iter(module(x).values())) - reference).max()
        assert difference <= 1e-4 * np.abs(reference).max(), f"{name} differs by {difference}"
    # Not all three in turn: on a CPU a run from textures leaves cold caches to whoever follows.
    runs = {name: partial(module, x) for name, module in modules.items()}
    texture = runs.pop("texture")
    times = in_turn(runs, rounds=rounds) | in_turn({"texture": texture}, rounds=rounds)
    result = {name: summary(t) for name, t in times.items()}
    for name, module in modules.items():
        memory = module.metadata["memory"]
        planned = memory["tensors"]
        result[name]["textures"] = sum(t["storage"] == "texture" for t in planned)
        result[name]["peak_bytes"] = memory["peak_bytes"]
        result[name]["lower_bound_bytes"] = memory["lower_bound_bytes"]
        module.close()
    return result


def main() -> None:
    """Measure every layer and network, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--size", type=int, default=224, help="picture size of the networks")
    options = parser.parse_args()
    device = opencl_device()
    models: dict[str, Any] = {layer.name: layer.model() for layer in LAYERS}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("mobilenet_v1", "mobilenet_v2"):
            path = Path(folder) / f"{name}.onnx"
            build_model(name, path, size=options.size)
            models[f"{name} {options.size}"] = onnx.load(path)
    results = {name: measure(model, options.rounds) for name, model in models.items()}
    rows = []
    for name, result in results.items():
        base = result["buffer"]["median_ms"]
        for storage in STORAGES:
            r = result[storage]
            peak = r["peak_bytes"] / max(1, r["lower_bound_bytes"])
            speed = f"{base / r['median_ms']:.2f}"
            rows.append((name, storage, r["median_ms"], speed, r["textures"], f"{peak:.2f}"))
    columns = ("model", "storage", "median ms", "buffer / this", "textures", "peak / bound")
    report(f"Storage on {device['name']}", columns, rows)
    path = write_json("texture_vs_buffer", {"device": device, "results": results})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
