"""What a network must compute, and how far from it a right result may be.

The reference is ONNX Runtime without its optimisations, or ONNX's evaluator for what that lacks.
How far a result may be from it is not in a table: it is how far the reference moves itself when
every rounding in the network errs by up to `ULPS` units in the last place, and with
``--dtype fp16`` when any tensor is rounded to half precision. Nodes that only move or choose
elements round nothing, and nor do sums and products of small whole numbers: behind such nodes
results must be equal.  Near a step (a comparison, a rounding, an order) the reference itself jumps,
and its values on both sides are right; elsewhere nothing is wider for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from graphs import IR_VERSION, opset_imports
from networks import Network
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

onnxruntime.set_default_logger_severity(4)


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


#: By how many units in the last place a rounding may err: 16 is what OpenCL C (7.4) allows its
#: functions at most (pow, erf), and what a sum of some hundred terms in another order loses.
ULPS = 16
#: Runs of the moved network: some, and many before a result is called wrong.
FEW, MANY = 6, 48
#: The moved networks are samples: the largest deviation in some runs is below the largest there is.
MARGIN = 2.0

#: They move, choose, compare or convert elements: nothing is rounded.
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
#: With small whole numbers they are exact, in any order.
EXACT_IF_WHOLE = names(
    """
    Add Sub Mul Sum Conv ConvTranspose MatMul Gemm ReduceSum ReduceL1 ReduceSumSquare CumSum
    ScatterElements ScatterND Einsum PRelu
    """
)
#: Whole numbers up to here are exact in fp32, and sums of them.
LARGEST_WHOLE = 2**22


def session(model: onnx.ModelProto) -> Any:
    """ONNX Runtime's session of a model as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # No products of bytes that saturate in 16 bits.
    options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class RandomUniformLike(OpRun):
    """For ONNX's evaluator, whose own one does not take a seed and limits together."""

    def _run(  # type: ignore[override]
        self, x: np.ndarray, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float = 0.0
    ) -> tuple[np.ndarray]:
        if not hasattr(self, "_rng"):
            self._rng = np.random.default_rng(int(seed))
        values = self._rng.uniform(low, high, x.shape)
        return (values.astype(helper.tensor_dtype_to_np_dtype(dtype)),)


class Reference:
    """Runs a model: ONNX Runtime, or ONNX's evaluator where that lacks an operator."""

    def __init__(self, model: onnx.ModelProto):
        self.names = [output.name for output in model.graph.output]
        try:
            self._run = session(model).run
        except Exception:  # noqa: BLE001 (its errors share no other class)
            self._run = ReferenceEvaluator(model, new_ops=[RandomUniformLike]).run
            self.fallback = True

    fallback = False

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(r) for r in self._run(None, dict(feeds))]


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a model."""
    return Reference(model)(feeds)


class NoReferenceError(Exception):
    """Neither ONNX Runtime nor ONNX's evaluator computes a network."""


