"""Random generators of operators: each applies one to a given tensor, with random attributes.

`RULES` holds special rules; ONNX's schemas suffice for elementwise operators of one, two or any
number of operands (`generic`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from graphs import TAME, VALUES, Graph, InvalidError, Tensor
from onnx import helper

from tvmflow.frontend.dynamic import MAKERS
from tvmflow.frontend.ops import CONVERTERS

NEWEST_OPSET = 24
#: The newest operator set of ONNX, for operators that ONNX Runtime does not support.
LAST_OPSET = 28

#: Function that applies an operator to a tensor; it returns the results, the main one first.
Draw = Callable[[Graph, Tensor], list[Tensor]]


@dataclass(frozen=True)
class Rule:
    """Rule that generates nodes of an operator.

    Parameters
    ----------
    draw
        Adds the operator to a graph.
    opsets
        The first and the last operator set that contain the operator.
    values
        Kinds of values of the inputs: operators on integers cannot be given NaN.
    multiple
        Divisor of the number of channels: awkward numbers are multiplied by it.
    even
        Whether height and width must be even.
    """

    draw: Draw
    opsets: tuple[int, int] = (13, NEWEST_OPSET)
    values: tuple[str, ...] = VALUES
    multiple: int = 1
    even: bool = False


RULES: dict[str, Rule] = {}

#: Registered operators that are not generated, and why.
EXCLUDED: dict[str, str] = {
    "Compaction": "None of ONNX's: what NonZero, Compress and NonMaxSuppression become.",
    "BoxSelection": "None of ONNX's: what NonMaxSuppression becomes.",
    "NibbleProduct": "None of ONNX's: MatMul and Gemm of weights of 4 bits.",
    "RunLoop": "None of ONNX's: Loop and Scan in the virtual machine, which nodes are put into.",
}


def rule(*names: str, **properties: Any) -> Callable[[Any], Any]:
    """Register a function as the rule of operators; for several, it also takes the name."""

    def register(function: Any) -> Any:
        for name in names:
            assert name not in RULES, name
            draw = function if len(names) == 1 else _named(function, name)
            RULES[name] = Rule(draw, **properties)
        return function

    return register


def _named(function: Any, name: str) -> Draw:
    return lambda g, x: function(g, x, name)


@cache
def rule_of(op_type: str) -> Rule | None:
    """Return the rule of an operator; ``None`` if there is none."""
    if op_type in RULES:
        return RULES[op_type]
    return generic(op_type)


def drawn() -> list[str]:
    """Return the registered operators that are generated."""
    return [
        name for name in sorted({*CONVERTERS, *MAKERS}) if name not in EXCLUDED and rule_of(name)
    ]


def available(op_type: str, opset: int) -> bool:
    """Return whether an operator is generated in an operator set."""
    found = rule_of(op_type)
    if found is None or not found.opsets[0] <= opset <= found.opsets[1]:
        return False
    try:
        return not onnx.defs.get_schema(op_type, opset).deprecated
    except onnx.defs.SchemaError:
        return False


# ---- Elementwise operators, by their schemas --------------------------------------------------

#: Allowed strings of enumerated attributes, by operator and attribute.
WORDS = {
    ("Gelu", "approximate"): ("none", "tanh"),
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
}
#: Domains of operators; normal numbers are mapped into them.
DOMAINS = {
    "Log": "positive", "Sqrt": "positive", "Acosh": "above one", "Asin": "unit", "Acos": "unit",
    "Atanh": "unit", "Reciprocal": "positive", "Pow": "positive", "Div": "any",
}  # fmt: skip
#: Operators whose arguments are limited: Intel's OpenCL runtime for CPUs loses tiny numbers if
#: another lane of the same vector has some 10^10 turns (the sine of 10^-7 is -2^-6 there), and
#: PoCL's tangent is doubled next to an infinity.
TURNS = ("Sin", "Cos", "Tan")
#: Dtypes for which the reference is unreliable.
UNKNOWN = {
    # ONNX Runtime does not support float16, and ONNX's evaluator overflows in it.
    "Softplus": ("float16",), "Mish": ("float16",),
    # ONNX Runtime computes it in fp32.
    "Erf": ("float64",),
    # ONNX's definition has a constant in fp32; in halves, 1 + tanh cancels by an unknown amount.
    "Gelu": ("float16", "float64"),
    # In halves, ONNX Runtime's Sigmoid cancels by an unknown amount, too.
    "Swish": ("float16",), "SwiGLU": ("float16",),
}  # fmt: skip
NUMBERS = ("float32", "float32", "float32", "float32", "int32", "int64", "float16", "float64")
NARROW = ("uint8", "int8", "uint32", "uint16", "int16", "uint64")


def allowed_types(schema: Any, type_str: str) -> list[str]:
    """Return NumPy's names of the dtypes that a type variable allows."""
    texts = {type_str}
    for constraint in schema.type_constraints:
        if constraint.type_param_str == type_str:
            texts = set(constraint.allowed_type_strs)
    known = [*dict.fromkeys(NUMBERS), *NARROW, "bool"]
    names = {"float32": "float", "float64": "double"}
    return [d for d in known if f"tensor({names.get(d, d)})" in texts]


def generic(op_type: str) -> Rule | None:
    """Return the rule of an elementwise operator, derived from its schema."""
    if not onnx.defs.has(op_type):
        return None
    schema = onnx.defs.get_schema(op_type)
    inputs = schema.inputs
    if len(schema.outputs) != 1 or any(a.required for a in schema.attributes.values()
                                       if (op_type, a.name) not in WORDS):  # fmt: skip
        return None
    variadic = inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    since = max(13, _first(op_type))
    last = max(NEWEST_OPSET, LAST_OPSET if since > NEWEST_OPSET else 0)
    types = allowed_types(schema, inputs[0].type_str)
    values = VALUES if "float32" in types or types == ["bool"] else TAME
    if len(inputs) == 1 and not variadic:
        return Rule(lambda g, x: _unary(g, x, op_type), (since, last), values)
    if len(inputs) == 1:
        return Rule(lambda g, x: _variadic(g, x, op_type), (since, last), values)
    if len(inputs) == 2 and not variadic:
        return Rule(lambda g, x: _binary(g, x, op_type), (since, last), values)
    return None


def _first(op_type: str) -> int:
    return min(
        s.since_version for s in onnx.defs.get_all_schemas_with_history()
        if s.name == op_type and not s.domain
    )  # fmt: skip


def attributes_of(g: Graph, op_type: str) -> dict[str, Any]:
    """Return values for the attributes of an elementwise operator."""
    schema = onnx.defs.get_schema(op_type, g.opset)
    kinds = onnx.defs.OpSchema.AttrType
    chosen: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        words = WORDS.get((op_type, name))
        if words and (attribute.required or g.chance(0.5)):
            chosen[name] = g.pick(*words)
        elif attribute.type == kinds.FLOAT and g.chance(0.5):
            chosen[name] = g.pick(0.5, 0.25, 1.7)
        elif attribute.type == kinds.INT and g.chance(0.5):
            chosen[name] = g.integer(0, 1)
    return chosen


def typed(g: Graph, x: Tensor, op_type: str, index: int = 0) -> Tensor:
    """Return the tensor in a dtype that the operator takes, float32 most of the time."""
    schema = onnx.defs.get_schema(op_type, g.opset)
    types = allowed_types(schema, schema.inputs[index].type_str)
    if x.dtype in types and (g.kind not in TAME or g.chance(0.8)):
        return x
    types = [d for d in types if d not in UNKNOWN.get(op_type, ())]
    options = [d for d in types if g.kind in TAME or d in ("float32", "float64", "bool")]
    return g.cast(x, g.pick(*options)) if options else x


def in_domain(g: Graph, x: Tensor, op_type: str) -> Tensor:
    """Map the tensor into the operator's domain; now and then do not, which gives NaN."""
    if op_type in TURNS and g.kind in ("wide", "special") and x.dtype == "float32":
        return g.one("Clip", [x, g.constant(-1e4, x.dtype), g.constant(1e4, x.dtype)])
    domain = DOMAINS.get(op_type)
    if domain is None or not x.floating or g.chance(0.15):
        return x
    if domain == "unit":
        half = g.constant(0.5, x.dtype)
        if x.dtype != "float32":
            return x
        return g.one("Mul", [g.one("Tanh", [x]), half])
    if domain in ("positive", "above one"):
        half = g.constant(0.5 if domain == "positive" else 1.25, x.dtype)
        return g.one("Add", [g.one("Abs", [x]), half])
    return x


