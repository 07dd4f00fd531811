"""Construction of an ONNX model node by node, and its file, with external data if it is large."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: The operator set that the builders write: the default of current exporters.
OPSET = 18
#: The IR version of that operator set; older readers refuse a newer one.
IR_VERSION = 8
#: The domain of custom operators.
DOMAIN = "ai.tvmflow"
#: Models with more weights than this store them in a file next to the model.
EXTERNAL_LIMIT_BYTES = 256 << 20
#: Largest weights of a serialized model; the rest of 2 GiB is left for the nodes.
MODEL_LIMIT_BYTES = (2 << 30) - (1 << 20)
#: External tensors begin at multiples of this, so that they can be memory-mapped.
ALIGNMENT_BYTES = 64 << 10
#: Elements generated at a time (16 MiB of float32).
CHUNK_ELEMENTS = 4 << 20


@dataclass(frozen=True)
class Weight:
    """A random float32 tensor: ``mean + scale * standard normal``, or uniform.

    It is generated in chunks from its own random stream when it is written, not before: the same
    seed gives the same values whether the tensor is stored in the model or streamed to a file of
    several gigabytes.

    ``stream`` is the pair (model seed, number of the tensor in the model) that seeds its stream.
    """

    name: str
    shape: tuple[int, ...]
    #: ``"normal"`` (mean ``a``, standard deviation ``b``) or ``"uniform"`` (``a`` to ``b``).
    distribution: str
    a: float
    b: float
    stream: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        """Return the size in float32, in bytes."""
        return 4 * prod(self.shape)

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the values in row-major order, at most ``CHUNK_ELEMENTS`` at a time."""
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.stream)))
        elements = prod(self.shape)
        for start in range(0, elements, CHUNK_ELEMENTS):
            count = min(CHUNK_ELEMENTS, elements - start)
            if self.distribution == "uniform":
                values = generator.random(count, dtype=np.float32)
                values *= np.float32(self.b - self.a)
            else:
                values = generator.standard_normal(count, dtype=np.float32)
                values *= np.float32(self.b)
            values += np.float32(self.a)
            yield values

    def array(self) -> np.ndarray:
        """Return the whole tensor in memory."""
        return np.concatenate(list(self.chunks())).reshape(self.shape)


