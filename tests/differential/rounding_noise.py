"""Networks with random rounding errors: their deviation is the error that a result may have.

Around each node that rounds, inputs and outputs are multiplied by numbers near one; so are the
intermediate values of ONNX's own definition of an operator.  With storage in half precision, any
element of any tensor may be rounded to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.parser
from contexts import Network
from graphs import IR_VERSION, names, opset_imports
from onnx import TensorProto, helper, numpy_helper

#: Rounding error in units in the last place: 16 is the most that OpenCL C (7.4) allows its
#: functions (pow, erf), and that a sum of some hundred terms loses in another order.
ULPS = 16
#: Relative error of an element of Winograd's F(2×2, 3×3) in half precision: it is stored as part
#: of a sum of four, and multiplied to become part of another.
WINOGRAD_IN_HALF = 2.0**-9

#: Operators without an ONNX definition that are computed in several kernels or with derived
#: weights: the tensors between the kernels and these weights are stored.
SEVERAL_STEPS = names(
    """
    LRN InstanceNormalization LpNormalization LpPool GlobalLpPool CumSum Resize Upsample LSTM GRU
    RNN
    """
)

#: Exponentials minus one: their rounding error is that of numbers near one, however small they are.
LESS_ONE = names("Elu Celu Selu")
#: Logarithms of one plus a number, which ONNX Runtime rounds to fp64 first, but not to fp32.
MORE_THAN_ONE_IN_64 = names("Softplus Mish")
#: ONNX Runtime's is a polynomial within 0 to 1, with this error where the function is near 0.
LOGISTIC, LOGISTIC_ERROR = "Sigmoid", 1.25 * 2.0**-24
#: Recurrent layers, whose gates have that error, and whose states sum it over several steps.
RECURRENT, RECURRENT_ERROR = names("LSTM GRU RNN"), 8 * LOGISTIC_ERROR
#: Operators whose definitions overflow, or lose all digits of small results.
NOT_AS_DEFINED = names("Clip Softplus ReduceLogSumExp")
#: Operators whose definitions, a number times nearly 0 with errors near one, are written out for
#: fp32 only: in other types the product errs by units of the number.
GATED = names("Swish Gelu Mish")
UNIT = {"float16": 2.0**-24, "float64": 2.0**-52}
#: Logarithms of sums, whose error is absolute: the sum may be stored in half precision.
LOGARITHMS = names("ReduceLogSum ReduceLogSumExp")

#: Operators that move, choose, compare or convert elements: they do not round.
EXACT = names(
    """
    Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike
    Ceil CenterCropPad Clip Concat DepthToSpace DequantizeLinear DynamicQuantizeLinear Equal
    Expand Flatten Floor Gather GatherElements GatherND GlobalMaxPool Greater GreaterOrEqual
    Hardmax Identity IsInf IsNaN Less LessOrEqual Max MaxPool Min Neg Not OneHot Or Pad
    QLinearConv QLinearMatMul QuantizeLinear ReduceMax ReduceMin Relu Reshape Round
    ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze
    Where Xor ThresholdedRelu ConvInteger MatMulInteger
    """
)
#: Operators that are exact with small integers, in any order.
EXACT_IF_WHOLE = names(
    """
    Add Sub Mul Sum Conv ConvTranspose MatMul Gemm ReduceSum ReduceL1 ReduceSumSquare CumSum
    ScatterElements ScatterND Einsum PRelu
    """
)
#: Sums of all elements along axes, which may be computed serially.
SUMS = names(
    """
    ReduceSum ReduceL1 ReduceL2 ReduceSumSquare ReduceMean ReduceLogSum GlobalAveragePool
    """
)
#: Half of the least step between halves: smaller results are not 0 in single precision.
LEAST_STEP = 2.0**-25
#: Error of a serial sum for each of its terms: a quarter of the worst case.  Terms of one sign
#: with a large integer sum reach a tenth of the worst case.
SERIAL = 2.0**-24 / 8
#: Functions of numbers up to one; noise must not lead beyond it.
WITHIN_ONE = names("Acos Asin Atanh")
#: Maxima of windows and of axes, in which ONNX Runtime loses NaN.
LOSE_NAN = names("ReduceMax ReduceMin MaxPool GlobalMaxPool")
#: Sums of all elements along an axis, whose differences are small compared with the terms.
TRANSFORMS = names("DFT STFT")
#: Operators whose weights may be multiplied by a following factor.
WEIGHTED = names("Conv ConvTranspose MatMul Gemm")
#: Limit of integers that are exact in fp32, together with sums of them.
LARGEST_WHOLE = 2**22


def _is_whole(arrays: Sequence[np.ndarray]) -> bool:
    """Return whether sums and products of the arrays are exact."""
    return all(
        bool(np.isfinite(a).all() and (a == np.floor(a)).all() and np.abs(a).max() < LARGEST_WHOLE)
        for a in arrays
        if a.size
    )


def with_noise(
    network: Network,
    values: Mapping[str, np.ndarray],
    *,
    half: bool,
    longest_in_half: int,
    winograd: bool,
) -> NoisyNetwork | None:
    """Add random errors to the network wherever it rounds; return ``None`` if nothing rounds.

    Parameters
    ----------
    values
        Every tensor of the network.
    half, longest_in_half, winograd
        See `oracle.Oracle`.
    """
    noise = _Noise(longest_in_half)
    used = False
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    types = {name: array.dtype.name for name, array in values.items()}
    given = {*network.feeds, *network.constants}
    # Integers, booleans, single numbers, and values computed from them alone are not stored in
    # half precision.
    counts = (np.int32, np.int64, np.bool_)
    exact_in_half = {n for n, array in values.items() if array.dtype in counts}
    exact_in_half |= {n for n, a in network.constants.items() if a.size == 1 or _is_whole([a])}
    for node in network.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        if not node.input:
            nodes.append(copy)
            continue
        if node.op_type not in WEIGHTED and exact_in_half.issuperset(filter(None, node.input)):
            exact_in_half.update(node.output)
        around = [values[name] for name in (*node.input, *node.output) if name]
        floats = [a for a in around if a.dtype.kind == "f"]
        exact = node.op_type in EXACT and not _reduces(node)
        source = next(filter(None, node.input), node.output[0])
        if types.get(node.output[0]) == "float16" and types.get(source) != "float16":
            # After a conversion to half precision, modules compute in single precision, unrounded.
            exact = False
        inexact = node.op_type in WEIGHTED and _scaled(node, network, values)
        inexact = inexact or (winograd and is_tiled(node, values))
        if node.op_type in EXACT_IF_WHOLE and not inexact:
            exact = exact or _is_whole(floats)
        if node.op_type == "Resize" and _attribute(node, "mode") in (None, b"nearest"):
            exact = True
        if not exact and floats:
            length = _sum_length(node, values)
            least = WINOGRAD_IN_HALF if half and winograd and is_tiled(node, values) else 0.0
            for index, name in enumerate(node.input):
                if name and types[name].startswith("float") and _moves(node, index):
                    # Weights times the scale that follows are stored.
                    scaled = half and index > 0 and _scaled(node, network, values)
                    copy.input[index] = noise.multiply_error(
                        *(nodes, copy.input[index], values[name], length),
                        max(least, 2.0**-11 * scaled),
                    )
            if node.op_type in WITHIN_ONE:
                copy.input[0] = noise.within_one(nodes, copy.input[0], values[node.input[0]])
            used = True
        kinds = [types.get(n) for n in node.input]
        single = not exact and "float32" in kinds
        body = _function(node, network.opset, kinds) if single else None
        if single and node.op_type == "InstanceNormalization":
            body = _instance_normalization(values[node.input[0]].ndim, _attribute(node, "epsilon"))
        if body is not None and not network.wide.intersection(node.output):
            nodes.extend(_inlined(copy, body, noise, network.opset))
        else:
            nodes.append(copy)
        first = values[source]
        if node.op_type == "Equal" and first.dtype.kind == "f" and not given.issuperset(node.input):
            unit = 2.0**-9 if half else 2 * noise.usual(first.dtype.name)
            noise.nearly_equal(nodes, copy, first.dtype, values[node.output[0]].shape, unit)
            used = True
        if node.op_type in LOSE_NAN and first.dtype.kind == "f" and (half or np.isnan(first).any()):
            # The nodes that follow may turn NaN into a number.
            noise.keep_nan(nodes, copy, first.dtype)
            used = True
        for name in node.output:
            if not name or not types[name].startswith("float"):
                continue
            last = name
            if not exact:
                least = 2.0**-10 if half and node.op_type in SEVERAL_STEPS else 0.0
                if node.op_type in SUMS:
                    terms = values[node.input[0]].size / max(1, values[name].size)
                    least = max(least, SERIAL * terms)
                last = noise.multiply_error(nodes, last, values[name], least=least)
            if types[source] == "float16" != types[name] and source not in given:
                last = noise.add_error(nodes, last, values[name], error=LEAST_STEP)
                used = True
            least = 2.0**-11 if half and node.op_type in LOGARITHMS else 0.0
            near_one = node.op_type in LESS_ONE
            near_one |= node.op_type in MORE_THAN_ONE_IN_64 and types[name] == "float64"
            if near_one or least:
                last = noise.add_error(nodes, last, values[name], least)
            if node.op_type == LOGISTIC:
                last = noise.add_error(nodes, last, values[name], error=LOGISTIC_ERROR)
            if node.op_type == "CausalConvWithState":
                # Its SiLU is the sum times a Sigmoid.
                sums = np.abs(values[node.input[1]]).sum(axis=(1, 2)).max() * largest(first)
                error = LOGISTIC_ERROR * float(sums)
                last = noise.add_error(nodes, last, values[name], error=error)
            if node.op_type in GATED and types[name] in UNIT:
                error = UNIT[types[name]] * largest(first)
                last = noise.add_error(nodes, last, values[name], error=error)
            if node.op_type in RECURRENT:
                last = noise.add_error(nodes, last, values[name], error=RECURRENT_ERROR)
            if node.op_type in TRANSFORMS:
                unit = max(2.0**-11 * half, ULPS * 2.0**-24)
                error = unit * largest(first) * max(first.shape) ** 0.5
                last = noise.add_error(nodes, last, values[name], error=error)
            if winograd and not exact and is_tiled(node, values):
                # All elements of a tile err by units of the usual size of the sums that are stored.
                unit = 2.0**-11 if half else ULPS * 2.0**-23
                error = unit * _usual_sum(*(values[name] for name in node.input[:2]))
                last = noise.add_error(nodes, last, values[name], error=error)
            if longest_in_half and node.op_type in ("LpPool", "GlobalLpPool"):
                # Powers below 2^-14 have fewer digits in half precision.
                terms = prod(_attribute(node, "kernel_shape") or first.shape[2:])
                p = _attribute(node, "p") or 2
                last = noise.of_power(nodes, last, values[name], p, 2.0**-24 * terms**1.5)
            if not exact and node.op_type in ("Resize", "Upsample"):
                # Weights of neighbours are stored, and are computed from positions in fp32.
                unit = max(2.0**-11 * half, 2.0**-23 * max(first.shape, default=1))
                last = noise.add_error(nodes, last, values[name], error=unit * largest(first))
            narrow = name not in exact_in_half and name not in network.wide
            if half and types[name] == "float32" and narrow:
                last = noise.stored(nodes, last, values[name].shape)
            renamed[name] = last
    if not used and not half:
        return None
    constants = dict(network.constants)
    if half:
        nodes = noise.stored_sources(nodes, {**network.feeds, **constants})
    graph = helper.make_graph(
        nodes,
        "noisy",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in network.feeds.items()
        ],
        [onnx.ValueInfoProto(name=renamed.get(t.name, t.name)) for t in network.outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=opset_imports(network.opset, nodes), ir_version=IR_VERSION
    )
    _add_sources(model, noise, set())
    if noise.inner:
        known = set(noise.sources)
        # Any of them may be a tensor between two kernels.
        model = _with_inner(model, noise, 2.0**-11 * half)
        _add_sources(model, noise, known)
    return NoisyNetwork(model, noise.sources)


def _add_sources(model: onnx.ModelProto, noise: _Noise, known: set[str]) -> None:
    """Declare the random inputs."""
    for name, source in noise.sources.items():
        if name not in known:
            elem_type = helper.np_dtype_to_tensor_dtype(source.dtype)
            model.graph.input.append(helper.make_tensor_value_info(name, elem_type, source.shape))


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def is_tiled(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> bool:
    """Return whether Winograd's algorithm may compute a node."""
    square = node.op_type == "Conv" and values[node.input[1]].shape[2:] == (3, 3)
    return square and _attribute(node, "group") in (None, 1)