def _unary(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = in_domain(g, typed(g, x, op_type), op_type)
    if op_type == "Round" and x.floating:
        # Multiples of one half test the rounding of ties to even.
        x = g.one("Mul", [x, g.constant(0.5, x.dtype)])
    return g.node(op_type, [x], **attributes_of(g, op_type))


def narrow_shape(g: Graph, x: Tensor) -> list[int]:
    """Return a shape that broadcasts to the tensor's."""
    options: list[list[int]] = [list(x.shape), [], [1]]
    if x.rank == 4:
        n, c, h, w = x.shape
        options += [[c, 1, 1], [1, c, 1, 1], [1, 1, h, w], [w], [n, 1, h, 1], [n, c, 1, 1], [h, w]]
    elif x.rank:
        options += [[x.shape[-1]], [*x.shape[:-1], 1]]
    return list(g.pick(*options))


def _binary(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = in_domain(g, typed(g, x, op_type), op_type)
    shape = narrow_shape(g, x)
    second = g.operand(shape, x.dtype) if not g.chance(0.1) else x
    whole = np.dtype(x.dtype).kind in "iu"
    attributes = attributes_of(g, op_type)
    if op_type in ("Div", "Mod") and (whole or op_type == "Mod"):
        second = g.constant(g.rng.integers(1, 5, shape), x.dtype)
    if op_type == "Mod":
        attributes = {} if g.chance(0.5) else {"fmod": 1}
    if op_type == "Pow":
        kind = g.pick("square", "cube", "root", "any", "whole")
        exponent = {
            "square": 2.0, "cube": 3.0, "root": 0.5, "whole": g.rng.integers(0, 4, shape),
            "any": g.rng.uniform(-1, 2, shape) if x.floating else g.rng.integers(0, 4, shape),
        }[kind]  # fmt: skip
        if whole and kind == "root":
            exponent = 2
        second = g.constant(exponent, x.dtype)
    if op_type == "Sub" and x.floating and g.chance(0.2):
        # A sum minus its summand keeps the rounding error, and infinity minus infinity is NaN.
        x = g.one("Add", [x, second])
    operands = [x, second]
    if op_type not in ("Mod", "Pow", "BitShift", "PRelu") and g.chance(0.2) and not whole:
        operands.reverse()
    return g.node(op_type, operands, **attributes)


def _variadic(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = typed(g, x, op_type)
    more = [g.operand(narrow_shape(g, x), x.dtype) for _ in range(g.integer(0, 2))]
    return g.node(op_type, [x, *more])


# ---- Elementwise operators that have more -----------------------------------------------------


@rule("Clip")
def clip(g: Graph, x: Tensor) -> list[Tensor]:
    x = typed(g, x, "Clip")
    low, high = (0, 3) if np.dtype(x.dtype).kind == "u" else (-1, 2)
    limits = [g.constant(v, x.dtype) if g.chance(0.8) else None for v in (low, high)]
    return g.node("Clip", [x, *limits])


@rule("PRelu")
def prelu(g: Graph, x: Tensor) -> list[Tensor]:
    shape = g.pick([x.shape[1], *[1] * (x.rank - 2)], [1], [*x.shape]) if x.rank > 1 else [1]
    return g.node("PRelu", [x, g.weights(shape)])


@rule("Where")
def where(g: Graph, x: Tensor) -> list[Tensor]:
    """Use the tensor as the condition, or as one of the two choices."""
    threshold = g.constant(np.float32(0.1))
    if g.chance(0.3):
        condition = g.cast(g.input(narrow_shape(g, x), "bool"), "bool")
    else:
        condition = g.one(g.pick("Greater", "Less"), [x, threshold])
    other = g.operand(narrow_shape(g, x))
    pair = [x, other] if g.chance(0.5) else [other, x]
    return g.node("Where", [condition, *pair])


@rule("And", "Or", "Xor")
def logical(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    other = g.operand(narrow_shape(g, x))
    right = g.one("Less", [x, other])
    left = g.cast(x, "bool")
    if g.chance(0.3):
        right = g.input(narrow_shape(g, x), "bool")
    elif g.chance(0.4):
        # For numbers exactly one of the two holds, for NaN neither.
        left = g.one("GreaterOrEqual", [x, other])
    return g.node(op_type, [left, right])


@rule("Cast")
def cast(g: Graph, x: Tensor) -> list[Tensor]:
    dtypes = ("int32", "bool", "float16", "float64", "uint8", "int8", "int64", "float32")
    if g.kind not in TAME:
        dtypes = ("float64", "float32", "float16", "bool")
    dtype = g.pick(*dtypes)
    if g.chance(0.3):
        x = g.cast(x, "bool")
    if dtype.startswith("uint"):
        x = g.one("Abs", [x]) if x.dtype != "bool" else x
    to = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return g.node("Cast", [x], to=to)


@rule("CastLike", opsets=(15, NEWEST_OPSET))
def cast_like(g: Graph, x: Tensor) -> list[Tensor]:
    tame = ("int32", "float16", "float64", "bool")
    like = g.constant(np.ones(1), g.pick(*tame) if g.kind in TAME else "float64")
    return g.node("CastLike", [x, like])


@rule("BitShift", values=TAME)
def bit_shift(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.cast(x, g.pick("uint8", "uint32", "uint16", "uint64"))
    amounts = g.constant(g.rng.integers(0, 7, narrow_shape(g, x)), x.dtype)
    amounts = g.fed(amounts) if g.chance(0.3) else amounts
    return g.node("BitShift", [x, amounts], direction=g.pick("LEFT", "RIGHT"))


@rule("BitCast", opsets=(26, LAST_OPSET), values=TAME)
def bit_cast(g: Graph, x: Tensor) -> list[Tensor]:
    """Cast bits between integers of 8 and 32 bits, and fp32."""
    source, target = g.pick(("uint8", "int8"), ("int32", "uint32"), ("float32", "int32"))
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    return g.node("BitCast", [g.cast(x, source)], to=to)


@rule("SwiGLU", opsets=(28, LAST_OPSET))
def swiglu(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("SwiGLU", [x, g.operand(list(x.shape))], **attributes_of(g, "SwiGLU"))


# ---- Windows ----------------------------------------------------------------------------------


def window(g: Graph, x: Tensor, op_type: str) -> dict[str, Any]:
    """Return kernel, strides, padding and dilations of a pool over the spatial axes."""
    rank = x.rank - 2
    kernel = [min(g.integer(1, 3), extent) for extent in x.shape[2:]]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance(0.7):
        attributes["strides"] = g.integers(1, 3, rank)
    padding = g.pick("none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if padding == "pads":
        attributes["pads"] = [g.integer(0, k - 1) for k in kernel * 2]
    elif padding != "none":
        attributes["auto_pad"] = padding
    names = set(onnx.defs.get_schema(op_type, g.opset).attributes)
    if "ceil_mode" in names and g.chance(0.3):
        attributes["ceil_mode"] = 1
    if "dilations" in names and padding in ("none", "pads") and g.chance(0.3):
        attributes["dilations"] = g.integers(1, 2, rank)
    return attributes


def spatial(g: Graph, x: Tensor) -> Tensor:
    """Return the tensor with one to three spatial axes, most of the time two."""
    rank = g.pick(4, 4, 4, 4, 3, 5)
    return g.ranked(x, 4) if rank == 4 else g.ranked(x, rank)


@rule("MaxPool", "AveragePool", "LpPool")
def pool(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = spatial(g, x)
    attributes = window(g, x, op_type)
    if op_type == "LpPool":
        attributes["p"] = g.pick(2, 1, 3)
    if op_type == "AveragePool" and g.chance(0.5):
        attributes["count_include_pad"] = 1
    # ONNX Runtime's indices of NaN and infinities are unreliable.
    placed = op_type == "MaxPool" and g.kind in TAME and g.chance(0.3)
    if placed and g.chance(0.5):
        attributes["storage_order"] = 1
    return g.node(op_type, [x], 1 + placed, **attributes)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    attributes = {"p": g.pick(2, 1, 3)} if op_type == "GlobalLpPool" else {}
    return g.node(op_type, [spatial(g, x)], **attributes)


def groups_of(g: Graph, channels: int) -> int:
    divisors = [d for d in (1, 2, 3, 4, 5, channels) if channels % d == 0]
    return g.pick(*dict.fromkeys(divisors))


def conv_window(g: Graph, rank: int, kernel: Sequence[int]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if g.chance(0.5):
        attributes["strides"] = g.integers(1, 3, rank)
    padding = g.pick("same", "none", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if g.chance(0.3) and not padding.startswith("SAME"):
        # ONNX Runtime does not support dilation together with automatic padding.
        attributes["dilations"] = g.integers(1, 2, rank)
    if padding == "same":
        attributes["pads"] = [k // 2 for k in kernel] * 2
    elif padding == "pads":
        attributes["pads"] = g.integers(0, 2, 2 * rank)
    elif padding != "none":
        attributes["auto_pad"] = padding
    return attributes


@rule("Conv")
def conv(g: Graph, x: Tensor) -> list[Tensor]:
    x = spatial(g, x)
    group = groups_of(g, x.channels)
    outputs = group * g.pick(1, 2, 3, 5, 8) if group > 1 else g.pick(3, 16, 17, 1, 5, 30, 64)
    rank = x.rank - 2
    kernel = g.integers(1, 3, rank)
    fan_in = x.channels // group * int(np.prod(kernel))
    weights = g.weights((outputs, x.channels // group, *kernel), scale=fan_in**-0.5)
    inputs = [x, weights]
    if g.chance(0.5):
        inputs.append(g.weights((outputs,)))
    return g.node("Conv", inputs, group=group, **conv_window(g, rank, kernel))


@rule("ConvTranspose")
def conv_transpose(g: Graph, x: Tensor) -> list[Tensor]:
    x = spatial(g, x)
    group = groups_of(g, x.channels)
    outputs = g.pick(1, 3, 5, 16)
    rank = x.rank - 2
    kernel = g.integers(1, 3, rank)
    weights = g.weights((x.channels, outputs, *kernel), scale=x.channels**-0.5)
    inputs = [x, weights]
    if g.chance(0.5):
        inputs.append(g.weights((outputs * group,)))
    attributes = conv_window(g, rank, kernel)
    strides = attributes.get("strides", [1] * rank)
    if "auto_pad" not in attributes and g.chance(0.3):
        attributes["output_padding"] = [g.integer(0, s - 1) for s in strides]
    return g.node("ConvTranspose", inputs, group=group, **attributes)


@rule("LRN")
def lrn(g: Graph, x: Tensor) -> list[Tensor]:
    if g.kind == "wide":
        raise InvalidError("ONNX Runtime's running sum keeps the errors of large neighbours")
    # Even sizes: ONNX Runtime refuses them, and ONNX's evaluator takes the batch for the channels.
    attributes = {"size": g.pick(3, 5, 1), "alpha": g.pick(1e-4, 0.5), "beta": g.pick(0.75, 0.6)}
    return g.node("LRN", [g.ranked(x, 4)], bias=g.pick(1.0, 1.5), **attributes)


# ---- Sums over axes, and normalizations -------------------------------------------------------

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


@rule(*REDUCTIONS)
def reduction(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    if op_type == "ReduceProd" and g.kind == "wide":
        raise InvalidError("products of some of the numbers leave those of fp32, others do not")
    x = g.ranked(x, g.pick(4, 4, 4, 3, 2, 5))
    if op_type in ("ReduceSum", "ReduceMax", "ReduceMin") and g.kind in TAME:
        x = g.cast(x, g.pick("float32", "float32", "float32", "int32", "int64"))
    if op_type == "ReduceLogSum" and not g.chance(0.1):
        x = g.one("Abs", [x])
    axes = None if g.chance(0.1) else g.axes(x)
    return g.with_axes(op_type, x, axes, keepdims=g.integer(0, 1))


@rule("ArgMax", "ArgMin")
def arg(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    if g.kind in TAME:
        x = g.cast(x, g.pick("float32", "float32", "float32", "int32", "uint8"))
    return g.node(
        op_type, [x], axis=g.axis(x), keepdims=g.integer(0, 1), select_last_index=g.integer(0, 1)
    )


@rule("Softmax", "LogSoftmax")
def softmax(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    if op_type == "Softmax" and g.kind in TAME and g.chance(0.4):
        return [attended(g, g.ranked(x, g.pick(4, 3, 2)))]
    return g.node(op_type, [x], axis=g.axis(x))


def attended(g: Graph, x: Tensor) -> Tensor:
    """Add attention as exporters write it, with the tensor as its queries or its values."""
    *lead, rows, depth = x.shape
    keys, columns, scale = g.pick(5, 1, 16, 33), g.pick(5, 16, 1, 31), max(depth, 1) ** -0.5
    shared = [1] * len(lead) if g.chance(0.2) else lead
    if g.chance(0.2):
        # A tensor that is read twice is an output of the primary function.
        values = x
        scores = g.one("MatMul", [g.operand([*lead, 7, 9]), g.operand([*shared, 9, rows])])
    else:
        values = g.operand([*shared, keys, columns])
        turned = g.operand([*shared, keys, depth])
        order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        scores = g.one("MatMul", [x, g.one("Transpose", [turned], perm=order)])
    if g.chance(0.7):
        factor = g.constant(np.float32(scale if g.chance(0.7) else -1.5))
        scores = g.one(g.pick("Mul", "Div"), [scores, factor])
    for _ in range(g.pick(0, 1, 2)):
        shape = [extent if g.chance(0.6) else 1 for extent in scores.shape]
        hidden = np.where(g.rng.random(shape) < 0.2, -np.inf, 0.5)
        mask = g.constant(hidden, "float32") if g.chance(0.5) else g.operand(shape)
        scores = g.one("Add", [scores, mask] if g.chance(0.5) else [mask, scores])
    weights = g.one("Softmax", [scores], axis=g.pick(-1, scores.rank - 1))
    return g.one("MatMul", [weights, values])


# ONNX Runtime's choice of the largest in a row with NaN depends on its vector width.
@rule("Hardmax", values=("whole", "normal", "masks", "wide"))
def hardmax(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("Hardmax", [x], axis=g.axis(x))


@rule("CumSum")
def cumsum(g: Graph, x: Tensor, op_type: str = "CumSum") -> list[Tensor]:
    if g.kind in TAME:
        x = g.cast(x, g.pick("float32", "float32", "float32", "int32", "int64"))
    axis = g.constant(np.array(g.axis(x), g.pick("int64", "int32")))
    return g.node(op_type, [x, axis], exclusive=g.integer(0, 1), reverse=g.integer(0, 1))


@rule("CumProd", opsets=(26, LAST_OPSET), values=TAME)
def cumprod(g: Graph, x: Tensor) -> list[Tensor]:
    # In another order a zero comes before or after a factor that is too large.
    return cumsum(g, g.one("Tanh", [x]), "CumProd")


@rule("BatchNormalization")
def batch_norm(g: Graph, x: Tensor) -> list[Tensor]:
    c = [x.channels]
    inputs = [x, g.weights(c), g.weights(c), g.weights(c), g.positive(c)]
    return g.node("BatchNormalization", inputs, epsilon=g.pick(1e-5, 0.01))


@rule("InstanceNormalization")
def instance_norm(g: Graph, x: Tensor) -> list[Tensor]:
    x = spatial(g, x)
    inputs = [x, g.positive([x.channels]), g.weights([x.channels])]
    return g.node("InstanceNormalization", inputs, epsilon=g.pick(1e-5, 0.01))


@rule("GroupNormalization", opsets=(18, NEWEST_OPSET))
def group_norm(g: Graph, x: Tensor) -> list[Tensor]:
    x = spatial(g, x)
    groups = groups_of(g, x.channels)
    count = [x.channels if g.opset >= 21 else groups]
    inputs = [x, g.positive(count), g.weights(count)]
    return g.node("GroupNormalization", inputs, num_groups=groups, epsilon=g.pick(1e-5, 0.01))


@rule("LayerNormalization", opsets=(17, NEWEST_OPSET))
def layer_norm(g: Graph, x: Tensor) -> list[Tensor]:
    axis = g.axis(x)
    inner = x.shape[axis:]
    inputs = [x, g.positive(inner)]
    if g.chance(0.5):
        inputs.append(g.weights(inner))
    return g.node("LayerNormalization", inputs, axis=axis, epsilon=g.pick(1e-5, 0.01))


@rule("RMSNormalization", opsets=(23, NEWEST_OPSET))
def rms_norm(g: Graph, x: Tensor) -> list[Tensor]:
    axis = g.axis(x)
    return g.node("RMSNormalization", [x, g.positive(x.shape[axis:])], axis=axis, epsilon=1e-5)


@rule("LpNormalization")
def lp_norm(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("LpNormalization", [x], axis=g.axis(x), p=g.integer(1, 2))


@rule("MeanVarianceNormalization")
def mvn(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.ranked(x, 4)
    # Without axes, ONNX's shape inference fails.
    axes = g.pick([0, 2, 3], [2, 3], [1], [0, 1, 2, 3])
    if all(x.shape[axis] == 1 for axis in axes):
        # ONNX's definition takes the root of the rounding error of x^2 - x^2: any number, or NaN.
        raise InvalidError("one element has no deviation")
    return g.node("MeanVarianceNormalization", [x], axes=axes)


# ---- Products ---------------------------------------------------------------------------------


def int4_weights(g: Graph, depth: int) -> Tensor:
    """Return 4-bit weights of a product, with a scale per column, or per block."""
    columns = g.pick(5, 1, 16, 33)
    blocks = 2 if g.opset >= 21 and g.chance(0.5) else 0
    scaled = (blocks, columns) if blocks else (columns,)
    numbers = g.constant(g.rng.integers(-8, 8, (depth, columns)), "int8")
    scales = g.constant(2.0 ** g.rng.integers(-6, -2, scaled), "float32")
    zeros = g.constant(g.rng.integers(-2, 3, scaled), "int8")
    more = {"axis": 0, "block_size": depth // blocks} if blocks else {"axis": 1}
    return g.one("DequantizeLinear", [numbers, scales, zeros], **more)


@rule("MatMul")
def matmul(g: Graph, x: Tensor) -> list[Tensor]:
    """Multiply the tensor by weights, by another tensor, or by itself."""
    rank = g.pick(4, 4, 2, 3)
    x = g.ranked(x, rank)
    kind = g.pick("weights", "computed", "itself", "left", "int4" if g.opset >= 13 else "left")
    if kind == "int4":
        return g.node("MatMul", [g.exactly(x, (*x.shape[:-1], 32)), int4_weights(g, 32)])
    if kind == "itself":
        order = [*range(rank - 2), rank - 1, rank - 2]
        return g.node("MatMul", [x, g.one("Transpose", [x], perm=order)])
    columns = g.pick(5, 1, 16, 33)
    if kind == "left":
        left = g.weights([columns, x.shape[-2]], scale=x.shape[-2] ** -0.5)
        return g.node("MatMul", [left, x])
    if kind == "weights":
        right = g.weights([x.shape[-1], columns], scale=x.shape[-1] ** -0.5)
    else:
        right = g.input([*x.shape[:-2], x.shape[-1], columns])
    return g.node("MatMul", [x, right])


@rule("Gemm")
def gemm(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.one("Flatten", [x], axis=g.integer(1, min(2, x.rank - 1))) if x.rank > 1 else (
        g.reshape(x, [1, -1])
    )  # fmt: skip
    turned_a, turned_b = g.integer(0, 1), g.integer(0, 1)
    rows, depth = reversed(x.shape) if turned_a else x.shape
    columns = g.pick(5, 16, 1, 17)
    shape = [columns, depth] if turned_b else [depth, columns]
    inputs = [x, g.weights(shape, scale=depth**-0.5)]
    if g.chance(0.6):
        inputs.append(g.weights(g.pick([columns], [rows, columns], [rows, 1], [], [1, columns])))
    attributes: dict[str, Any] = {"transA": turned_a, "transB": turned_b}
    if g.chance(0.4):
        attributes |= {"alpha": g.pick(0.5, 1.7), "beta": g.pick(0.5, 0.0, 1.3)}
    return g.node("Gemm", inputs, **attributes)


@rule("Einsum")
def einsum(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.ranked(x, 4)
    n, c, h, w = x.shape
    text, shape = g.pick(
        ("nchw->nhwc", None), ("nchw,kc->nkhw", [5, c]), ("nchw,wk->nchk", [w, 3]),
        ("nchw,nchw->nc", [n, c, h, w]), ("nchw,nckw->nchk", [n, c, 3, w]), ("nchw->nc", None),
        ("nchw,c->nhw", [c]), ("...hw,...kw->...hk", [n, c, 2, w]),
    )  # fmt: skip
    inputs = [x] if shape is None else [x, g.operand(shape)]
    return g.node("Einsum", inputs, equation=text)


# ---- Moves of elements ------------------------------------------------------------------------

#: Dtypes for operators that only move elements; float32 is the most likely.
ANY = ("float32", "float32", "float32", "float32", "int32", "bool", "uint8", "int64", "float16")


def movable(g: Graph, x: Tensor) -> Tensor:
    """Return the tensor in any dtype, float32 most of the time."""
    if g.kind not in TAME:
        return x
    return g.cast(x, g.pick(*ANY))


@rule("Slice")
def slice_(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    axes = g.axes(x)
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = x.shape[axis]
        start = g.integer(0, extent - 1)
        step = g.pick(1, 1, 1, 2, 3)
        length = g.integer(1, extent - start)
        end = g.pick(start + length, start + length, start + length - extent or 2**31, 2**63 - 1)
        if end < 0 and end + extent <= start:
            end = 2**63 - 1
        if g.chance(0.2):
            # From the end to the beginning.
            start, end, step = extent - 1 - start, -(2**31), -step
        starts.append(start - extent if step > 0 and g.chance(0.2) else start)
        ends.append(end)
        steps.append(step)
    constants = [g.constant(np.array(v, np.int64)) for v in (starts, ends, axes, steps)]
    return g.node("Slice", [x, *constants])


@rule("Split")
def split(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    axis = g.pick(1, 0, -1, 2) if x.rank == 4 else g.axis(x)
    extent = x.shape[axis]
    if extent == 1:
        axis = int(np.argmax(x.shape))
        extent = x.shape[axis]
    cuts = sorted({g.integer(1, extent - 1) for _ in range(g.integer(1, 2))}) if extent > 1 else []
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, extent], strict=True)]
    constant = g.constant(np.array(sizes, np.int64))
    results = g.node("Split", [x, constant], len(sizes), axis=axis)
    first = g.integer(0, len(results) - 1)
    return [results[first], *results[:first], *results[first + 1 :]]


#: Indices beyond any tensor, some of which wrap around in 32 bits or when an extent is added.
BEYOND = (50, -50, 2**31, -(2**31), 2**40, -(2**40), 2**63 - 1, -(2**63))


def indices_of(g: Graph, places: Any, dtype: str = "int64") -> Tensor:
    """Return indices as a constant, or as an input with some out of range."""
    places = np.asarray(places, np.int64)
    if not g.chance(0.4):
        return g.constant(places, dtype)
    # The reference limits indices by operators of this operator set.
    if g.opset >= 13 and g.chance(0.5):
        limits = np.iinfo(dtype)
        beyond = g.rng.choice(
            [value for value in BEYOND if limits.min <= value <= limits.max], places.shape
        )
        places = np.where(g.rng.random(places.shape) < 0.3, beyond, places)
    return g.fed(g.constant(places, dtype))


@rule("Gather")
def gather(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    axis = g.axis(x)
    extent = x.shape[axis]
    kind = g.pick("range", "any", "scalar", "two")
    start = g.integer(0, extent - 1)
    places = {
        "range": np.arange(start, extent), "any": g.rng.integers(-extent, extent, 5),
        "scalar": np.array(start), "two": g.rng.integers(0, extent, (2, 3)),
    }[kind]  # fmt: skip
    dtype = g.pick("int64", "int32")
    indices = g.constant(places, dtype) if kind == "range" else indices_of(g, places, dtype)
    return g.node("Gather", [x, indices], axis=axis)


@rule("GatherElements")
def gather_elements(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    axis = g.axis(x)
    extent = x.shape[axis]
    shape = list(x.shape)
    shape[axis] = g.integer(1, extent)
    places = g.rng.integers(-extent, extent, shape)
    return g.node("GatherElements", [x, indices_of(g, places)], axis=axis)


@rule("GatherND")
def gather_nd(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    batch = g.integer(0, 1) if x.rank > 1 else 0
    depth = g.integer(1, x.rank - batch)
    outer = list(x.shape[:batch])
    parts = [g.rng.integers(-e, e, (*outer, 3)) for e in x.shape[batch : batch + depth]]
    indices = indices_of(g, np.stack(parts, -1))
    return g.node("GatherND", [x, indices], batch_dims=batch)


def scatter_elements(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = movable(g, x)
    axis = g.axis(x)
    extent = x.shape[axis]
    count = g.integer(1, extent)
    shape = list(x.shape)
    shape[axis] = count
    order = np.argsort(g.rng.random(x.shape), axis=axis)
    places = np.take(order, range(count), axis=axis)
    places = np.where(g.rng.random(shape) < 0.3, places - extent, places)
    if op_type == "Scatter":
        places %= extent
    attributes: dict[str, Any] = {"axis": axis}
    reductions = {16: ["add", "mul"], 18: ["max", "min"]}
    options = [r for since, names in reductions.items() if g.opset >= since for r in names]
    if options and x.dtype != "bool" and g.chance(0.3):
        attributes["reduction"] = g.pick(*options)
    updates = g.operand(shape, x.dtype)
    # Several out-of-range indices write to one element, which reductions do in any order.
    reduced = "reduction" in attributes
    indices = indices_of(g, places) if reduced else g.constant(places, "int64")
    return g.node(op_type, [x, indices, updates], **attributes)


rule("ScatterElements")(lambda g, x: scatter_elements(g, x, "ScatterElements"))
rule("Scatter", opsets=(9, 10))(lambda g, x: scatter_elements(g, x, "Scatter"))


@rule("ScatterND")
def scatter_nd(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    depth = g.integer(1, min(2, x.rank))
    extents = x.shape[:depth]
    count = min(3, int(np.prod(extents)))
    flat = g.rng.permutation(int(np.prod(extents)))[:count]
    indices = np.stack(np.unravel_index(flat, extents), -1)
    updates = g.operand([count, *x.shape[depth:]], x.dtype)
    return g.node("ScatterND", [x, g.constant(indices, "int64"), updates])


@rule("Pad")
def pad(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    mode = g.pick("constant", "constant", "edge", "reflect", *(["wrap"] if g.opset >= 19 else []))
    if x.dtype == "bool":
        x = g.cast(x, "float32")
    pads = []
    for i in range(2 * x.rank):
        extent = x.shape[i % x.rank]
        most = 3 if mode == "constant" else min(2, extent - 1)
        pads.append(g.integer(0, most) if g.chance(0.5) else 0)
    inputs = [x, g.constant(np.array(pads, np.int64))]
    if mode == "constant" and g.chance(0.5):
        value = g.constant(g.pick(1, 3), x.dtype)
        inputs.append(g.fed(value) if g.chance(0.4) else value)
    return g.node("Pad", inputs, mode=mode)


@rule("Concat")
def concat(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    axis = g.axis(x)
    parts = [x]
    for _ in range(g.integer(1, 2)):
        shape = list(x.shape)
        shape[axis] = g.pick(1, 3, 2, 16)
        parts.append(x if g.chance(0.2) else g.operand(shape, x.dtype))
    if g.chance(0.5):
        parts.reverse()
    return g.node("Concat", parts, axis=axis)


@rule("Transpose")
def transpose(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    if g.chance(0.2):
        return g.node("Transpose", [x])
    perms = {4: ([0, 2, 3, 1], [0, 1, 3, 2], [1, 0, 2, 3], [0, 3, 1, 2], [3, 2, 1, 0])}
    options = perms.get(x.rank, (list(range(x.rank))[::-1],))
    return g.node("Transpose", [x], perm=g.pick(*options))


@rule("Reshape")
def reshape(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    options: list[list[int]] = [[-1], [1, -1], [x.shape[0], -1]]
    if x.rank == 4:
        n, c, h, w = x.shape
        options += [[n, c, h * w], [n, c * h, w], [0, 0, -1], [n, 1, c, h, w], [n, h, w, c]]
        options += [[n, 2, c // 2, h, w]] if c % 2 == 0 else []
        options += [[n, -1, 4]] if c * h * w % 4 == 0 else []
    shape = g.constant(np.array(g.pick(*options), np.int64))
    return g.node("Reshape", [x, shape])


@rule("Flatten")
def flatten(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("Flatten", [movable(g, x)], axis=g.integer(-x.rank, x.rank))


@rule("Squeeze")
def squeeze(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    ones = [a for a, extent in enumerate(x.shape) if extent == 1]
    if not ones:
        (x,) = g.with_axes("Unsqueeze", x, [0])
        ones = [0]
    return g.with_axes("Squeeze", x, g.pick([ones[0]], [ones[-1] - x.rank], None))


@rule("Unsqueeze")
def unsqueeze(g: Graph, x: Tensor) -> list[Tensor]:
    axes = g.pick([0], [-1], [0, -1], [min(2, x.rank)])
    return g.with_axes("Unsqueeze", movable(g, x), axes)


@rule("Tile")
def tile(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    repeats = [g.pick(1, 2, 1, 3) for _ in range(x.rank)]
    return g.node("Tile", [x, g.constant(np.array(repeats, np.int64))])


@rule("Expand")
def expand(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    if g.chance(0.5) and x.rank == 4:
        (x,) = g.with_axes("ReduceMax", g.cast(x, "float32"), g.axes(x), keepdims=1)
    wanted = [g.pick(2, 3, 1) if extent == 1 else extent for extent in x.shape]
    if g.chance(0.3):
        wanted = [2, *wanted]
    return g.node("Expand", [x, g.constant(np.array(wanted, np.int64))])


@rule("DepthToSpace", multiple=4)
def depth_to_space(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("DepthToSpace", [movable(g, x)], blocksize=2, mode=g.pick("DCR", "CRD"))


@rule("SpaceToDepth", even=True)
def space_to_depth(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("SpaceToDepth", [movable(g, x)], blocksize=2)


@rule("Trilu", opsets=(14, NEWEST_OPSET))
def trilu(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x)
    inputs = [x, g.constant(np.array(g.integer(-2, 2), np.int64))] if g.chance(0.6) else [x]
    return g.node("Trilu", inputs, upper=g.integer(0, 1))


@rule("CenterCropPad", opsets=(18, NEWEST_OPSET))
def center_crop_pad(g: Graph, x: Tensor) -> list[Tensor]:
    axes = sorted({a % x.rank for a in g.axes(x)})
    sizes = [max(1, x.shape[a] + g.integer(-2, 3)) for a in axes]
    return g.node("CenterCropPad", [x, g.constant(np.array(sizes, np.int64))], axes=axes)


@rule("OneHot", values=TAME)
def one_hot(g: Graph, x: Tensor) -> list[Tensor]:
    indices = g.cast(x, g.pick("int64", "int32"))
    pair = g.constant(np.array([2, 5]), g.pick("float32", "int32"))
    depth = g.constant(np.array(6))
    return g.node("OneHot", [indices, depth, pair], axis=g.pick(-1, 0, 1))


@rule("TopK")
def top_k(g: Graph, x: Tensor) -> list[Tensor]:
    axis = g.axis(x)
    k = g.constant(np.array([g.integer(1, x.shape[axis])], np.int64))
    results = g.node("TopK", [x, k], 2, axis=axis, largest=g.integer(0, 1))
    return results if g.chance(0.6) else results[::-1]


@rule("LSTM", "GRU", "RNN", values=TAME)
def recurrent(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    """Add a layer of any direction whose state converges, so that rounding errors do not grow."""
    x = g.ranked(x, 3)
    x = g.one("Transpose", [x], perm=g.pick([2, 0, 1], [0, 1, 2], [1, 0, 2]))
    (steps, entries, inputs), units = x.shape, g.pick(7, 16, 1, 31)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    direction = g.pick("forward", "bidirectional", "reverse")
    directions = 1 + (direction == "bidirectional")

    def weights(*shape: int, scale: float = 0.5) -> Tensor:
        found = g.constant(g.rng.standard_normal(shape) * scale, "float32")
        return g.fed(found) if g.chance(0.2) else found

    operands: list[Tensor | None] = [
        x,
        weights(directions, gates * units, inputs, scale=0.3 * inputs**-0.5),
        weights(directions, gates * units, units, scale=0.3 * units**-0.5),
        weights(directions, 2 * gates * units) if g.chance(0.5) else None,
    ]
    lengths = g.constant(g.rng.integers(1, steps + 1, entries), "int32")
    operands.append((g.fed(lengths) if g.chance(0.5) else lengths) if g.chance(0.3) else None)
    operands += [
        weights(directions, entries, units) if g.chance(0.3) else None
        for _ in range(2 if op_type == "LSTM" else 1)
    ]
    attributes: dict[str, Any] = {}
    if op_type == "LSTM":
        operands.append(weights(directions, 3 * units) if g.chance(0.3) else None)
        attributes["input_forget"] = g.integer(0, 1)
    elif op_type == "GRU":
        attributes["linear_before_reset"] = g.integer(0, 1)
    results = g.node(
        op_type, operands, 3 if op_type == "LSTM" else 2, hidden_size=units, direction=direction,
        **attributes,
    )  # fmt: skip
    return results if g.chance(0.7) else results[::-1]


# ---- Sampling of pictures ---------------------------------------------------------------------


#: Kinds of values except wide ones: a small fp32 weight times a large value is inexact.
BESIDE_EACH_OTHER = tuple(kind for kind in VALUES if kind != "wide")


@rule("Resize", values=BESIDE_EACH_OTHER)
def resize(g: Graph, x: Tensor) -> list[Tensor]:
    mode = g.pick("nearest", "linear", "cubic")
    x = g.ranked(x, 4)
    coordinates = [
        "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
        *(["half_pixel_symmetric"] if g.opset >= 19 else []),
    ]  # fmt: skip
    attributes: dict[str, Any] = {
        "mode": mode, "coordinate_transformation_mode": g.pick(*coordinates)
    }  # fmt: skip
    if mode == "nearest":
        attributes["nearest_mode"] = g.pick(
            "floor", "round_prefer_floor", "round_prefer_ceil", "ceil"
        )
    if mode == "cubic" and g.chance(0.3):
        attributes["exclude_outside"] = 1
    if mode != "nearest" and g.opset >= 18 and g.chance(0.2):
        attributes["antialias"] = 1
    factors = [g.pick(2.0, 0.5, 1.0, 1.5, 3.0, 0.6, 2.3) for _ in range(2)]
    if any(int(e * f) < 1 for e, f in zip(x.shape[2:], factors, strict=True)):
        factors = [2.0, 2.0]
    if g.chance(0.7):
        scales = g.constant(np.array([1, 1, *factors], np.float32))
        return g.node("Resize", [x, None, scales], **attributes)
    sizes = [*x.shape[:2], *g.integers(1, 12, 2)]
    return g.node("Resize", [x, None, None, g.constant(np.array(sizes, np.int64))], **attributes)


@rule("Upsample", opsets=(9, 9), values=BESIDE_EACH_OTHER)
def upsample(g: Graph, x: Tensor) -> list[Tensor]:
    factors = [1, 1, g.pick(2.0, 3.0, 1.5), g.pick(2.0, 1.0, 2.5)]
    scales = g.constant(np.array(factors, np.float32))
    return g.node("Upsample", [g.ranked(x, 4), scales], mode=g.pick("nearest", "linear"))


@rule("GridSample", opsets=(16, NEWEST_OPSET), values=BESIDE_EACH_OTHER)
def grid_sample(g: Graph, x: Tensor) -> list[Tensor]:
    axes = g.pick(2, 2, 3) if g.opset >= 20 else 2
    x = g.ranked(x, 4) if axes == 2 else g.exactly(x, (x.shape[0], 3, *g.integers(1, 4, 3)))
    places = g.rng.uniform(-1.3, 1.3, (x.shape[0], *g.integers(1, 4, axes), axes))
    grid = g.constant(places, "float32")
    if g.chance(0.5):
        grid = g.fed(grid)
    new = g.opset >= 20
    modes = ("linear", "nearest", "cubic") if new else ("bilinear", "nearest", "bicubic")
    return g.node(
        "GridSample", [x, grid], mode=g.pick(*modes), align_corners=g.integer(0, 1),
        padding_mode=g.pick("zeros", "border", "reflection"),
    )  # fmt: skip


@rule("DeformConv", opsets=(19, NEWEST_OPSET), values=BESIDE_EACH_OTHER)
def deform_conv(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.ranked(x, 4)
    group, groups = groups_of(g, x.channels), groups_of(g, x.channels)
    outputs, kernel = group * g.pick(1, 2, 5, 16), g.integers(1, 3, 2)
    strides, dilations, pads = g.integers(1, 2, 2), g.integers(1, 2, 2), g.integers(0, 2, 4)
    extents = [
        (size + before + after - (k - 1) * dilation - 1) // stride + 1
        for size, before, after, k, dilation, stride in zip(
            x.shape[2:], pads[:2], pads[2:], kernel, dilations, strides, strict=True
        )
    ]
    if min(extents) < 1:
        raise InvalidError("the kernel is larger than the picture")
    taps, inputs = groups * kernel[0] * kernel[1], x.channels // group
    # Rounded to 16 bits: the result changes as fast with an offset as the picture does.
    places = g.rng.uniform(-1.5, 1.5, (x.shape[0], 2 * taps, *extents)).astype(np.float16)
    offsets = g.constant(places, "float32")
    operands = [x, g.weights((outputs, inputs, *kernel), scale=(inputs * taps) ** -0.5)]
    operands += [g.fed(offsets) if g.chance(0.5) else offsets]
    bias = g.weights((outputs,)) if g.chance(0.5) else None
    mask = g.weights((x.shape[0], taps, *extents)) if g.chance(0.5) else None
    return g.node(
        "DeformConv", [*operands, bias, mask], group=group, offset_group=groups, pads=pads,
        strides=strides, dilations=dilations,
    )  # fmt: skip


@rule("AffineGrid", opsets=(20, NEWEST_OPSET))
def affine_grid(g: Graph, x: Tensor) -> list[Tensor]:
    axes = g.pick(2, 2, 3)
    theta = g.exactly(x, (2, axes, axes + 1))
    size = g.constant(np.array([2, 3, *g.integers(1, 6, axes)], np.int64))
    return g.node("AffineGrid", [theta, size], align_corners=g.integer(0, 1))


@rule("RoiAlign", opsets=(16, NEWEST_OPSET), values=BESIDE_EACH_OTHER)
def roi_align(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.ranked(x, 4)
    begin = g.rng.uniform(-1, 4, (3, 2))
    regions = np.concatenate([begin, begin + g.rng.uniform(0.5, 5, (3, 2))], 1)
    rois = g.constant(regions, "float32")
    batches = indices_of(g, g.rng.integers(0, x.shape[0], 3))
    height, width = g.integers(1, 4, 2)
    return g.node(
        "RoiAlign", [x, rois, batches], output_height=height, output_width=width,
        sampling_ratio=g.integer(0, 3), spatial_scale=g.pick(1.0, 0.5), mode=g.pick("avg", "max"),
        coordinate_transformation_mode=g.pick("half_pixel", "output_half_pixel"),
    )  # fmt: skip


# ---- Attention, losses, transforms, recurrences -------------------------------------------------


def tokens(g: Graph, x: Tensor, heads: int, length: int, depth: int, flat: bool) -> Tensor:
    """Return token vectors of the tensor's elements; heads are an axis or, if ``flat``, columns."""
    batch = 2
    shape = (batch, length, heads * depth) if flat else (batch, heads, length, depth)
    return g.exactly(x, shape)


@rule("Attention", opsets=(23, NEWEST_OPSET), values=TAME)
def attention(g: Graph, x: Tensor) -> list[Tensor]:
    """Generate all features: shared heads, masks, caches, padded lengths, caps."""
    flat, shared, group = g.chance(0.5), g.pick(1, 2, 3), g.pick(1, 2, 3)
    # 40 rows are enough work for a GPU: the products become one kernel.
    rows, own, depth, width = g.pick(1, 3, 7, 40), g.pick(2, 7, 37), g.pick(3, 8), g.pick(2, 4, 9)
    query = tokens(g, x, shared * group, rows, depth, flat)
    shapes = [(2, own, shared * n) if flat else (2, shared, own, n) for n in (depth, width)]
    key, value = (g.operand(shape) for shape in shapes)
    attributes: dict[str, Any] = {}
    if flat:
        attributes |= {"q_num_heads": shared * group, "kv_num_heads": shared}
    cached, padded = g.chance(0.3), g.opset >= 24 and g.chance(0.3)
    past = g.pick(1, 4)
    columns = own + past if cached else own
    inputs: list[Tensor | None] = [query, key, value, None]
    if g.chance(0.6):
        shape = g.pick((rows, columns), (2, 1, rows, columns), (shared * group, rows, columns))
        mask = g.rng.random(shape) < 0.7
        mask[..., 0] = True
        kind = g.pick("bool", "float32")
        found = g.constant(mask if kind == "bool" else np.where(mask, 0.5, -np.inf), kind)
        inputs[3] = g.fed(found) if g.chance(0.5) else found
    if cached:
        inputs += [g.operand((2, shared, past, n)) for n in (depth, width)]
    elif padded:
        # At least as many as queries: ONNX Runtime does not support rows without keys.
        lengths = g.constant(g.rng.integers(min(rows, own), own + 1, 2), "int64")
        inputs += [None, None, g.fed(lengths) if g.chance(0.5) else lengths]
    if g.chance(0.3) and (cached or rows <= own) and not padded:
        attributes["is_causal"] = 1
    if g.chance(0.3):
        attributes["scale"] = g.pick(0.5, 0.25)
    if g.chance(0.3):
        attributes["softcap"] = g.pick(2.0, 10.0)
    return g.node("Attention", inputs, 3 if cached else 1, **attributes)


@rule("RotaryEmbedding", opsets=(23, NEWEST_OPSET))
def rotary_embedding(g: Graph, x: Tensor) -> list[Tensor]:
    flat, heads, length = g.chance(0.5), g.pick(1, 3), g.pick(1, 5)
    depth = g.pick(4, 8)
    turned = g.pick(0, 4)
    half = (turned or depth) // 2
    x = tokens(g, x, heads, length, depth, flat)
    attributes: dict[str, Any] = {"interleaved": g.integer(0, 1), "rotary_embedding_dim": turned}
    if flat or turned:
        attributes["num_heads"] = heads
    if g.chance(0.5):
        angles = [g.weights((9, half)) for _ in range(2)]
        places = g.constant(g.rng.integers(0, 9, (2, length)), "int64")
        inputs = [x, *angles, g.fed(places) if g.chance(0.5) else places]
    else:
        inputs = [x, *(g.weights((2, length, half)) for _ in range(2))]
    return g.node("RotaryEmbedding", inputs, **attributes)


@rule("LinearAttention", opsets=(27, LAST_OPSET), values=("normal",))
def linear_attention(g: Graph, x: Tensor) -> list[Tensor]:
    shared, group, length = g.pick(1, 2), g.pick(1, 2), g.pick(1, 3)
    depth, width, kind = (
        g.pick(2, 4),
        g.pick(3, 4),
        g.pick("linear", "gated", "delta", "gated_delta"),
    )
    query = g.exactly(x, (2, length, shared * group * depth))
    operands = [g.weights((2, length, shared * n), scale=0.5) for n in (depth, width)]
    past = g.weights((2, shared, depth, width)) if g.chance(0.5) else None
    decay = (
        g.weights((2, length, shared * g.pick(1, depth)), scale=0.3) if "gated" in kind else None
    )
    beta = g.weights((2, length, g.pick(1, shared)), scale=0.5) if "delta" in kind else None
    return g.node(
        "LinearAttention", [query, *operands, past, decay, beta], 2, q_num_heads=shared * group,
        kv_num_heads=shared, update_rule=kind,
    )  # fmt: skip


@rule("CausalConvWithState", opsets=(27, LAST_OPSET), values=TAME)
def causal_convolution(g: Graph, x: Tensor) -> list[Tensor]:
    x = g.ranked(x, 3)
    taps = g.integer(2, 4)
    inputs = [x, g.weights((x.channels, 1, taps))]
    inputs += [g.weights((x.channels,)) if g.chance(0.5) else None]
    inputs += [g.operand((x.shape[0], x.channels, taps - 1)) if g.chance(0.5) else None]
    return g.node("CausalConvWithState", inputs, 2, activation=g.pick("none", "silu"))


@rule("TensorScatter", opsets=(24, NEWEST_OPSET))
def tensor_scatter(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, g.ranked(x, g.pick(3, 4)))
    axis, mode = g.integer(1, x.rank - 1), g.pick("linear", "circular")
    shape = list(x.shape)
    shape[axis] = g.integer(1, x.shape[axis])
    most = x.shape[axis] - (shape[axis] if mode == "linear" else 1)
    begins = g.constant(g.rng.integers(0, most + 1, x.shape[0]), "int64")
    inputs = [x, g.operand(shape, x.dtype)]
    if g.chance(0.7):
        inputs.append(g.fed(begins) if g.chance(0.5) else begins)
    return g.node("TensorScatter", inputs, axis=axis - g.pick(0, x.rank), mode=mode)


@rule("ReverseSequence")
def reverse_sequence(g: Graph, x: Tensor) -> list[Tensor]:
    x = movable(g, x if x.rank > 1 else g.ranked(x, 2))
    batch = g.integer(0, 1)
    lengths = g.constant(g.rng.integers(1, x.shape[1 - batch] + 1, x.shape[batch]), "int64")
    inputs = [x, g.fed(lengths) if g.chance(0.5) else lengths]
    return g.node("ReverseSequence", inputs, batch_axis=batch, time_axis=1 - batch)


@rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", values=TAME)
def loss(g: Graph, x: Tensor, op_type: str) -> list[Tensor]:
    x = g.ranked(x, g.pick(2, 3, 4))
    labels = g.rng.integers(0, x.channels, (x.shape[0], *x.shape[2:]))
    attributes: dict[str, Any] = {"reduction": g.pick("mean", "sum", "none")}
    if g.chance(0.5):
        attributes["ignore_index"] = g.pick(0, -1)
        labels[g.rng.random(labels.shape) < 0.2] = attributes["ignore_index"]
        labels[0] = x.channels - 1
    places = g.constant(labels, g.pick("int64", "int32"))
    inputs = [x, g.fed(places) if g.chance(0.5) else places]
    if g.chance(0.5):
        inputs.append(g.positive([x.channels]))
    return g.node(op_type, inputs, **attributes)


@rule("DFT", opsets=(20, NEWEST_OPSET), values=TAME)
def dft(g: Graph, x: Tensor) -> list[Tensor]:
    parts, length = g.pick(1, 2), g.pick(4, 5, 9, 16)
    shape = [2, length, 3, parts]
    axis = g.pick(1, 2, -2, -3)
    attributes = {"inverse": g.integer(0, 1)}
    if attributes["inverse"] == 0 and parts == 1 and g.chance(0.5):
        attributes["onesided"] = 1
    count = g.constant(np.array(g.pick(3, 6, 17)), "int64") if g.chance(0.5) else None
    inputs = [g.exactly(x, shape), count, g.constant(np.array(axis), "int64")]
    return g.node("DFT", inputs, **attributes)


@rule("STFT", opsets=(17, NEWEST_OPSET), values=TAME)
def stft(g: Graph, x: Tensor) -> list[Tensor]:
    signal, length = g.exactly(x, (2, 40, 1)), g.pick(8, 12, 7)
    window = g.weights((length,)) if g.chance(0.5) else None
    step = g.constant(np.array(g.pick(3, 8)), "int64")
    inputs = [signal, step, window, g.constant(np.array(length), "int64")]
    return g.node("STFT", inputs, onesided=g.integer(0, 1))


@rule("Det", values=TAME)
def det(g: Graph, x: Tensor) -> list[Tensor]:
    size = g.integer(1, 4)
    return g.node("Det", [g.exactly(x, g.pick((3, size, size), (size, size), (1, 2, size, size)))])


@rule("MaxUnpool", values=TAME)
def max_unpool(g: Graph, x: Tensor) -> list[Tensor]:
    """Add a pool and its inverse."""
    x = g.ranked(x, 4)
    # Given another shape than the pool's, ONNX Runtime reads places in it, unlike ONNX's case.
    kernel = [1 + (extent % 2 == 0) for extent in x.shape[2:]]
    largest, places = g.node("MaxPool", [x], 2, kernel_shape=kernel, strides=kernel)
    inputs = [largest, places]
    if g.chance(0.5):
        inputs.append(g.constant(np.array(x.shape), "int64"))
    return g.node("MaxUnpool", inputs, kernel_shape=kernel, strides=kernel)


@rule("Col2Im", opsets=(18, NEWEST_OPSET))
def col2im(g: Graph, x: Tensor) -> list[Tensor]:
    size, kernel = g.integers(4, 7, 2), g.integers(1, 3, 2)
    strides, dilations, pads = g.integers(1, 2, 2), g.integers(1, 2, 2), g.integers(0, 1, 4)
    counts = [
        (n + before + after - (k - 1) * d - 1) // stride + 1
        for n, before, after, k, d, stride in zip(
            size, pads[:2], pads[2:], kernel, dilations, strides, strict=True
        )
    ]
    if min(counts) < 1:
        raise InvalidError("the kernel is larger than the picture")
    columns = g.exactly(x, (2, 3 * kernel[0] * kernel[1], counts[0] * counts[1]))
    shapes = [g.constant(np.array(shape), "int64") for shape in (size, kernel)]
    return g.node("Col2Im", [columns, *shapes], strides=strides, dilations=dilations, pads=pads)


@rule("Dropout")
def dropout(g: Graph, x: Tensor) -> list[Tensor]:
    """Add Dropout that drops nothing: without training, or with a ratio of zero."""
    inputs: list[Tensor | None] = [x]
    if g.chance(0.5):
        inputs += [g.constant(np.array(0.0), "float32"), g.constant(np.array(True))]
    return g.node("Dropout", inputs, g.integer(1, 2))


# ---- Quantized numbers ------------------------------------------------------------------------


def quantized(g: Graph, x: Tensor, dtype: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensor in 8 bits, with its scale and zero point."""
    dtype = dtype or g.pick("uint8", "int8")
    scale, zero = scale_and_zero(g, dtype)
    return g.one("QuantizeLinear", [x, scale, zero]), scale, zero


def scale_and_zero(g: Graph, dtype: str, count: int = 0) -> tuple[Tensor, Tensor]:
    shape = (count,) if count else ()
    scales = g.rng.uniform(0.01, 0.2, shape) if g.chance(0.7) else np.full(shape, 0.0625)
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    zeros = g.rng.integers(low, high, shape) if g.chance(0.6) else np.zeros(shape)
    return g.constant(scales, "float32"), g.constant(zeros, dtype)


def scales_of_blocks(
    g: Graph, x: Tensor, dtype: str, axis: int, block: int
) -> tuple[Tensor, Tensor]:
    """Return a scale and a zero point for each block of elements along an axis."""
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // block)
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    scales = g.constant(g.rng.uniform(0.01, 0.2, shape), "float32")
    return scales, g.constant(g.rng.integers(low, high, shape), dtype)


def bytes_(g: Graph, shape: Sequence[int], dtype: str) -> Tensor:
    info = np.iinfo(dtype)
    return g.constant(g.rng.integers(info.min, info.max + 1, shape), dtype)


@rule("QuantizeLinear", values=("whole", "normal", "masks", "wide"))
def quantize(g: Graph, x: Tensor) -> list[Tensor]:
    dtype = g.pick("uint8", "int8")
    if g.chance(0.4) and x.rank > 1:
        pair = scale_and_zero(g, dtype, x.channels)
        return g.node("QuantizeLinear", [x, *pair], axis=1)
    if g.opset >= 21 and x.rank and g.chance(0.3):
        axis = g.axis(x)
        block = g.integer(1, x.shape[axis])
        pair = scales_of_blocks(g, x, dtype, axis, block)
        return g.node("QuantizeLinear", [x, *pair], axis=axis, block_size=block)
    return g.node("QuantizeLinear", [x, *scale_and_zero(g, dtype)])


@rule("DequantizeLinear", values=("whole", "normal", "masks", "wide"))
def dequantize(g: Graph, x: Tensor) -> list[Tensor]:
    y, scale, zero = quantized(g, x)
    if g.opset >= 21 and x.rank and g.chance(0.3):
        axis = g.axis(x)
        block = g.integer(1, x.shape[axis])
        pair = scales_of_blocks(g, y, y.dtype, axis, block)
        return g.node("DequantizeLinear", [y, *pair], axis=axis, block_size=block)
    if g.chance(0.3) and x.rank > 1:
        pair = scale_and_zero(g, y.dtype, x.channels)
        return g.node("DequantizeLinear", [y, *pair], axis=1)
    real = g.one("DequantizeLinear", [y, scale, zero])
    if g.chance(0.5):
        return [real]
    # Quantizers write such pairs around operators that only move elements.
    axis = g.axis(real) if real.rank else 0
    move = g.pick("Transpose", "Flatten", "Slice", "none")
    if move == "Transpose":
        real = g.one("Transpose", [real], perm=g.rng.permutation(real.rank).tolist())
    elif move == "Flatten":
        real = g.one("Flatten", [real], axis=axis)
    elif move == "Slice" and real.rank and real.shape[axis] > 1:
        bounds = [g.constant([number], "int64") for number in (1, real.shape[axis], axis)]
        real = g.one("Slice", [real, *bounds])
    pair = (scale, zero) if g.chance(0.7) else scale_and_zero(g, y.dtype)
    return g.node("QuantizeLinear", [real, *pair])


@rule("DynamicQuantizeLinear", values=TAME)
def dynamic_quantize(g: Graph, x: Tensor) -> list[Tensor]:
    return g.node("DynamicQuantizeLinear", [x], 3)


@rule("MatMulInteger", values=TAME)
def matmul_integer(g: Graph, x: Tensor) -> list[Tensor]:
    left, _, zero = quantized(g, g.ranked(x, g.pick(2, 4, 3)))
    dtype = g.pick("int8", "uint8")
    right = bytes_(g, [left.shape[-1], g.pick(5, 16, 1)], dtype)
    inputs = [left, right]
    if g.chance(0.7):
        inputs += [zero, g.constant(np.array(g.integer(0, 5)), dtype)]
    return g.node("MatMulInteger", inputs)


@rule("QLinearMatMul", values=TAME)
def qlinear_matmul(g: Graph, x: Tensor) -> list[Tensor]:
    left = quantized(g, g.ranked(x, g.pick(2, 3)))
    dtype = left[0].dtype if left[0].dtype == "uint8" and g.chance(0.5) else "int8"
    right = bytes_(g, [left[0].shape[-1], g.pick(5, 16, 1)], dtype)
    scale = g.constant(np.float32(1.5))
    # ONNX Runtime has no other result type; ONNX's evaluator adds the zero point and then rounds.
    zero = g.constant(np.array(3), left[0].dtype)
    inputs = [*left, right, *scale_and_zero(g, dtype), scale, zero]
    return g.node("QLinearMatMul", inputs)


@rule("ConvInteger", values=TAME)
def conv_integer(g: Graph, x: Tensor) -> list[Tensor]:
    data, _, zero = quantized(g, g.ranked(x, 4), "uint8")
    kernel = g.integers(1, 3, 2)
    dtype = g.pick("uint8", "int8")
    group = groups_of(g, data.channels)
    outputs = group * g.pick(1, 3, 5)
    weights = bytes_(g, [outputs, data.channels // group, *kernel], dtype)
    inputs = [data, weights]
    if g.chance(0.7):
        inputs += [zero, g.constant(np.array(g.integer(0, 5)), dtype)]
    return g.node("ConvInteger", inputs, group=group, **conv_window(g, 2, kernel))


@rule("QLinearConv", values=TAME)
def qlinear_conv(g: Graph, x: Tensor) -> list[Tensor]:
    data = quantized(g, g.ranked(x, 4))
    kernel = g.integers(1, 3, 2)
    dtype = "int8" if data[0].dtype == "int8" else g.pick("int8", "uint8")
    group = groups_of(g, x.channels)
    outputs = group * g.pick(1, 3, 5)
    weights = bytes_(g, [outputs, data[0].channels // group, *kernel], dtype)
    count = outputs if g.chance(0.5) else 0
    scales = g.constant(g.rng.uniform(0.01, 0.2, (count,) if count else ()), "float32")
    zeros = np.zeros((count,) if count else (), dtype)
    if dtype == "uint8":
        zeros = zeros + np.array(g.integer(0, 200), dtype)
    last = [g.constant(np.float32(g.pick(0.5, 2.0))), g.constant(np.array(3), data[0].dtype)]
    inputs = [*data, weights, scales, g.constant(zeros), *last]
    if g.chance(0.5):
        inputs.append(g.constant(g.rng.integers(-500, 500, outputs), "int32"))
    return g.node("QLinearConv", inputs, group=group, **conv_window(g, 2, kernel))


def checked(results: list[Tensor]) -> list[Tensor]:
    """Return results, of which there must be some."""
    if not results:
        raise InvalidError("no result")
    return results


# ---- Sizes known at run time: a few rows, what reads them, and what has a fixed size again ----

#: Number of rows that the type of a dynamic result declares; the real one may differ.
SOME = 5


@rule("NonZero", "Compress", "NonMaxSuppression", opsets=(13, NEWEST_OPSET), values=TAME)
def found_rows(g: Graph, x: Tensor, name: str) -> list[Tensor]:
    """Select rows of a table, whose number is known only at run time, and read them."""
    count = g.pick(9, 7, 31, 16, 1)
    table = g.exactly(g.cast(x, "float32"), [count, 4])
    column = g.one("Gather", [table, g.constant(np.array(g.integer(0, 3)))], axis=1)
    some, places = ((SOME, 4), "float32"), ((SOME,), "int64")
    threshold = g.constant(np.float32(g.pick(0.25, -1.25, 9.0)))
    mask = g.one("Greater", [column, threshold])
    at = None
    if name == "Compress":
        rows = g.one(name, [table, mask], types=[some], axis=0)
    elif name == "NonZero":
        (found,) = g.node(name, [mask], types=[((1, SOME), "int64")])
        at = g.one("Squeeze", [found, g.constant(np.array([0]))], types=[places])
        rows = g.one("Gather", [table, at], types=[some])
    else:
        most = g.constant(np.array([g.pick(count, 3, 2**62)]))
        overlap = g.constant(np.array([g.pick(0.25, 0.5)], np.float32))
        limits = [most, overlap, *([g.reshape(threshold, [1])] if g.chance(0.5) else [])]
        boxes, scores = g.reshape(table, [1, count, 4]), g.reshape(column, [1, 1, count])
        selected = g.one(
            name, [boxes, scores, *limits], types=[((SOME, 3), "int64")],
            center_point_box=g.pick(0, 1),
        )  # fmt: skip
        at = g.one("Gather", [selected, g.constant(np.array(2))], axis=1)
        rows = g.one("Gather", [table, at], types=[some])
    for _ in range(g.integer(0, 3)):
        rows = _read(g, rows, table)
    if at is not None and rows.shape[0] == SOME and g.chance(0.4):
        index = g.one("Unsqueeze", [at, g.constant(np.array([1]))])
        return [g.one("ScatterND", [table, index, rows])]
    return [g.one("ReduceSum", [rows, g.constant(np.array([0]))], keepdims=g.pick(0, 1))]


def _read(g: Graph, rows: Tensor, table: Tensor) -> Tensor:
    """Add one operator that maps rows to rows, and may change their number."""
    kind = g.pick(
        "Relu", "Mul", "MatMul", "Transpose", "Concat", "Slice", "CumSum", "Reshape", "Where",
        "TopK", "Compress", "Gather",
    )  # fmt: skip
    zero, some = g.constant(np.array([0])), [(rows.shape, "float32")]
    if kind == "Mul":
        return g.one("Mul", [rows, rows])
    if kind == "MatMul":
        return g.one("MatMul", [rows, g.weights((4, 4))])
    if kind == "Transpose":
        y = g.one("Neg", [g.one("Transpose", [rows], perm=[1, 0])])
        return g.one("Transpose", [y], perm=[1, 0])
    if kind == "CumSum":
        return g.one("CumSum", [rows, g.constant(np.array(0))], reverse=g.pick(0, 1))
    if kind == "Reshape":
        y = g.one("Reshape", [rows, g.constant(np.array([-1]))])
        return g.one("Reshape", [y, g.constant(np.array([-1, 4]))])
    if kind == "Where":
        mask = g.one("Greater", [rows, g.constant(np.float32(0))])
        return g.one("Where", [mask, rows, g.weights((4,))])
    if kind == "Concat":
        parts = [rows, table, rows] if g.chance(0.5) else [table, rows]
        return g.one("Concat", parts, axis=0)
    # The operators below may return fewer rows.
    fewer = [((SOME - 1, 4), "float32")]
    if kind == "Slice":
        begin, end = g.pick((0, 3), (1, 2**62), (-2, 2**62), (0, -1))
        ends = [g.constant(np.array([n])) for n in (begin, end)]
        return g.one("Slice", [rows, *ends, zero], types=fewer)
    if kind == "Compress":
        y = g.one("ReduceSum", [rows, g.constant(np.array([1]))], keepdims=0)
        mask = g.one("Greater", [y, g.constant(np.float32(0))])
        return g.one("Compress", [rows, mask], types=fewer, axis=0)
    if kind in ("TopK", "Gather"):
        size = g.one("Gather", [g.one("Shape", [rows]), zero])
        k = g.one("Min", [size, g.constant(np.array([3]))])
        column = g.one("Gather", [rows, g.constant(np.array(1))], axis=1)
        places = [((SOME - 1,), "float32"), ((SOME - 1,), "int64")]
        at = g.node("TopK", [column, k], 2, types=places, axis=0)[1]
        return g.one("Gather", [rows, at], types=fewer)
    return g.one("Relu", [rows], types=some)