class GraphBuilder:
    """An ONNX graph under construction, with a seed for all random weights.

    Every method that adds a node returns the name of its output.
    """

    def __init__(self, name: str, seed: int):
        self.name = name
        self.seed = seed
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: list[Weight] = []
        self.constants: list[TensorProto] = []
        self._counts: dict[str, int] = {}

    def input(self, name: str, shape: tuple[int, ...], dtype: type = np.float32) -> str:
        """Declare an input."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: tuple[int, ...]) -> None:
        """Declare a float32 output, whose name a node's ``result`` must have."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def node(
        self, op: str, *inputs: str, result: str | None = None, name: str = "", **attr: Any
    ) -> str:
        """Add a node with one output; unless given, its name has a number for each operator."""
        if not name:
            number = self._counts.get(op, 0)
            self._counts[op] = number + 1
            name = f"{op}_{number}"
        result = result or f"{name}_output"
        self.nodes.append(helper.make_node(op, list(inputs), [result], name=name, **attr))
        return result

    def custom(self, op: str, *inputs: str, results: Sequence[str]) -> None:
        """Add a custom operator of the domain ``ai.tvmflow``; an input ``""`` is omitted."""
        name = f"{results[0]}/{op}"
        node = helper.make_node(op, list(inputs), list(results), name=name, domain=DOMAIN)
        self.nodes.append(node)

    def normal(self, name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> str:
        """Add a weight drawn from a normal distribution."""
        return self._weight(name, shape, "normal", mean, std)

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> str:
        """Add a weight drawn uniformly from ``low`` to ``high``."""
        return self._weight(name, shape, "uniform", low, high)

    def he(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """Add a weight for a layer before a rectifier.

        Its variance 2 / ``fan_in`` keeps the mean square of activations through
        layers (He et al. 2015, "Delving deep into rectifiers", eq. 10).
        """
        return self.normal(name, shape, sqrt(2.0 / fan_in))

    def constant(self, name: str, value: Any, dtype: type = np.float32) -> str:
        """Add a fixed initializer; the same name twice is the same tensor."""
        if all(tensor.name != name for tensor in self.constants):
            self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def _weight(
        self, name: str, shape: tuple[int, ...], distribution: str, a: float, b: float
    ) -> str:
        stream = (self.seed, len(self.weights))
        self.weights.append(Weight(name, tuple(shape), distribution, a, b, stream))
        return name

    def conv(
        self, x: str, name: str, channels: tuple[int, int], kernel: int, **options: Any
    ) -> str:
        """Add a square convolution from ``channels[0]`` to ``channels[1]`` channels.

        Options are ``stride`` (1), ``groups`` (1), ``bias`` (False), ``linear`` (False: a rectifier
        follows the layer).
        """
        groups = options.get("groups", 1)
        fan_in = channels[0] // groups * kernel * kernel
        gain = 1.0 if options.get("linear") else 2.0
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        inputs = [x, self.normal(f"{name}.weight", shape, sqrt(gain / fan_in))]
        if options.get("bias"):
            inputs.append(self.normal(f"{name}.bias", (channels[1],), 0.1))
        stride, pad = options.get("stride", 1), kernel // 2
        return self.node(
            "Conv", *inputs, name=f"{name}/Conv", dilations=[1, 1], group=groups,
            kernel_shape=[kernel, kernel], pads=[pad] * 4, strides=[stride, stride],
        )  # fmt: skip

    def batch_norm(self, x: str, name: str, channels: int, epsilon: float) -> str:
        """Add an inference-mode BatchNormalization with random statistics near (0, 1)."""
        shape = (channels,)
        return self.node(
            "BatchNormalization", x,
            self.uniform(f"{name}.gamma", shape, 0.8, 1.2),
            self.normal(f"{name}.beta", shape, 0.1),
            self.normal(f"{name}.running_mean", shape, 0.1),
            self.uniform(f"{name}.running_var", shape, 0.7, 1.3),
            name=f"{name}/BatchNormalization", epsilon=epsilon,
        )  # fmt: skip

    def relu6(self, x: str, name: str) -> str:
        """Add ReLU6 as exporters write it: Clip with constant limits 0 and 6."""
        low, high = self.constant("clip.min", 0.0), self.constant("clip.max", 6.0)
        return self.node("Clip", x, low, high, name=f"{name}/Clip")

    # Model -----------------------------------------------------------------------------

    @property
    def weight_bytes(self) -> int:
        """Return the size of all random weights in bytes."""
        return sum(weight.size_bytes for weight in self.weights)

    def model(self) -> onnx.ModelProto:
        """Return the model with its weights in memory, checked by ONNX's checker."""
        initializers = [numpy_helper.from_array(w.array(), w.name) for w in self.weights]
        model = self._model(initializers)
        onnx.checker.check_model(model, full_check=True)
        return model

    def save(
        self, path: str | os.PathLike[str], external_limit_bytes: int = EXTERNAL_LIMIT_BYTES
    ) -> Path:
        """Write the model, and ``<file>.data`` next to it if the weights exceed the limit.

        The files are written and checked in a temporary folder next to the target and
        then moved to their names, the model last.
        """
        path = Path(path)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            staged, data = folder / path.name, folder / f"{path.name}.data"
            if self.weight_bytes > min(external_limit_bytes, MODEL_LIMIT_BYTES):
                onnx.save(self._model(self._write_external(data)), staged)
            else:
                onnx.save(self.model(), staged)
            onnx.checker.check_model(str(staged), full_check=True)
            if data.exists():
                os.replace(data, path.with_name(data.name))
            os.replace(staged, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return path

    def _write_external(self, data: Path) -> list[TensorProto]:
        """Stream the weights into ``data`` and return initializers that refer to it."""
        tensors = []
        with open(data, "wb") as file:
            for weight in self.weights:
                offset = -(-file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                file.seek(offset)
                for chunk in weight.chunks():
                    chunk.tofile(file)
                tensor = TensorProto(
                    name=weight.name, data_type=TensorProto.FLOAT, dims=weight.shape,
                    data_location=TensorProto.EXTERNAL,
                )  # fmt: skip
                entries = {"location": data.name, "offset": offset, "length": weight.size_bytes}
                for key, value in entries.items():
                    tensor.external_data.add(key=key, value=str(value))
                tensors.append(tensor)
        return tensors

    def _model(self, initializers: list[TensorProto]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, initializers + self.constants
        )
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == DOMAIN for node in self.nodes):
            # The import is here because operators need TVM; ONNX's checker must know their schemas.
            from ..ops.onnx_form import register_schemas

            register_schemas()
            opsets.append(helper.make_opsetid(DOMAIN, 1))
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tvmflow"
        )