def _usual_sum(x: np.ndarray, weights: np.ndarray) -> float:
    """Return the largest size of a convolution's sums, if their terms have random signs."""
    squares = np.square(weights, dtype=np.float64).reshape(len(weights), -1).sum(axis=1)
    return float(np.sqrt(squares.max())) * largest(x)


def largest(x: np.ndarray) -> float:
    """Return the largest finite absolute value."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))


def _scaled(node: onnx.NodeProto, network: Network, values: Mapping[str, np.ndarray]) -> bool:
    """Return whether weights are multiplied by others: by a following factor, or by each other."""
    if node.op_type == "BatchNormalization":
        return True
    readers = [n for n in network.nodes if set(n.input) & set(node.output)]
    return any(
        n.op_type in ("BatchNormalization", "Div")
        or (n.op_type == "Mul" and not _is_whole([values[name] for name in n.input]))
        for n in readers
    )


def _reduces(node: onnx.NodeProto) -> bool:
    return _attribute(node, "reduction") in (b"add", b"mul")


def _moves(node: onnx.NodeProto, index: int) -> bool:
    """Return whether an input's rounding matters: shapes, scales and limits are not computed.

    Nor are exponents: a power of a negative number is NaN unless the exponent is an integer.
    """
    return not (node.op_type in ("Resize", "Upsample", "QuantizeLinear", "Pow") and index > 0)


def _sum_length(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> int:
    """Return the number of products in a sum."""
    if node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 1:
        shape = values[node.input[1]].shape
        return int(np.prod(shape[1:] if node.op_type == "Conv" else (shape[0], *shape[2:])))
    if node.op_type in ("Gemm", "MatMul"):
        return int(max(values[node.input[0]].shape))
    return 1


@dataclass(frozen=True)
class Source:
    """A random input of the noisy network: numbers, or truth values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    #: Largest distance of numbers from the middle; probability of true.
    amount: float
    middle: float = 1.0
    #: Whether it selects the stored elements of a tensor between two nodes.
    between: bool = False

    def draw(self, rng: np.random.Generator, fused: bool) -> np.ndarray:
        if self.between and fused:
            return np.zeros(self.shape, bool)
        if self.dtype == bool:
            # Fusion decides which tensors are stored: all elements in a third of the runs, because
            # errors of equal elements add up, and none in another third.
            share = rng.choice([0.0, self.amount, 1.0])
            return np.asarray(rng.random(self.shape) < share)
        # Half precision rounds equal elements alike, and such errors add up.
        alike = self.dtype == np.float16 and rng.random() < 1 / 3
        errors = rng.uniform(-1, 1, () if alike else self.shape)
        return np.full(self.shape, self.middle + self.amount * errors, self.dtype)


