"""What a convolution's kernel reads, counted instruction by instruction by Oclgrind.

For a pointwise, a 3x3 and a depthwise layer, with tensors in textures and in buffers:
image reads, buffer reads and multiply-adds, and reads of four channels per multiply-add
against the least that the kernel's register tile needs, every texel of its inputs and
weights once.  Counts, unlike times, do not depend on the machine, and need no GPU.

    python benchmarks/kernel_counts.py [--device adreno]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
from common import report, write_json
from onnx import TensorProto, helper, numpy_helper

import tvmflow
from tvmflow.devices.target import resolve

RUN = """
import sys
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1])
(info,) = module.inputs
module(np.random.default_rng(0).standard_normal(info.shape).astype(np.float32))
"""

#: Oclgrind's lines of one kernel: a count and an instruction, or a call's mangled name.
_HEADING = re.compile(r"Instructions executed for kernel '(\w+)'")
_COUNT = re.compile(r"\s*(\d+) - (.+)")


@dataclass(frozen=True)
class Layer:
    """A convolution of ``size x size`` pictures, 'same' padding."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    size: int
    groups: int = 1

    @property
    def algorithms(self) -> dict[str, str]:
        """What is counted is direct: Winograd's product has no ideal of this kind."""
        return {"y": "direct"} if self.kernel == 3 and self.groups == 1 else {}

    @property
    def multiply_adds(self) -> int:
        """Of the definition, padding included."""
        window = self.kernel**2 * self.inputs // self.groups
        return self.size**2 * self.outputs * window

    def model(self) -> Any:
        """The layer as an ONNX model."""
        rng = np.random.default_rng(0)
        shape = (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)
        weight = rng.standard_normal(shape).astype(np.float32)
        edge = self.kernel // 2
        node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[edge] * 4, group=self.groups)
        picture = (1, self.inputs, self.size, self.size)
        result = (1, self.outputs, self.size, self.size)
        graph = helper.make_graph(
            [node],
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, picture)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
            [numpy_helper.from_array(weight, "w")],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


FAMILIES = ("conv2d", "conv2d_1x1", "depthwise")
LAYERS = (
    Layer("pointwise", 64, 64, 1, 56),
    Layer("3x3", 32, 32, 3, 28),
    Layer("depthwise", 64, 64, 3, 28, groups=64),
)


def ideal_reads(layer: Layer, tile: tuple[int, int, int], block: int) -> float:
    """Vectors read per multiply-add when a tile reads each of its inputs and weights once."""
    outputs, rows, columns = tile
    picture = (rows + layer.kernel - 1) * (columns + layer.kernel - 1)
    if layer.groups > 1:
        return (picture + layer.kernel**2) / (block * rows * columns * layer.kernel**2)
    # For each block of input channels: its vectors, and a vector of weights for each channel.
    weights = outputs * block * layer.kernel**2
    return (picture + weights) / (block**2 * outputs * rows * columns * layer.kernel**2)


def count(module: Path) -> dict[str, dict[str, int]]:
    """Instructions of each kernel of a module, by Oclgrind's names."""
    run = subprocess.run(
        ["oclgrind", "--inst-counts", sys.executable, "-c", RUN, str(module)],
        capture_output=True,
        text=True,
        check=True,
    )
    kernels: dict[str, dict[str, int]] = {}
    for line in run.stdout.splitlines():
        if heading := _HEADING.match(line):
            current = kernels.setdefault(heading.group(1), {})
        elif found := _COUNT.match(line):
            name = found.group(2).split(" (")[0]
            current[name] = current.get(name, 0) + int(found.group(1))
    return kernels


def measure(layer: Layer, device: str, storage: str) -> dict[str, Any]:
    """Counts of the layer's own kernel."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tvmflow.compile(
            layer.model(), device=device, storage=storage, algorithms=layer.algorithms
        ) as module,
    ):
        module.save(Path(folder) / "layer.so")
        schedules = module.metadata["schedules"]
        families = {k["name"]: k["family"] for k in module.metadata["kernels"]}
        kernels = count(Path(folder) / "layer.so")
    (name,) = (k for k, family in families.items() if family in FAMILIES)
    found = kernels[name]

    def total(*words: str) -> int:
        return sum(n for what, n in found.items() if all(word in what for word in words))

    image, vectors, scalars = total("read_image"), total("vload", "U3AS1"), total("load global")
    products = 4 * total("fmuladd.v4f32") + total("fmuladd.f32")
    knobs = schedules[name.removesuffix("_kernel")]["knobs"]
    tile = (knobs.get("tile_o", 1), knobs["tile_h"], knobs["tile_w"])
    ideal = ideal_reads(layer, tile, resolve("opencl", device).device.channel_block)
    reads = (image + vectors + scalars) / products
    return {
        "layer": layer.name,
        "storage": storage,
        "tile": tile,
        "image_reads": image,
        "buffer_vector_reads": vectors,
        "buffer_scalar_reads": scalars,
        "multiply_adds": products,
        "multiply_adds_of_the_definition": layer.multiply_adds,
        "reads_per_multiply_add": round(reads, 4),
        "ideal_reads_per_multiply_add": round(ideal, 4),
    }


def main() -> None:
    """Count for every layer and storage, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="adreno", help="device preset")
    options = parser.parse_args()
    if which("oclgrind") is None:
        print("oclgrind is not installed: nothing counted")
        return
    results = [
        measure(layer, options.device, storage)
        for layer in LAYERS
        for storage in ("texture", "buffer")
    ]
    report(
        f"Reads of kernels for {options.device}",
        ("layer", "storage", "tile o·h·w", "image", "vectors", "scalars", "reads / multiply-add",
         "ideal", "ratio"),
        [
            (
                r["layer"],
                r["storage"],
                "·".join(map(str, r["tile"])),
                r["image_reads"],
                r["buffer_vector_reads"],
                r["buffer_scalar_reads"],
                r["reads_per_multiply_add"],
                r["ideal_reads_per_multiply_add"],
                f"{r['reads_per_multiply_add'] / r['ideal_reads_per_multiply_add']:.2f}",
            )
            for r in results
        ],
    )  # fmt: skip
    path = write_json("kernel_counts", {"device": options.device, "layers": results})
    print(f"written: {path}")


if __name__ == "__main__":
    main()
