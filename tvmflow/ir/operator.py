"""Custom operators: types, computation, reference and gradient in one value.

A custom operator is a node ``ai.tvmflow.NAME`` of an ONNX model, defined in one file as an
:class:`Operator`; `docs/custom-operators.md` teaches how to write one.  A schedule family
(``schedules/``) finds its block by an annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import OperatorError, ShapeError
from .tensors import TensorType, dtype_from_name

if TYPE_CHECKING:
    from tvm import te

#: The ONNX domain of custom operators, and its only version.
DOMAIN = "ai.tvmflow"
VERSION = 1

#: The attribute of a custom operator's primary function that has its number of results.
FUNCTION_ATTRIBUTE = "tvmflow.results"

#: Value of an attribute: all plain kinds that ONNX has.
Attribute = float | int | str | tuple[float, ...] | tuple[int, ...]

#: Arguments of an operator's functions: one item per input (``None`` for an optional input that is
#: left out) as a `TensorType`, a `te.Tensor` or an array, and all attributes by name.
Types = Sequence[Any]
Tensors = Sequence[Any]
Arrays = Sequence[Any]
Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Operand:
    """An input or an output of a custom operator.

    Parameters
    ----------
    name
        A Python identifier, which is also the name of the argument.
    dtypes
        NumPy's names of the element types that it can have.
    optional
        Whether an input may be left out; it is ``None`` then.
    shapes
        Shapes of an input such as ``"B, M, 4"``, at most one of each rank, used when the operator
        is compiled for all shapes.  Extents of one name are equal, and ``B + 1`` may occur where
        ``B`` is an extent.  Without shapes, all extents are independent.
    """

    name: str
    dtypes: tuple[str, ...]
    optional: bool = False
    shapes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Operator:
    """A custom operator.

    Parameters
    ----------
    name
        ONNX's ``op_type`` in the domain ``ai.tvmflow``, and the name of the primary function.
    summary
        One sentence about what it computes.
    inputs, outputs
        Operands in ONNX's order.  Functions get one item per input, ``None`` for one that is left
        out.
    infer
        Maps the types of the inputs and the attributes to the types of the outputs.  Raises
        `ShapeError` with the shapes in its sentence if they do not fit together; numbers of
        operands, dtypes and attributes are checked before.
    compute
        Maps TE tensors and the attributes to a TE tensor for each output.  Extents may be
        variables (``tirx.Var``) when a program is compiled once for all shapes.
    reference
        Maps NumPy arrays and the attributes to an array for each output.  Floats are float64, and
        results may be.
    attributes
        Defaults by name; the type of a default is the type of the attribute.
    gradient
        The operator that computes gradients.  Its operands have telling names: ``x`` is an input or
        output of this operator, ``grad_x`` the gradient of one.  It takes inputs of this operator,
        outputs that must have been kept, and gradients of outputs; it returns gradients of inputs.
        Its attributes are among this operator's.
    check
        Checks the values of inputs: gets arrays, or ``None`` for unknown values; of float arrays
        only the shape is meaningful.  Raises `InputError` if values are out of range.
    host_only
        Dtypes of operands for which a single operator can be compiled on the target ``llvm`` only.

    Raises
    ------
    OperatorError
        If names are missing, or the gradient's do not fit.
    """

    name: str
    summary: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    infer: Callable[[Types, Attributes], tuple[TensorType, ...]]
    compute: Callable[[Tensors, Attributes], list[te.Tensor]]
    reference: Callable[[Arrays, Attributes], list[np.ndarray]]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    gradient: Operator | None = None
    check: Callable[[Arrays, Attributes], None] | None = None
    host_only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, operands in ("inputs", self.inputs), ("outputs", self.outputs):
            names = [operand.name for operand in operands]
            if not all(name.isidentifier() for name in names) or len(set(names)) < len(names):
                raise OperatorError(
                    f"The {kind} of {self.name} are called {', '.join(map(repr, names))}; expected "
                    "different Python identifiers.",
                    remedy="Rename them.",
                )
        if (gradient := self.gradient) is None:
            return
        inputs = {operand.name for operand in self.inputs}
        outputs = {operand.name for operand in self.outputs}
        allowed = (
            ("inputs", gradient.inputs, inputs | outputs | {f"grad_{name}" for name in outputs}),
            ("outputs", gradient.outputs, {f"grad_{name}" for name in inputs}),
        )
        for kind, operands, known in allowed:
            if strange := [operand.name for operand in operands if operand.name not in known]:
                raise OperatorError(
                    f"The gradient of {self.name}, {gradient.name}, has {strange[0]!r} among its "
                    f"{kind}, expected some of {', '.join(sorted(known))}.",
                    remedy="Name it after an operand of the operator, with grad_ before it for a "
                    "gradient.",
                )
        if strange := [name for name in gradient.attributes if name not in self.attributes]:
            raise OperatorError(
                f"The gradient of {self.name}, {gradient.name}, has the attribute {strange[0]!r}, "
                f"which {self.name} has not.",
                remedy="Give both the attribute.",
            )

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Return the names of the inputs that the gradient operator computes gradients of."""
        outputs = self.gradient.outputs if self.gradient is not None else ()
        return tuple(output.name.removeprefix("grad_") for output in outputs)

    def complete(self, given: Attributes) -> dict[str, Any]:
        """Return all attributes: those given, and defaults for the others.

        Raises ``OperatorError`` if one is unknown or of another type.
        """
        if unknown := [name for name in given if name not in self.attributes]:
            raise OperatorError(
                f"{self.name} has no attribute {unknown[0]!r}; expected "
                f"{', '.join(map(repr, self.attributes)) or 'none'}.",
                remedy="Check the attribute's name.",
            )
        completed: dict[str, Any] = dict(self.attributes)
        for name, value in given.items():
            default = self.attributes[name]
            own: type = type(default)
            kind = {float: Real, int: Integral}.get(own, own)
            if not isinstance(value, kind):
                raise OperatorError(
                    f"The attribute {name!r} of {self.name} is {value!r}, expected a value like "
                    f"its default {default!r}.",
                    remedy=f"Give it as {own.__name__}.",
                )
            # Not NumPy's scalars, which TVM does not take.
            completed[name] = own(value)
        return completed

    def result_types(self, types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
        """Return the types of the outputs for types of the inputs, which are checked.

        Raises ``OperatorError`` or ``ShapeError`` if a required input is missing, there are too
        many, or one does not fit.
        """
        padded = [*types, *[None] * (len(self.inputs) - len(types))]
        if len(types) > len(self.inputs):
            raise OperatorError(
                f"{self.name} is given {len(types)} inputs, expected at most {len(self.inputs)} "
                f"({', '.join(operand.name for operand in self.inputs)}).",
                remedy="Leave the last ones out.",
            )
        for operand, kind in zip(self.inputs, padded, strict=True):
            if kind is None and not operand.optional:
                raise OperatorError(
                    f"{self.name} is not given its input {operand.name!r}.",
                    remedy="Give it a tensor.",
                )
            if kind is not None and kind.dtype not in operand.dtypes:
                raise OperatorError(
                    f"The input {operand.name!r} of {self.name} is {kind}, expected "
                    f"{' or '.join(operand.dtypes)}.",
                    remedy=f"Convert it to {operand.dtypes[0]}.",
                )
        try:
            results = tuple(self.infer(padded, attributes))
        except (OperatorError, ShapeError):
            raise
        except Exception as error:
            given = ", ".join(map(str, padded))
            raise OperatorError(
                f"{self.name} does not say what it returns for {given}: "
                f"{type(error).__name__}: {error}",
                remedy="Let its `infer` raise a tvmflow.errors.ShapeError for what does not fit.",
            ) from error
        fit = (kind.dtype in o.dtypes for kind, o in zip(results, self.outputs, strict=False))
        if len(results) != len(self.outputs) or not all(fit):
            wanted = ", ".join(f"{o.name} of {' or '.join(o.dtypes)}" for o in self.outputs)
            raise OperatorError(
                f"The `infer` of {self.name} returns {', '.join(map(str, results)) or 'nothing'}, "
                f"expected {wanted}.",
                remedy="Let it return a TensorType for each output.",
            )
        return results

    def tensors(self, inputs: Tensors, attributes: Attributes) -> list[te.Tensor]:
        """Return TE tensors of the outputs, for inputs that fit; ``attributes`` are complete.

        Raises ``OperatorError`` if there is not a tensor for each output.
        """
        results = self.compute(inputs, attributes)
        if not isinstance(results, list) or len(results) != len(self.outputs):
            raise OperatorError(
                f"The `compute` of {self.name} returns {results!r}, expected a list of "
                f"{len(self.outputs)} tensors.",
                remedy="Let it return a list with a tensor for each output.",
            )
        return results

    def evaluate(self, arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
        """Compute the reference's results in the outputs' dtypes; ``attributes`` are complete."""
        padded = [*arrays, *[None] * (len(self.inputs) - len(arrays))]
        types = [None if a is None else TensorType(a.shape, a.dtype.name) for a in padded]
        results = self.result_types(types, attributes)
        with np.errstate(all="ignore"):  # NaN and infinity are results like others
            wide = [None if a is None else _widened(a) for a in padded]
            values = self.reference(wide, attributes)
            return [
                np.asarray(value).astype(dtype_from_name(kind.dtype)).reshape(kind.shape)
                for value, kind in zip(values, results, strict=True)
            ]


def _widened(array: np.ndarray) -> np.ndarray:
    """Convert floats to float64."""
    # NumPy does not know that bfloat16 is a float.
    floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if floating else array