@dataclass(frozen=True)
class NoisyNetwork:
    """A network with random errors, and its additional inputs."""

    model: onnx.ModelProto
    sources: Mapping[str, Source]

    def draw(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the errors of one run."""
        # In a quarter of the runs all nodes are one kernel: only weights and inputs are stored.
        fused = rng.random() < 0.25
        return {name: source.draw(rng, fused) for name, source in self.sources.items()}


class _Noise:
    """Adds nodes that introduce random errors."""

    def __init__(self, longest_in_half: int):
        self._longest_in_half = longest_in_half
        self._count = 0
        self.sources: dict[str, Source] = {}
        #: Rounded tensors within functions.
        self.inner: set[str] = set()

    def name(self) -> str:
        self._count += 1
        return f"noise{self._count}"

    def _node(
        self, nodes: list[onnx.NodeProto], op_type: str, inputs: Sequence[str], **attributes: Any
    ) -> str:
        name = self.name()
        nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def _source(self, shape: tuple[int, ...], dtype: str, amount: float, **more: Any) -> str:
        name = self.name()
        self.sources[name] = Source(shape, np.dtype(dtype), amount, **more)
        return name

    def multiply_error(
        self,
        nodes: list[onnx.NodeProto],
        name: str,
        value: np.ndarray,
        length: int = 1,
        least: float = 0.0,
    ) -> str:
        """Multiply each element by a number near one, for a sum of ``length`` products."""
        dtype = value.dtype.name
        amount = max(self.usual(dtype, length), least)
        return self._node(nodes, "Mul", [name, self._source(value.shape, dtype, amount)])

    def usual(self, dtype: str, length: int = 1) -> float:
        """Return the usual relative error."""
        if self._longest_in_half and dtype == "float32":
            # See `tvmflow.verify.tolerance.summed_in_half`.
            return 2.0**-10 * max(1.0, (min(length, self._longest_in_half) / 6) ** 0.5)
        # Half precision rounds values computed in single: by little more than one unit.
        usual = {"float16": 2 * 2.0**-10, "float32": ULPS * 2.0**-23, "float64": ULPS * 2.0**-52}
        return usual[dtype]

    def add_error(
        self,
        nodes: list[onnx.NodeProto],
        name: str,
        value: np.ndarray,
        least: float = 0.0,
        error: float | None = None,
    ) -> str:
        """Add to each element the error of a number near one, or one of the size ``error``."""
        dtype = value.dtype.name
        amount = max(self.usual(dtype), least) if error is None else error
        return self._node(nodes, "Add", [name, self._source(value.shape, dtype, amount, middle=0)])

    def within_one(self, nodes: list[onnx.NodeProto], name: str, value: np.ndarray) -> str:
        """Keep elements of the tensor that are within one there."""
        one, inside = (
            self._node(nodes, "Constant", [], value=numpy_helper.from_array(array))
            for array in (np.array(1, value.dtype), np.abs(value) <= 1)
        )
        least = self._node(nodes, "Max", [name, self._node(nodes, "Neg", [one])])
        limited = self._node(nodes, "Min", [least, one])
        return self._node(nodes, "Where", [inside, limited, name])

    def of_power(
        self, nodes: list[onnx.NodeProto], name: str, value: np.ndarray, p: int, error: float
    ) -> str:
        """Add an error to a power of each element of the tensor."""
        dtype = value.dtype
        up, down = (numpy_helper.from_array(np.array(e, dtype)) for e in (p, 1 / p))
        power = [self._node(nodes, "Abs", [name]), self._node(nodes, "Constant", [], value=up)]
        error_source = self._source(value.shape, dtype.name, error, middle=0)
        noisy = self._node(nodes, "Add", [self._node(nodes, "Pow", power), error_source])
        root = [self._node(nodes, "Abs", [noisy]), self._node(nodes, "Constant", [], value=down)]
        return self._node(nodes, "Pow", root)

    def keep_nan(
        self, nodes: list[onnx.NodeProto], node: onnx.NodeProto, dtype: np.dtype[Any]
    ) -> None:
        """Make the maximum or minimum of the last node NaN if its inputs have one."""
        result, node.output[0] = node.output[0], self.name()
        flags = self._node(nodes, "IsNaN", [node.input[0]])
        if node.op_type == "ReduceMin":
            flags = self._node(nodes, "Not", [flags])
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        del copy.output[1:]
        copy.input[0] = self._node(nodes, "Cast", [flags], to=TensorProto.FLOAT)
        copy.output[0] = self.name()
        nodes.append(copy)
        middle = numpy_helper.from_array(np.array(0.5, np.float32))
        half = self._node(nodes, "Constant", [], value=middle)
        order = ("Less", "Greater")[node.op_type != "ReduceMin"]
        found = self._node(nodes, order, [copy.output[0], half])
        nan = numpy_helper.from_array(np.array(np.nan, dtype))
        nothing = self._node(nodes, "Constant", [], value=nan)
        nodes.append(helper.make_node("Where", [found, nothing, node.output[0]], [result]))

    def nearly_equal(
        self,
        nodes: list[onnx.NodeProto],
        node: onnx.NodeProto,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        unit: float,
    ) -> None:
        """Make the last node, a comparison, return true at random for nearly equal numbers.

        Random errors hardly ever make two numbers equal.
        """
        result, node.output[0] = node.output[0], self.name()
        difference = self._node(nodes, "Abs", [self._node(nodes, "Sub", list(node.input))])
        limit = numpy_helper.from_array(np.array(unit, dtype))
        size = self._node(nodes, "Abs", [node.input[1]])
        limit = self._node(nodes, "Mul", [size, self._node(nodes, "Constant", [], value=limit)])
        near = self._node(nodes, "Not", [self._node(nodes, "Greater", [difference, limit])])
        near = self._node(nodes, "And", [near, self._source(shape, "bool", 0.5)])
        nodes.append(helper.make_node("Or", [node.output[0], near], [result]))

    def stored(
        self, nodes: list[onnx.NodeProto], name: str, shape: tuple[int, ...], between: bool = True
    ) -> str:
        """Round most elements of the tensor to half precision."""
        half = self._node(nodes, "Cast", [name], to=TensorProto.FLOAT16)
        back = self._node(nodes, "Cast", [half], to=TensorProto.FLOAT)
        return self._node(
            nodes, "Where", [self._source(shape, "bool", 0.7, between=between), back, name]
        )

    def stored_sources(
        self, nodes: list[onnx.NodeProto], arrays: Mapping[str, np.ndarray]
    ) -> list[onnx.NodeProto]:
        """Return the nodes, reading inputs and weights that are rounded to half precision."""
        first: list[onnx.NodeProto] = []
        renamed = {
            name: self.stored(first, name, array.shape, between=False)
            for name, array in arrays.items()
            if array.dtype == np.float32
        }
        for node in nodes:
            if node.op_type not in ("Resize", "Upsample"):
                node.input[:] = [renamed.get(name, name) for name in node.input]
        return [*first, *nodes]


@cache
def _body(op_type: str, opset: int, attributes: bytes, types: tuple[str | None, ...]) -> Any:
    schema = onnx.defs.get_schema(op_type, opset)
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if schema.has_function and versions:
        found = schema.get_function_with_opset_version(max(versions))
        return onnx.FunctionProto.FromString(found) if isinstance(found, bytes) else found
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not schema.has_context_dependent_function or not versions:
        return None
    node = onnx.NodeProto.FromString(attributes)
    kinds = [
        helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(np.dtype(t)), None
        ).SerializeToString()
        if t
        else b""
        for t in types
    ]
    text = schema.get_context_dependent_function_with_opset_version(
        max(versions), node.SerializeToString(), kinds
    )
    return onnx.FunctionProto.FromString(text)


def _function(node: onnx.NodeProto, opset: int, types: Sequence[str | None]) -> Any:
    """Return ONNX's definition of an operator by simpler ones, ``None`` if it has none."""
    if node.domain or node.op_type in EXACT or node.op_type in NOT_AS_DEFINED:
        return None
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    try:
        body = _body(node.op_type, opset, bare.SerializeToString(), tuple(types))
    except Exception:  # noqa: BLE001 (then only what goes in and comes out is noisy)
        return None
    if body is None or not body.node:  # some definitions depend on shapes
        return None
    nested = any(a.g.node for part in body.node for a in part.attribute)
    return None if nested else body


@cache
def _instance_normalization(rank: int, epsilon: float | None) -> Any:
    """Return a definition of an operator that has none in ONNX.

    ONNX Runtime computes scale · x + (bias - mean · scale), which cancels where a picture has
    hardly any variance; modules subtract the mean first.
    """
    ones = ", ".join(["1"] * (rank - 2))
    return onnx.parser.parse_function(f"""<domain: "noise", opset_import: ["" : 13]>
        InstanceNormalization (x, scale, bias) => (y) {{
            mean = GlobalAveragePool(x)
            rest = Sub(x, mean)
            square = Mul(rest, rest)
            variance = GlobalAveragePool(square)
            least = Constant<value = float[1] {{{1e-5 if epsilon is None else epsilon:.9e}}}>()
            sum = Add(variance, least)
            deviation = Sqrt(sum)
            normal = Div(rest, deviation)
            shape = Constant<value = int64[{rank - 1}] {{-1, {ones}}}>()
            a = Reshape(scale, shape)
            b = Reshape(bias, shape)
            product = Mul(normal, a)
            y = Add(product, b)
        }}""")


def _inlined(node: onnx.NodeProto, body: Any, noise: _Noise, opset: int) -> list[onnx.NodeProto]:
    """Return the nodes of a function, inlined."""
    schema = onnx.defs.get_schema(node.op_type)
    given = {a.name: a for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            given[name] = attribute.default_value
    inside = noise.name()
    names = dict(zip(body.input, node.input, strict=False))
    names |= dict.fromkeys(list(body.input)[len(node.input) :], "")
    names |= dict(zip(body.output, node.output, strict=False))
    nodes: list[onnx.NodeProto] = []
    for part in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(part)
        copy.name = ""
        for attribute in list(copy.attribute):
            if attribute.ref_attr_name:
                copy.attribute.remove(attribute)
                if attribute.ref_attr_name in given:
                    value = onnx.AttributeProto()
                    value.CopyFrom(given[attribute.ref_attr_name])
                    value.name = attribute.name
                    copy.attribute.append(value)
        copy.input[:] = [names.get(n, n and f"{inside}_{n}") for n in part.input]
        copy.output[:] = [names.get(n, n and f"{inside}_{n}") for n in part.output]
        within = _function(copy, opset, ["float32"] * len(copy.input))
        nodes.extend(_inlined(copy, within, noise, opset) if within is not None else [copy])
        if part.op_type in ROUNDS_INSIDE:
            noise.inner.update(name for name in copy.output if name not in node.output)
    return nodes


#: Operators in functions whose results are rounded.
ROUNDS_INSIDE = names(
    """
    Exp Log Erf Tanh Sigmoid Sqrt Pow Div Mul Add Sub ReduceSum ReduceMean Softplus
    Reciprocal Softmax
    """
)


def _with_inner(model: onnx.ModelProto, noise: _Noise, least: float) -> onnx.ModelProto:
    """Add errors after nodes of functions whose results are fp32."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    floats = {}
    for value in inferred.graph.value_info:
        kind = value.type.tensor_type
        extents = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        known = kind.HasField("shape") and len(extents) == len(kind.shape.dim)
        if known and kind.elem_type == TensorProto.FLOAT:
            floats[value.name] = np.empty(extents, np.float32)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        nodes.append(node)
        for name in node.output:
            if name in noise.inner and name in floats:
                last = noise.multiply_error(nodes, name, floats[name], least=least)
                if node.op_type == LOGISTIC:
                    last = noise.add_error(nodes, last, floats[name], error=LOGISTIC_ERROR)
                renamed[name] = last
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result
