"""Use custom operators in PyTorch: differentiable, without copies, also in ``torch.compile``.

>>> from tvmflow.ops.torch import giou_loss
>>> loss = 1 - giou_loss(boxes, target, count)
>>> loss.backward()

An operator becomes ``torch.ops.tvmflow.NAME``, an operator of ``torch.library`` whose kernels are
compiled at the first call with a combination of dtypes and ranks, for any extents.  They run on the
tensors' device (the CPU or CUDA, on PyTorch's current stream), reading and writing PyTorch's
memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from ..devices.target import resolve
from ..errors import InputError, OperatorError
from ..ir.operator import DOMAIN, VERSION, Operator
from ..ir.operators import OPERATORS
from ..ir.tensors import TensorType
from ..module.values import unknown
from .compiled import CompiledOperator, find_operator
from .onnx_form import register_schemas
from .ragged import LANES, Ragged
from .signature import signature_of

#: Target for each of PyTorch's device types.
_TARGETS = {"cpu": "llvm", "cuda": "cuda"}

#: Held while an operator is compiled, or registered, and its gradient with it.
_lock = threading.RLock()
_compiled: dict[Any, CompiledOperator] = {}
_functions: dict[str, Any] = {}


def giou(pred: torch.Tensor, target: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """Return GIoU of pairs of boxes x1 y1 x2 y2.

    Parameters
    ----------
    pred, target
        Boxes ``[B, M, 4]`` or ``[M, 4]``, of dtypes as for `giou_loss`.
    epsilon
        Number that is added to areas before a division by them.

    Returns
    -------
    torch.Tensor
        ``[B, M]`` or ``[M]``, of the dtype of ``pred``.

    Raises
    ------
    OperatorError, ShapeError
        If shapes or dtypes do not fit.
    """
    return _giou(pred, target, epsilon=epsilon)[0]


def giou_loss(
    pred: torch.Tensor,
    target: torch.Tensor,
    count: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    *,
    check: bool = False,
) -> torch.Tensor:
    """Return the mean of GIoU over the valid boxes of a batch, 0 if there is none.

    Parameters
    ----------
    pred
        Boxes ``[B, M, 4]`` (x1 y1 x2 y2) in fp32, fp16 or bf16.
    target
        Boxes of the same shape; with ``offsets`` packed, ``[P, 4]``. They may have any of these
        dtypes, uint8, int16 or int32: the kernel converts them. On the CPU, both may be fp64.
    count
        Number of valid boxes of each sample, its first ones: int32 or int64 ``[B]``.
    mask
        Mask of the valid boxes: bool or uint8 ``[B, M]``.
    offsets
        First and end rows of the packed boxes of each sample: int32 or int64 ``[B + 1]``.
        At most one of ``count``, ``mask`` and ``offsets`` is given; without any, a box is valid if
        its target's y2 is above 0.
    epsilon
        Number that is added to areas before a division by them.
    check
        Whether to copy counts and offsets from a GPU to the host and check their values, which
        synchronises; those in the host's memory are always checked.

    Returns
    -------
    torch.Tensor
        A scalar of the dtype of ``pred``.

    Raises
    ------
    InputError, OperatorError, ShapeError
        If shapes, dtypes, or values of integers in the host's memory do not fit.
    """
    if check:
        check_values("GIoULoss", pred, target, count, mask, offsets, epsilon=epsilon)
    return _giou_loss(pred, target, count, mask, offsets, epsilon=epsilon)[0]


def check_values(
    operator: Operator | str, *tensors: torch.Tensor | None, **attributes: Any
) -> None:
    """Raise `InputError` for values of integer inputs out of range, on any device."""
    operator = find_operator(operator)
    if operator.check is not None:
        known = [_values(t if t is None or t.dtype.is_floating_point else t.cpu()) for t in tensors]
        operator.check(known, operator.complete(attributes))


def to_device(batch: Ragged, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy a ragged batch to a device; return packed boxes ``[P, 4]`` and offsets ``[B + 1]``.

    Both are views of one tensor, so that there is one copy; offsets are int32.
    """
    host = torch.from_numpy(batch.buffer)
    buffer = host if torch.device(device).type == "cpu" else host.to(device)
    packed = buffer[: batch.box_bytes].view(getattr(torch, batch.dtype))
    return packed.view(batch.rows, LANES), buffer[batch.box_bytes :].view(torch.int32)


def torch_operator(operator: Operator | str) -> Callable[..., list[torch.Tensor]]:
    """Return a function of tensors, and of attributes by name, for an operator or its name.

    The first call for an operator registers it and its gradient with ``torch.library``.  The
    function takes the inputs, ``None`` for an optional one that is left out, and returns the
    outputs.  Raises `OperatorError` if there is no such operator.
    """
    operator = find_operator(operator)
    name = _snake_case(operator.name)
    with _lock:
        if name not in _functions:
            _functions[name] = _register(operator, name)
        return _functions[name]


