"""Register custom operators with ONNX: its checker, shape inference and reference evaluator.

ONNX Runtime cannot run nodes of the domain ``ai.tvmflow``; ONNX's reference evaluator runs them
with the classes of :func:`op_runs`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, shape_inference
from onnx.reference.op_run import OpRun

from ..errors import OperatorError, ShapeError
from ..ir.operator import DOMAIN, VERSION, Operator
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType

#: ONNX's names of the two dtypes for which NumPy has other names.
_WORDS = {"float32": "float", "float64": "double"}

#: Numbers that stand for open dimensions in two trials of shape inference.  They are large primes:
#: an extent of a result that equals a dimension's number in both trials is that dimension.
_TRIALS = (1_000_003, 2_000_003)

_registered: dict[str, Operator] = {}


def check_name(name: str, taken: Container[str]) -> None:
    """Raise `OperatorError` for a name that is no identifier, or is taken, or is one of ONNX's."""
    # ONNX's reference evaluator takes only one operator of a name, whatever its domain.
    known = {s.name for s in defs.get_all_schemas_with_history() if s.domain != DOMAIN}
    if name in taken or name in known:
        owner = "tvmflow" if name in taken else "ONNX"
        raise OperatorError(
            f"Registering {name} failed: {owner} has an operator of this name.",
            remedy="Give yours another name.",
        )
    if not name.isidentifier():
        raise OperatorError(
            f"Registering {name!r} failed: expected a Python identifier as its name.",
            remedy="Use letters, digits and underscores only.",
        )


def attributes_of(node: onnx.NodeProto, operator: Operator) -> dict[str, Any]:
    """Return all attributes of a node, checked and completed by :meth:`Operator.complete`."""
    return operator.complete({a.name: _value(a) for a in node.attribute})


def register_schemas(operators: Iterable[Operator] | None = None) -> None:
    """Register operators, by default all, with ONNX's checker and shape inference."""
    for operator in OPERATORS.values() if operators is None else operators:
        known = _registered.get(operator.name)
        if known is operator:
            continue
        if known is not None:  # an operator of the user that was defined again
            defs.deregister_schema(operator.name, VERSION, DOMAIN)
        defs.register_schema(_schema(operator))
        _registered[operator.name] = operator


def op_runs() -> list[type[OpRun]]:
    """Return a class for each operator, the ``new_ops`` of `onnx.reference.ReferenceEvaluator`."""
    return [_op_run(operator) for operator in OPERATORS.values()]


def _op_run(operator: Operator) -> type[OpRun]:
    def run(self: OpRun, *arrays: np.ndarray | None, **_: Any) -> tuple[np.ndarray, ...]:
        # The evaluator passes attributes as NumPy's values and without defaults: read the node.
        return tuple(operator.evaluate(arrays, attributes_of(self.onnx_node, operator)))

    return type(operator.name, (OpRun,), {"op_domain": DOMAIN, "_run": run})


def _schema(operator: Operator) -> defs.OpSchema:
    """Return a schema in which each operand has its own type; `infer` compares the types."""
    options = defs.OpSchema.FormalParameterOption
    operands = [(operand, operand.optional) for operand in operator.inputs]
    # A node may leave out any of several results, but not all of them.
    operands += [(operand, len(operator.outputs) > 1) for operand in operator.outputs]
    parameters = [
        defs.OpSchema.FormalParameter(
            each.name, f"T{n}", param_option=options.Optional if optional else options.Single
        )
        for n, (each, optional) in enumerate(operands)
    ]
    schema = defs.OpSchema(
        operator.name, DOMAIN, VERSION, operator.summary,
        inputs=parameters[: len(operator.inputs)],
        outputs=parameters[len(operator.inputs) :],
        type_constraints=[
            (f"T{n}", [f"tensor({_word(dtype)})" for dtype in each.dtypes], each.name)
            for n, (each, _) in enumerate(operands)
        ],
        attributes=[
            defs.OpSchema.Attribute(name, helper.make_attribute(name, default), "")
            for name, default in operator.attributes.items()
        ],
    )  # fmt: skip
    schema.set_type_and_shape_inference_function(lambda context: _infer(operator, context))
    return schema


def _infer(operator: Operator, context: Any) -> None:
    """Set the types of the results in ONNX's shape inference, as far as they can be known."""
    given = [context.get_attribute(name) for name in operator.attributes]
    kinds = [
        context.get_input_type(index) if context.has_input(index) else None
        for index in range(context.get_num_inputs())
    ]
    if not all(kind is None or kind.tensor_type.HasField("shape") for kind in kinds):
        _give_dtypes(operator, kinds, context)
        return
    symbols: dict[str, int] = {}
    trials = []
    for base in _TRIALS:
        types = [
            None if kind is None else _type(kind, index, symbols, base)
            for index, kind in enumerate(kinds)
        ]
        try:
            attributes = operator.complete({a.name: _value(a) for a in given if a is not None})
            trials.append(operator.result_types(types, attributes))
        except (OperatorError, ShapeError) as error:
            if symbols:
                # Open dimensions, which differ in a trial, may be equal at run time: no error yet.
                _give_dtypes(operator, kinds, context)
                return
            raise shape_inference.InferenceError(error.message) from error
    for index, (first, second) in enumerate(zip(*trials, strict=True)):
        if index < context.get_num_outputs():
            shape = [
                a if a == b else _symbol(a, b, symbols)
                for a, b in zip(first.shape, second.shape, strict=True)
            ]
            context.set_output_type(
                index, helper.make_tensor_type_proto(_element_type(first.dtype), shape)
            )


def _give_dtypes(operator: Operator, kinds: Sequence[onnx.TypeProto | None], context: Any) -> None:
    """Set types without shapes: results have the first input's dtype if they may."""
    first = None if not kinds or kinds[0] is None else _dtype(kinds[0].tensor_type.elem_type)
    for index, output in enumerate(operator.outputs[: context.get_num_outputs()]):
        dtype = first if first in output.dtypes else output.dtypes[0]
        kind = helper.make_tensor_type_proto(_element_type(dtype), None)
        context.set_output_type(index, kind)


def _type(kind: onnx.TypeProto, index: int, symbols: dict[str, int], base: int) -> TensorType:
    """Return the type of an input, with numbers starting at ``base`` for open dimensions."""
    shape = tuple(
        int(dim.dim_value) if dim.HasField("dim_value")
        else base + symbols.setdefault(dim.dim_param or f"?{index},{axis}", len(symbols))
        for axis, dim in enumerate(kind.tensor_type.shape.dim)
    )  # fmt: skip
    return TensorType(shape, _dtype(kind.tensor_type.elem_type))


def _symbol(first: int, second: int, symbols: Mapping[str, int]) -> str | None:
    """Return the open dimension that equals a result's extent in both trials, or ``None``."""
    tried = ((name, (first - offset, second - offset)) for name, offset in symbols.items())
    return next((n for n, base in tried if base == _TRIALS and not n.startswith("?")), None)


def _value(attribute: onnx.AttributeProto) -> Any:
    """Return the Python value of an attribute."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return tuple(value) if isinstance(value, list) else value


def _word(dtype: str) -> str:
    """Return ONNX's name of a dtype."""
    return _WORDS.get(dtype, dtype)


def _element_type(dtype: str) -> int:
    return int(TensorProto.DataType.Value(_word(dtype).upper()))


def _dtype(element_type: int) -> str:
    word = TensorProto.DataType.Name(element_type).lower()
    return next((dtype for dtype, known in _WORDS.items() if known == word), word)