@dataclass
class Oracle:
    """The results that a network must have.

    Parameters
    ----------
    network
        The network.
    half
        Whether tensors may be stored in half precision.
    sums_in_half
        Whether sums may be taken in it, too.
    winograd
        Whether convolutions may be computed by Winograd's algorithm, which rounds sums of whole
        numbers as well.
    expected
        Results that are known otherwise, by name.
    """

    network: Network
    half: bool = False
    sums_in_half: bool = False
    winograd: bool = True
    expected: Mapping[str, np.ndarray] | None = None
    reference: dict[str, np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        n = self.network
        values = self._all_values()
        known = self.expected or {}
        self.reference = {t.name: known.get(t.name, values[t.name]) for t in n.outputs}
        self._samples: list[list[np.ndarray]] = []
        self._moved: Reference | None = None
        self._values = values

    def _all_values(self) -> dict[str, np.ndarray]:
        """Every tensor of the network."""
        n = self.network
        model = n.model
        known = {output.name for output in model.graph.output}
        more = [o for node in n.nodes for o in node.output if o not in known]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
        try:
            results = run(model, n.feeds)
        except Exception as error:
            raise NoReferenceError(str(error)) from error
        names = [output.name for output in model.graph.output]
        return {**n.constants, **n.feeds, **dict(zip(names, results, strict=True))}

    def samples(self, count: int) -> list[list[np.ndarray]]:
        """Results when roundings err at random, an array for each output and run."""
        if self._moved is None:
            model = _moved(self.network, self._values, self)
            if model is None:
                return []
            self._moved = Reference(model)
        while len(self._samples) < count:
            self._samples.append(self._moved(self.network.feeds))
        return self._samples[:count]

    def judge(self, found: Mapping[str, np.ndarray]) -> str | None:
        """Say what is wrong with results, ``None`` if nothing is."""
        complaint = None
        for count in (0, FEW, MANY):
            samples = self.samples(count) if count else []
            complaint = None
            for index, tensor in enumerate(self.network.outputs):
                complaint = complaint or _compare(
                    tensor.name,
                    found[tensor.name],
                    self.reference[tensor.name],
                    [sample[index] for sample in samples],
                )
            if complaint is None:
                return None
            if count and not samples:
                break
        return complaint


@np.errstate(all="ignore")
def _compare(
    name: str, found: np.ndarray, reference: np.ndarray, samples: Sequence[np.ndarray]
) -> str | None:
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return (
            f"{name}: {found.dtype}{list(found.shape)} instead of "
            f"{reference.dtype}{list(reference.shape)}"
        )
    a, b = _wide(found), _wide(reference)
    with np.errstate(all="ignore"):
        right = (a == b) | (np.isnan(a) & np.isnan(b))
        allowed = np.zeros(a.shape)
        if not right.all() and samples:
            moved = [_wide(sample) for sample in samples]
            deviation = np.zeros(b.shape)
            for sample in moved:
                distance = np.abs(sample - b)
                deviation = np.fmax(deviation, np.where(np.isfinite(distance), distance, 0))
            relative = np.where(b != 0, deviation / np.abs(b), np.nan)
            usual = np.nanmedian(relative) if np.isfinite(relative).any() else 0.0
            allowed = MARGIN * np.fmax(deviation, np.where(np.isfinite(b), usual * np.abs(b), 0))
            right |= np.abs(a - b) <= allowed
            for sample in moved:
                right |= (np.isnan(a) & np.isnan(sample)) | (a == sample)
                right |= np.abs(a - sample) <= allowed
    if right.all():
        return None
    error = np.abs(a - b)
    wrong = np.argwhere(~right)
    worst = tuple(wrong[int(np.nanargmax(np.where(np.isfinite(error), error, np.inf)[~right]))])
    scale = np.abs(b[np.isfinite(b)]).max(initial=0)
    return (
        f"{name}: {len(wrong)} of {found.size} values are wrong; at {[int(i) for i in worst]} "
        f"{found[worst]!r} instead of {reference[worst]!r}, where {allowed[worst]:.3g} is allowed "
        f"(largest value {scale:.3g})"
    )


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.longdouble if array.dtype.itemsize == 8 else np.float64)


# ---- The network with errors of rounding ------------------------------------------------------


def _is_whole(arrays: Sequence[np.ndarray]) -> bool:
    """Whether sums and products of the arrays are exact."""
    return all(
        bool(np.isfinite(a).all() and (a == np.floor(a)).all() and np.abs(a).max() < LARGEST_WHOLE)
        for a in arrays
        if a.size
    )