def onnx_translations() -> dict[Any, Callable[..., Any]]:
    """Return the ``custom_translation_table`` of ``torch.onnx.export`` for operators in use."""
    register_schemas()
    with _lock:
        return {
            getattr(torch.ops.tvmflow, name).default: partial(_translate, operator)
            for operator in OPERATORS.values()
            if (name := _snake_case(operator.name)) in _functions
        }


def _translate(operator: Operator, *arguments: Any) -> list[Any]:
    """Return the wanted results of an operator as a node of an ONNX graph."""
    from onnxscript import values

    tensors, attributes, wanted = _split(operator, arguments)
    node = getattr(values.Opset(DOMAIN, VERSION), operator.name)
    count = len(operator.outputs)
    more = {"_outputs": count} if count > 1 else {}
    results = node(*tensors, **attributes, **more)
    return [(results if more else [results])[number] for number in wanted]


# -- registration -------------------------------------------------------------------------


def _register(operator: Operator, name: str) -> Any:
    """Register an operator with ``torch.library``; its last argument says which results it has."""

    def run(*arguments: Any) -> list[torch.Tensor]:
        return _run(operator, *_split(operator, arguments))

    def fake(*arguments: Any) -> list[torch.Tensor]:
        tensors, attributes, wanted = _split(operator, arguments)
        kinds = operator.result_types([_type(t) for t in tensors], attributes)
        device = _device(operator, tensors)
        return [_empty(kinds[index], device) for index in wanted]

    function = torch.library.custom_op(
        f"tvmflow::{name}", run, mutates_args=(), schema=_schema(operator)
    )
    function.register_fake(fake)
    if operator.gradient is not None:
        _register_gradient(operator, operator.gradient, function)
    else:
        function.register_autograd(partial(_refuse_gradient, operator))

    def call(*tensors: Any, results: Sequence[int] | None = None, **attributes: Any) -> Any:
        padded = [*tensors, *[None] * (len(operator.inputs) - len(tensors))]
        given = operator.complete(attributes)
        wanted = range(len(operator.outputs)) if results is None else results
        return function(*padded, *given.values(), list(wanted))

    return call


