"""Compile operators to functions: once for a device, for tensors of any size.

>>> decode = compile_operator("BoxDecode", "llvm", inputs={"deltas": "float32[B, N, 4]"})
>>> (boxes,) = decode(deltas, anchors)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..devices.target import TargetSpec, resolve
from ..errors import InputError, OperatorError
from ..ir.operator import Operator
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType, dtype_from_name
from ..module.session import find_device
from ..module.values import Shared, is_on_host, on_host, shared, type_of, unknown
from ..runtime.plugin import translate
from .memory import Memory, check_storage
from .program import alignment, build
from .signature import Signature, describe, read_signature

#: The most elements of a tensor: compiled functions count them in 32 bits.
_MOST_ELEMENTS = 2**31 - 1


def compile_operator(
    operator: Operator | str,
    target: str = "llvm",
    device: str = "auto",
    *,
    inputs: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    knobs: Mapping[str, Any] | None = None,
    storage: str = "buffer",
    device_index: int = 0,
) -> CompiledOperator:
    """Compile an operator for tensors of any extents.

    Parameters
    ----------
    operator
        An operator, or the name of one in `tvmflow.ops.OPERATORS`.
    target, device
        As for `tvmflow.compile`.
    inputs
        Dtypes by name, with extents if the shape is not the operator's usual one:
        ``{"target": "float16[P, 4]", "offsets": "int32"}``.  Optional inputs that are not
        named are left out.
    attributes
        Attributes that are not the default.
    knobs
        Knobs of the schedule, instead of the heuristic's.
    storage
        ``"texture"`` stores floating-point tensors whose last extent is 4 in OpenCL images, so
        that a box is one texel.
    device_index
        Index of the device among those of the target.

    Raises
    ------
    OperatorError
        If there is no such operator, input or attribute, or images or the target do not support
        its dtype.
    TargetError, CompileError
        As for networks.
    """
    operator = find_operator(operator)
    signature = read_signature(operator, inputs or {})
    return CompiledOperator(
        operator, resolve(target, device), signature,
        attributes=attributes, knobs=knobs, storage=storage, device_index=device_index,
    )  # fmt: skip


def find_operator(operator: Operator | str) -> Operator:
    """Return an operator by its name; raise `OperatorError` if there is none."""
    if isinstance(operator, Operator):
        return operator
    if operator not in OPERATORS:
        raise OperatorError(
            f"There is no operator {operator!r}; expected one of {', '.join(OPERATORS)}.",
            remedy="Check the name, or register the operator with tvmflow.ops.register.",
        )
    return OPERATORS[operator]


class CompiledOperator:
    """A compiled operator on its device, for inputs of a signature.

    It computes the outputs at the positions ``results``, by default all; other parameters are
    those of `compile_operator`.
    """

    def __init__(
        self,
        operator: Operator,
        target: TargetSpec,
        signature: Signature,
        *,
        results: Sequence[int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        knobs: Mapping[str, Any] | None = None,
        storage: str = "buffer",
        device_index: int = 0,
    ):
        self.operator = operator
        self.target = target
        self.signature = signature
        self.attributes = operator.complete(attributes or {})
        self.results = tuple(range(len(operator.outputs)) if results is None else results)
        _check_target(operator, signature, target)
        device = find_device(target.kind, device_index, f"Running {operator.name}")
        check_storage(operator, signature, target, storage, device_index)
        self.memory = Memory(target, storage, device)
        self.program = build(
            operator, signature, self.attributes, self.results, target, knobs, storage
        )
        self._function = self.program.module[self.program.name]
        #: Alignment of each input's address, in bytes.
        self.alignments = [
            1 if kind is None else alignment(kind.dtype, kind.row) for kind in signature
        ]
        #: Types of the memory in which kernels pass values to each other during a call.
        self.workspaces = self.program.workspaces

    def __call__(self, *inputs: Any, check: bool = False, **named: Any) -> tuple[Any, ...]:
        """Compute the operator.

        Parameters
        ----------
        inputs, named
            NumPy arrays, or tensors of any library that supports DLPack, in the operator's order
            or by name.  Memory that the device can use is not copied.
        check
            Whether to copy integers from the device's memory to the host and check their values;
            those in the host's memory are always checked.

        Returns
        -------
        tuple
            NumPy arrays if all inputs are, else TVM's tensors on the device, which any library
            takes with ``from_dlpack``.

        Raises
        ------
        InputError, OperatorError, ShapeError
            If an input is missing or does not fit, with all shapes.
        """
        values = [
            None if value is None else shared(operand.name, value)
            for operand, value in zip(
                self.operator.inputs, self._in_order(inputs, named), strict=True
            )
        ]
        kinds = self.result_types([None if v is None else type_of(v) for v in values])
        self.check_values([None if v is None else _values(v, check) for v in values])
        tensors = [
            self.memory.bring(value, aligned)
            for value, aligned in zip(values, self.alignments, strict=True)
            if value is not None
        ]
        results = [self.memory.empty(kind) for kind in kinds]
        if any(kind.elements for kind in kinds):
            self.run(tensors, results, [self.memory.workspace(kind) for kind in self.workspaces])
        if all(value is None or isinstance(value, np.ndarray) for value in values):
            return tuple(
                result.numpy().astype(dtype_from_name(kind.dtype), copy=False)
                for result, kind in zip(results, kinds, strict=True)
            )
        self.memory.device.sync()
        return tuple(results)

    def result_types(self, types: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Check the types of a call's inputs; return those of the wanted outputs.

        Raises `InputError`, `OperatorError` or `ShapeError` if the types do not fit together, or
        do not fit the signature.
        """
        outputs = self.operator.result_types(types, self.attributes)
        for operand, kind, found in zip(self.operator.inputs, self.signature, types, strict=True):
            if (kind is None) != (found is None) or (kind and found and not kind.accepts(found)):
                raise InputError(
                    f"{self.operator.name} is given {operand.name} {found or 'not at all'}, but "
                    f"was compiled for {describe(self.operator, self.signature)}.",
                    remedy="Compile it for these inputs, too.",
                )
            if found is not None and found.elements > _MOST_ELEMENTS:
                raise InputError(
                    f"{self.operator.name} is given {operand.name} {found}, but compiled "
                    f"operators count up to {_MOST_ELEMENTS} elements.",
                    remedy="Split the batch.",
                )
            if found is not None:
                self.memory.check(f"{self.operator.name} is given {operand.name}", found)
        for index in self.results:
            what = f"{self.operator.name} computes {self.operator.outputs[index].name}"
            self.memory.check(what, outputs[index])
        return tuple(outputs[index] for index in self.results)

    def check_values(self, arrays: Sequence[np.ndarray | None]) -> None:
        """Raise `InputError` for inputs out of range; an array is ``None`` if it is not known."""
        if self.operator.check is not None:
            self.operator.check(arrays, self.attributes)

    def run(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspaces: Sequence[Any] = ()
    ) -> None:
        """Compute into existing tensors, without any check.

        ``inputs`` are those of the signature, in order, contiguous and on the device, ``outputs``
        the wanted ones; `CompiledOperator.workspaces` has the types of ``workspaces``.
        """
        try:
            self._function(*inputs, *outputs, *workspaces)
        except Exception as error:
            attempt = f"Running {self.operator.name}"
            if (translated := translate(error, attempt, self.target.kind)) is not None:
                raise translated from error
            raise

    def _in_order(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names = [operand.name for operand in self.operator.inputs]
        twice = [name for name in names[: len(inputs)] if name in named]
        if len(inputs) > len(names) or twice or (unknown := set(named) - set(names)):
            what = (
                f"{len(inputs)} inputs" if len(inputs) > len(names)
                else f"{twice[0]} twice" if twice
                else f"{sorted(unknown)[0]!r}"
            )  # fmt: skip
            raise OperatorError(
                f"{self.operator.name} is given {what}; its inputs are {', '.join(names)}.",
                remedy="Give each once, in this order or by name.",
            )
        return [*inputs, *(named.get(name) for name in names[len(inputs) :])]


def _check_target(operator: Operator, signature: Signature, target: TargetSpec) -> None:
    """Raise `OperatorError` for dtypes that only the target ``llvm`` supports."""
    if target.kind == "llvm":
        return
    for operand, kind in zip(operator.inputs, signature, strict=True):
        if kind is not None and kind.dtype in operator.host_only:
            accepted = [dtype for dtype in operand.dtypes if dtype not in operator.host_only]
            raise OperatorError(
                f"Compiling {operator.name} for {target.kind} failed: its {operand.name} is "
                f"{kind}, expected {' or '.join(accepted)}.",
                remedy=f'Convert it to {accepted[0]}, or use target="llvm".',
            )


def _values(value: Shared, copied: bool) -> np.ndarray | None:
    """Return the values to check: integers on the host or copied there; of floats the shape."""
    kind = type_of(value)
    if kind.dtype.startswith(("float", "bfloat")):
        return unknown(kind)
    return on_host(value) if copied or is_on_host(value) else None