def _moved(
    network: Network, values: Mapping[str, np.ndarray], oracle: Oracle
) -> onnx.ModelProto | None:
    """The network with errors at random where something is rounded; ``None`` if nothing is."""
    noise = _Noise(oracle)
    used: set[int] = set()
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    types = {name: array.dtype.name for name, array in values.items()}
    for node in network.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        around = [values[name] for name in (*node.input, *node.output) if name]
        floats = [a for a in around if a.dtype.kind == "f"]
        exact = node.op_type in EXACT and not _reduces(node)
        if node.op_type in EXACT_IF_WHOLE and not (oracle.winograd and _winograd(node, values)):
            exact = exact or _is_whole(floats)
        if node.op_type == "Resize" and _attribute(node, "mode") in (None, b"nearest"):
            exact = True
        if not exact and floats:
            length = _sum_length(node, values)
            for index, name in enumerate(node.input):
                if name and types[name].startswith("float") and _moves(node, index):
                    copy.input[index] = noise.around(nodes, copy.input[index], types[name], length)
            used.add(len(nodes))
        kinds = [types.get(n) for n in node.input]
        single = not exact and "float32" in kinds
        body = _function(node, network.opset, kinds) if single else None
        if body is not None:
            nodes.extend(_inlined(copy, body, noise))
        else:
            nodes.append(copy)
        for name in node.output:
            if not name or not types[name].startswith("float"):
                continue
            last = name
            if not exact:
                last = noise.around(nodes, last, types[name])
            if oracle.half and types[name] == "float32":
                last = noise.stored(nodes, last)
            renamed[name] = last
    if not used and not oracle.half:
        return None
    constants = dict(network.constants)
    if oracle.half:
        nodes = noise.stored_sources(nodes, [*network.feeds, *constants], types)
    graph = helper.make_graph(
        nodes,
        "moved",
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
    return _with_inner(model, noise) if noise.inner else model


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _winograd(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> bool:
    return node.op_type == "Conv" and values[node.input[1]].shape[2:] == (3, 3)


def _reduces(node: onnx.NodeProto) -> bool:
    return _attribute(node, "reduction") in (b"add", b"mul")


def _moves(node: onnx.NodeProto, index: int) -> bool:
    """Whether an input's rounding matters: shapes, scales and limits are not computed."""
    return not (node.op_type in ("Resize", "Upsample", "QuantizeLinear") and index > 0)


def _sum_length(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> int:
    """How many products a sum has."""
    if node.op_type in ("Conv", "ConvTranspose") and len(node.input) > 1:
        shape = values[node.input[1]].shape
        return int(np.prod(shape[1:] if node.op_type == "Conv" else (shape[0], *shape[2:])))
    if node.op_type in ("Gemm", "MatMul"):
        return int(max(values[node.input[0]].shape))
    return 1


class _Noise:
    """Adds nodes that err at random."""

    def __init__(self, oracle: Oracle):
        self._oracle = oracle
        self._count = 0
        #: Tensors within functions that are rounded.
        self.inner: set[str] = set()

    def name(self) -> str:
        self._count += 1
        return f"moved{self._count}"

    def _node(
        self, nodes: list[onnx.NodeProto], op_type: str, inputs: Sequence[str], **attributes: Any
    ) -> str:
        name = self.name()
        nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def around(self, nodes: list[onnx.NodeProto], name: str, dtype: str, length: int = 1) -> str:
        """The tensor, each element times a number near one."""
        bits = {"float16": 10, "float32": 23, "float64": 52}[dtype]
        error = (2 if dtype == "float16" else ULPS) * 2.0 ** -min(bits, 23)
        if self._oracle.sums_in_half and dtype == "float32":
            error = max(2.0**-10, 2.0**-10 * (length / 6) ** 0.5)
        factor, product = self.name(), self.name()
        wide = "float64" if dtype == "float64" else "float32"
        elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(wide))
        nodes.append(
            helper.make_node(
                "RandomUniformLike", [name], [factor], low=1 - error, high=1 + error,
                seed=float(self._count), dtype=elem_type,
            )
        )  # fmt: skip
        if dtype == "float16":
            factor = self._node(nodes, "Cast", [factor], to=TensorProto.FLOAT16)
        if dtype == "float64":
            # Attributes are fp32.
            values = [np.float64(1), np.float64(2.0**29)]
            one, many = (
                self._node(nodes, "Constant", [], value=numpy_helper.from_array(np.asarray(v)))
                for v in values
            )
            error_of = self._node(nodes, "Sub", [factor, one])
            factor = self._node(nodes, "Add", [one, self._node(nodes, "Div", [error_of, many])])
        nodes.append(helper.make_node("Mul", [name, factor], [product]))
        return product

    def stored(self, nodes: list[onnx.NodeProto], name: str) -> str:
        """The tensor, some of whose elements are rounded to half precision."""
        half, back, dice, some, chosen = (self.name() for _ in range(5))
        limit = self.name()
        nodes += [
            helper.make_node("Cast", [name], [half], to=TensorProto.FLOAT16),
            helper.make_node("Cast", [half], [back], to=TensorProto.FLOAT),
            helper.make_node(
                "RandomUniformLike", [name], [dice], seed=float(self._count),
                dtype=TensorProto.FLOAT,
            ),
            helper.make_node(
                "Constant", [], [limit], value=numpy_helper.from_array(np.float32(0.3))
            ),
            helper.make_node("Greater", [dice, limit], [some]),
            helper.make_node("Where", [some, back, name], [chosen]),
        ]  # fmt: skip
        return chosen

    def stored_sources(
        self, nodes: list[onnx.NodeProto], names: Sequence[str], types: Mapping[str, str]
    ) -> list[onnx.NodeProto]:
        """The nodes, reading inputs and weights that are rounded to half precision."""
        first: list[onnx.NodeProto] = []
        renamed = {n: self.stored(first, n) for n in names if types[n] == "float32"}
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
    """ONNX's definition of an operator by simpler ones, ``None`` where it has none."""
    if node.domain or node.op_type in EXACT or node.op_type == "Clip":
        return None
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    try:
        body = _body(node.op_type, opset, bare.SerializeToString(), tuple(types))
    except Exception:  # noqa: BLE001 (then only what goes in and comes out is moved)
        return None
    nested = body is not None and any(a.g.node for part in body.node for a in part.attribute)
    return None if nested else body


def _inlined(node: onnx.NodeProto, body: Any, noise: _Noise) -> list[onnx.NodeProto]:
    """The nodes of a function instead of a call."""
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
        nodes.append(copy)
        if part.op_type in ROUNDS_INSIDE:
            noise.inner.update(name for name in copy.output if name not in node.output)
    return nodes


#: Of the operators in functions, those whose results are rounded.
ROUNDS_INSIDE = names(
    """
    Exp Log Erf Tanh Sigmoid Sqrt Pow Div Mul Add Sub ReduceSum ReduceMean Softplus
    Reciprocal Softmax
    """
)


def _with_inner(model: onnx.ModelProto, noise: _Noise) -> onnx.ModelProto:
    """The model with errors after nodes of functions, where these are fp32."""
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = {
        value.name
        for value in inferred.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in model.graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        nodes.append(node)
        for name in node.output:
            if name in noise.inner & floats:
                renamed[name] = noise.around(nodes, name, "float32")
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result