def _register_gradient(operator: Operator, gradient: Operator, function: Any) -> None:
    """Let PyTorch differentiate an operator by its gradient, for the requested inputs only."""
    backward_of = torch_operator(gradient)
    inputs = [operand.name for operand in operator.inputs]
    outputs = [operand.name for operand in operator.outputs]
    # Positions of the gradient's results, by the inputs that they belong to.
    position = {name: index for index, name in enumerate(operator.differentiable)}

    def keep(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        tensors, ctx.attributes, ctx.wanted = _split(operator, inputs)
        known = dict(
            zip(names, (*tensors, *_spread(output, ctx.wanted, len(outputs))), strict=True)
        )
        ctx.save_for_backward(*(known[name] for name in kept))

    def backward(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
        known = dict(zip(kept, ctx.saved_tensors, strict=True))
        of_outputs = _spread(grads, ctx.wanted, len(outputs))
        known |= {f"grad_{name}": g for name, g in zip(outputs, of_outputs, strict=True)}
        asked = [name for name in position if ctx.needs_input_grad[inputs.index(name)]]
        arguments = [known[operand.name] for operand in gradient.inputs]
        attributes = {name: ctx.attributes[name] for name in gradient.attributes}
        results = backward_of(*arguments, results=[position[n] for n in asked], **attributes)
        found = dict(zip(asked, results, strict=True))
        left = len(operator.attributes) + 1
        return (*(found.get(name) for name in inputs), *[None] * left)

    names = [*inputs, *outputs]
    kept = [operand.name for operand in gradient.inputs if operand.name in names]
    function.register_autograd(backward, setup_context=keep)


def _refuse_gradient(operator: Operator, ctx: Any, grads: Any) -> None:
    """Raise `OperatorError`: an operator without a gradient, such as a gradient, has none."""
    raise OperatorError(
        f"Differentiating {operator.name} failed: it has no gradient; second derivatives are not "
        "computed.",
        remedy="Differentiate once, or detach its results.",
    )


def _schema(operator: Operator) -> str:
    """Return the operator's schema for PyTorch; the last argument lists the wanted results."""
    inputs = [f"Tensor{'?' if o.optional else ''} {o.name}" for o in operator.inputs]
    attributes = [f"{_schema_type(v)} {name}" for name, v in operator.attributes.items()]
    return f"({', '.join([*inputs, *attributes, 'int[] results'])}) -> Tensor[]"


def _schema_type(default: Any) -> str:
    """Return the type of an attribute, which has Python's name: ``float``, ``int``, ``str``."""
    is_tuple = isinstance(default, tuple)
    return f"{type(default[0]).__name__}[]" if is_tuple else type(default).__name__


def _snake_case(name: str) -> str:
    """Turn ``GIoULossGrad`` into ``giou_loss_grad``: IoU is one word."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("IoU", "iou")).lower()


def _split(operator: Operator, arguments: Sequence[Any]) -> tuple[Any, dict[str, Any], list[int]]:
    """Split the arguments of a registered operator into tensors, attributes, wanted results."""
    count = len(operator.inputs)
    attributes = dict(zip(operator.attributes, arguments[count:-1], strict=True))
    return arguments[:count], attributes, arguments[-1]


def _spread(found: Sequence[Any], places: Sequence[int], length: int) -> list[Any]:
    """Return a list with values at their places, ``None`` elsewhere."""
    by_place = dict(zip(places, found, strict=True))
    return [by_place.get(index) for index in range(length)]


# -- a call -------------------------------------------------------------------------------


def _run(
    operator: Operator, tensors: Sequence[Any], attributes: dict[str, Any], wanted: Sequence[int]
) -> list[torch.Tensor]:
    device = _device(operator, tensors)
    types = [_type(t) for t in tensors]
    compiled = _compiled_for(operator, types, attributes, wanted, device)
    kinds = compiled.result_types(types)
    compact = [
        None if tensor is None else _compact(tensor.detach(), aligned)
        for tensor, aligned in zip(tensors, compiled.alignments, strict=True)
    ]
    compiled.check_values([_values(t) for t in compact])
    results = [_empty(kind, device) for kind in kinds]
    if any(result.numel() for result in results):
        # PyTorch's allocator knows which memory its streams still use.
        own = [_empty(kind, device) for kind in compiled.workspaces]
        given = [t for t in compact if t is not None]
        compiled.run(given, [_compact(result, 1) for result in results], own)
    return results


def _compact(tensor: torch.Tensor, aligned: int) -> torch.Tensor:
    """Return the tensor, or a copy if its memory is not contiguous or not aligned."""
    if not tensor.numel():
        # PyTorch and TVM disagree on the strides of a tensor without elements.
        strides = [prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
        return tensor.as_strided(tensor.shape, strides)
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % aligned == 0 else tensor.clone()


def _compiled_for(
    operator: Operator,
    types: Sequence[TensorType | None],
    attributes: dict[str, Any],
    wanted: Sequence[int],
    device: torch.device,
) -> CompiledOperator:
    """Return the operator compiled for such tensors; the first call compiles it."""
    shapes = tuple(None if kind is None else (kind.dtype, len(kind.shape)) for kind in types)
    key = (operator.name, shapes, tuple(attributes.items()), tuple(wanted), device)
    found = _compiled.get(key)
    if found is None:
        # Raise an error for types that do not fit before compiling.
        operator.result_types(types, attributes)
        with _lock:
            if key not in _compiled:
                _compiled[key] = CompiledOperator(
                    operator, resolve(_TARGETS[device.type]), signature_of(operator, types),
                    results=wanted, attributes=attributes, device_index=device.index or 0,
                )  # fmt: skip
            found = _compiled[key]
    return found


def _device(operator: Operator, tensors: Sequence[Any]) -> torch.device:
    """Return the device of all tensors."""
    devices = {t.device for t in tensors if t is not None}
    if len(devices) != 1 or next(iter(devices)).type not in _TARGETS:
        places = ", ".join(
            f"{operand.name} on {tensor.device}"
            for operand, tensor in zip(operator.inputs, tensors, strict=True)
            if tensor is not None
        )
        raise InputError(
            f"{operator.name} is given {places}; expected all on the CPU or on one CUDA device.",
            remedy="Move them there with tensor.to(device).",
        )
    return next(iter(devices))


def _type(tensor: torch.Tensor | None) -> TensorType | None:
    """Return shape and dtype; extents may be PyTorch's symbols."""
    if tensor is None:
        return None
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _empty(kind: TensorType, device: torch.device) -> torch.Tensor:
    return torch.empty(kind.shape, dtype=getattr(torch, kind.dtype), device=device)


def _values(tensor: torch.Tensor | None) -> Any:
    """Return the values to check: integers in the host's memory; of floats the shape."""
    if tensor is None:
        return None
    if tensor.dtype.is_floating_point:
        return unknown(TensorType(tuple(tensor.shape), ""))
    return tensor.numpy() if tensor.device.type == "cpu" else None


#: Registered at import, as `torch.compile` may be tracing the first call.
_giou, _giou_loss = torch_operator("GIoU"), torch_operator("GIoULoss")
