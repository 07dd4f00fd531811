"""Builder of a small ONNX network, whose nodes and values Hypothesis draws.

ONNX's shape inference types every result at once, so that the next draw can depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


#: Kinds of values of the inputs, simplest first.
VALUES = ("whole", "normal", "masks", "wide", "special")
#: Kinds whose values may be cast to integers, and have squares and exponentials in range.
TAME = ("whole", "normal", "masks")
#: Operators for which ONNX Runtime's NaN and infinities depend on its algorithm or its vector
#: width (docs/design.md lists them).  Their finite results are compared as for other operators.
ERRATIC = names(
    """
    MaxPool GlobalMaxPool ReduceMax ReduceMin Scatter ScatterElements ScatterND Hardmax LRN Resize
    Upsample Clip GridSample DeformConv RoiAlign DynamicQuantizeLinear ReduceLogSumExp
    MeanVarianceNormalization ReduceProd
    """
)

IR_VERSION = 10


class InvalidError(Exception):
    """The drawn network is not valid ONNX: it is counted, but not tested."""


@dataclass(frozen=True)
class Tensor:
    """A value in the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def floating(self) -> bool:
        return self.dtype.startswith("float")


@dataclass
class Graph:
    """Nodes, constants and inputs drawn so far.

    Parameters
    ----------
    draw
        Draw function of Hypothesis.
    opset
        Operator set of all nodes.
    prefix
        Prefix of all names, so that several graphs can become one model.
    kind
        One of `VALUES`.
    """

    draw: Any
    opset: int
    prefix: str
    kind: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    #: Tensors that are never stored in half precision.
    wide: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.draw(st.integers(0, 2**16)))
        self._count = 0

    # -- choices -------------------------------------------------------------------------------

    def pick(self, *options: Any) -> Any:
        """Return one of the options; Hypothesis simplifies towards the first."""
        return self.draw(st.sampled_from(options))

    def chance(self, probability: float) -> bool:
        return bool(self.draw(st.integers(0, 99)) >= 100 - 100 * probability)

    def integer(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return self.draw(st.integers(low, high))

    def integers(self, low: int, high: int, count: int) -> list[int]:
        return [self.integer(low, high) for _ in range(count)]

    def axis(self, x: Tensor, rank: int | None = None) -> int:
        """Return an axis, counted from either end."""
        rank = x.rank if rank is None else rank
        axis = self.integer(0, rank - 1)
        return axis - rank if self.chance(0.3) else axis

    def axes(self, x: Tensor) -> list[int]:
        """Return some axes in increasing order."""
        chosen = [a for a in range(x.rank) if self.chance(0.5)] or [self.integer(0, x.rank - 1)]
        return [a - x.rank for a in chosen] if self.chance(0.3) else chosen

    # -- values --------------------------------------------------------------------------------

    def numbers(self, shape: Sequence[int], dtype: str, kind: str) -> np.ndarray:
        """Return values of a kind."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < 0.5)
        if np.dtype(dtype).kind in "iu":
            low = 0 if np.dtype(dtype).kind == "u" else -9
            return np.asarray(self.rng.integers(low, 10, shape)).astype(dtype)
        values = self.rng.standard_normal(shape)
        if kind == "whole":
            values = self.rng.integers(-4, 5, shape).astype("f8")
        elif kind == "masks":
            values = (self.rng.random(shape) < 0.4).astype("f8")
        elif kind == "wide":
            values = values * 10.0 ** self.rng.integers(-12, 13, shape)
        elif kind == "special":
            special = self.rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], shape)
            values = np.where(self.rng.random(shape) < 0.06, special, values)
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(dtype)

    def input(self, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Add an input of the network."""
        name = f"{self.prefix}x{len(self.feeds)}"
        self.feeds[name] = self.numbers(shape, dtype, self.kind)
        return self._note(name, shape, dtype)

    def constant(self, values: Any, dtype: str | None = None) -> Tensor:
        array = np.asarray(values, dtype)
        self._count += 1
        name = f"{self.prefix}c{self._count - 1}"
        self.constants[name] = array
        return self._note(name, array.shape, array.dtype.name)

    def fed(self, constant: Tensor) -> Tensor:
        """Turn a constant into an input, known only at run time."""
        self.feeds[constant.name] = self.constants.pop(constant.name)
        return constant

    def weights(self, shape: Sequence[int], dtype: str = "float32", scale: float = 1.0) -> Tensor:
        """Return a constant of finite values, integers if the inputs are integers."""
        if self.kind in ("whole", "masks") or not dtype.startswith("float"):
            return self.constant(self.numbers(shape, dtype, "whole") % 3, dtype)
        return self.constant(self.numbers(shape, dtype, "normal") * scale, dtype)

    def positive(self, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Return a constant of values from 0.5 to 1.5."""
        if self.kind == "whole":
            return self.constant(self.rng.integers(1, 4, shape), dtype)
        return self.constant(self.rng.uniform(0.5, 1.5, shape), dtype)

    def operand(self, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """Return a constant, or another input."""
        return self.input(shape, dtype) if self.chance(0.3) else self.weights(shape, dtype)

    # -- nodes ---------------------------------------------------------------------------------

    def node(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        results: int = 1,
        domain: str = "",
        types: Sequence[tuple[tuple[int, ...], str]] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Add a node; return its results.

        If sizes are known only at run time, ``types`` are examples of the results' types.
        """
        # PyTorch's names are paths, not identifiers.
        slash = "_/"[len(self.nodes) % 2]
        names = [f"{self.prefix}t{len(self.nodes)}{slash}{i}" for i in range(results)]
        node = helper.make_node(
            op_type,
            [tensor.name if tensor else "" for tensor in inputs],
            names,
            name=f"{self.prefix}{op_type}_{len(self.nodes)}",
            domain=domain,
            **attributes,
        )
        types = types or self._infer(node, [t for t in inputs if t])
        self.nodes.append(node)
        return [self._note(name, *kind) for name, kind in zip(names, types, strict=True)]

    def one(self, op_type: str, inputs: Sequence[Tensor | None], **attributes: Any) -> Tensor:
        """Add a node with one result."""
        return self.node(op_type, inputs, **attributes)[0]

    def with_axes(
        self, op_type: str, x: Tensor, axes: Sequence[int] | None, results: int = 1, **more: Any
    ) -> list[Tensor]:
        """Add a node whose axes are an input or an attribute, depending on the operator set."""
        schema = onnx.defs.get_schema(op_type, self.opset)
        as_input = any(formal.name == "axes" for formal in schema.inputs)
        if axes is None:
            return self.node(op_type, [x], results, **more)
        if as_input:
            constant = self.constant(np.array(axes, np.int64))
            return self.node(op_type, [x, constant], results, **more)
        return self.node(op_type, [x], results, axes=list(axes), **more)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Return the tensor in a dtype, with a Cast if it has another."""
        if x.dtype == dtype:
            return x
        to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        if dtype == "bool":
            zero = self.constant(np.zeros((), x.dtype))
            return self.one("Greater", [x, zero])
        if np.dtype(dtype).kind == "u" and x.dtype != "bool":
            x = self.one("Abs", [x])
        return self.one("Cast", [x], to=to)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        if tuple(shape) == x.shape:
            return x
        return self.one("Reshape", [x, self.constant(np.array(shape, np.int64))])

    def ranked(self, x: Tensor, rank: int) -> Tensor:
        """Reshape the tensor to a rank: join its last axes, or append axes of extent 1."""
        if x.rank == rank:
            return x
        if x.rank > rank:
            return self.reshape(x, [*x.shape[: rank - 1], -1])
        return self.reshape(x, [*x.shape, *[1] * (rank - x.rank)])

    def exactly(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a tensor of a shape, with elements of another one."""
        flat = self.reshape(x, [-1])
        count = int(np.prod(shape, dtype=np.int64))
        places = np.arange(count).reshape(shape) % x.elements
        return self.one("Gather", [flat, self.constant(places)])

    def conv(self, x: Tensor, channels: int, kernel: int = 1, group: int = 1) -> Tensor:
        """Add a convolution that keeps height and width."""
        if self.kind == "special" and kernel == 3 and group == 1:
            # Winograd's algorithm would spread NaN to neighbours, and to all that reads them.
            kernel = 5
        fan_in = x.channels // group * kernel**2
        shape = (channels, x.channels // group, kernel, kernel)
        inputs = [x, self.weights(shape, scale=fan_in**-0.5)]
        if self.chance(0.3):
            inputs.append(self.weights((channels,)))
        return self.one("Conv", inputs, pads=[kernel // 2] * 4, group=group)

    def picture(self, x: Tensor) -> Tensor:
        """Return the tensor as float32 with four axes, for the operators that follow."""
        x = self.cast(x, "float32")
        if x.rank == 4:
            return x
        if x.rank < 4:
            return self.reshape(x, [*[1] * (4 - x.rank), *x.shape])
        return self.reshape(x, [x.shape[0], x.shape[1], x.shape[2], -1])

    # -- types ---------------------------------------------------------------------------------

    def _note(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        tensor = Tensor(name, tuple(shape), dtype)
        if tensor.elements > 60_000:
            raise InvalidError(f"{name}: {tensor.elements} elements are too many")
        self.tensors[name] = tensor
        return tensor

    def _infer(
        self, node: onnx.NodeProto, inputs: Sequence[Tensor]
    ) -> list[tuple[tuple[int, ...], str]]:
        used = {t.name: t for t in inputs}
        graph = helper.make_graph(
            [node],
            "one",
            [_info(t) for t in used.values() if t.name not in self.constants],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [
                numpy_helper.from_array(self.constants[n], n)
                for n in used
                if n in self.constants and self.constants[n].size < 64
            ],
        )
        graph.input.extend(
            _info(t)
            for n, t in used.items()
            if n in self.constants and self.constants[n].size >= 64
        )
        opsets = opset_imports(self.opset, [node])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception as error:
            raise InvalidError(f"{node.op_type}: {error}") from error
        types = [_type(value) for value in inferred.graph.output]
        if any(kind is None for kind in types):
            return self._run(model, used)
        if any(min(shape, default=1) < 1 for shape, _ in types):
            raise InvalidError(f"{node.op_type}: a result without elements")
        return types

    def _run(
        self, model: onnx.ModelProto, used: dict[str, Tensor]
    ) -> list[tuple[tuple[int, ...], str]]:
        """Return types by running a node: shape inference does not know them all."""
        from oracle import run

        feeds = {
            value.name: self.constants.get(
                value.name, np.zeros(used[value.name].shape, used[value.name].dtype)
            )
            for value in model.graph.input
        }
        try:
            results = run(model, feeds)
        except Exception as error:
            raise InvalidError(f"{model.graph.node[0].op_type}: {error}") from error
        return [(r.shape, r.dtype.name) for r in results]


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(tensor.name, elem_type, tensor.shape)


def _type(value: onnx.ValueInfoProto) -> tuple[tuple[int, ...], str] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
        return None
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    return tuple(d.dim_value for d in kind.shape.dim), dtype


def opset_imports(opset: int, nodes: Sequence[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
    """Return the operator sets of a model with these nodes."""
    domains = sorted({node.domain for node in nodes} - {""})
    return [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
