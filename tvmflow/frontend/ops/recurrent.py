"""Converters of the recurrent layers LSTM, GRU and RNN.

The products of all steps' inputs are one matrix product; the rest is a scan over the steps, in a
separate function (:mod:`tvmflow.schedules.recurrent`)::

    products : [T · B, D · H' · G · 16]   = X [T · B, I] · W' + biases
    y, y_h, y_c                           = recurrent(products, R', ...)

for T steps, B batch entries, I inputs, D directions, G gates, and hidden units in H' blocks of 16.
Constant weights are arranged in these blocks at compile time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ir.rewriter import constant, constant_array, shape_of
from ...schedules.recurrent import BLOCK, NAME, Layer, define
from ...schedules.rnn_cells import GATES, PEEPHOLES, USUAL, Activation, Cell, activations
from ..converter import InvalidNode, NodeContext, Refusal, converts

#: Indices of ONNX's inputs; those starting at 6 are the LSTM's only.
_W, _R, _B, _LENGTHS, _H, _C, _P = range(1, 8)
_RESULTS = ("y", "y_h", "y_c")


@converts("LSTM", "GRU", "RNN")
def recurrent(c: NodeContext) -> list[relax.Expr | None]:
    """Return the states of all steps, the last state, and an LSTM's last cell state."""
    cell = _cell(c)
    steps, entries, inputs = _extents(c)
    units = c.shape(_R)[2]
    _check(c, cell, entries, inputs, units)
    wanted = [name for index, name in enumerate(_RESULTS) if c.uses_result(index)]
    if 0 in (steps, entries):
        return _without_steps(c)
    operands: dict[str, relax.Expr] = {}
    bias = _biases(c, cell, operands)
    if c.has(_P):
        peepholes = c.reshaped(_P, (len(cell.functions), len(PEEPHOLES), units))
        operands["p"] = _in_blocks(c, peepholes, 2, [0, 2, 1, 3])
    for name, index in (("h", _H), ("c", _C)):
        if c.has(index) and (index != _C or cell.kind == "LSTM"):
            operands[name] = _batch_second(c, _padded(c, c.input(index)))
    if c.has(_LENGTHS):
        operands["lengths"] = c.input(_LENGTHS)
    layer = Layer(
        cell, steps, entries, units, c.attribute("direction", "forward") == "reverse", c.dtype(),
        tuple(operands), tuple(wanted),
    )  # fmt: skip
    gates = len(cell.gates)
    state_weight = c.reshaped(_R, (layer.directions, gates, units, units))
    state_weight = _in_blocks(c, state_weight, 2, [0, 2, 4, 1, 3])
    arguments = [_products(c, layer, bias), state_weight, *operands.values()]
    arguments = [c.emit(argument) for argument in arguments]
    types = [relax.TensorType(layer.shape_of(name), layer.dtype) for name in wanted]
    function = c.builder.add_func(define(layer), NAME)
    call = relax.call_tir(function, arguments, types if len(types) > 1 else types[0])
    found = [call] if len(types) == 1 else [relax.TupleGetItem(call, i) for i in range(len(types))]
    by_name = dict(zip(wanted, found, strict=True))
    return [_batch_first(c, by_name[name]) if name in by_name else None for name in _RESULTS]


# -- the node -----------------------------------------------------------------------------


def _cell(c: NodeContext) -> Cell:
    """Return the cell that the attributes describe."""
    kind, direction = c.op_type, c.attribute("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise InvalidNode(f"its direction is {direction!r}")
    directions, usual = 1 + (direction == "bidirectional"), USUAL[kind]
    names = c.attribute("activations") or list(usual) * directions
    if len(names) != len(usual) * directions:
        raise InvalidNode(f"it has {len(names)} activations, not {len(usual) * directions}")
    parameters = (c.attribute(f"activation_{name}") or () for name in ("alpha", "beta"))
    try:
        found = activations(names, *parameters)
    except KeyError as unknown:
        raise InvalidNode(f"its activation {unknown} is not one of ONNX's") from None
    functions: list[tuple[Activation, ...]] = [
        found[at : at + len(usual)] for at in range(0, len(found), len(usual))
    ]
    # ONNX Runtime ignores a threshold of zero or less, which the specification does not allow.
    clip = c.attribute("clip")
    if clip is not None and not clip > 0:
        raise Refusal(f"its clip is {clip}; only positive ones are supported")
    return Cell(
        kind, tuple(functions), clip, bool(c.attribute("input_forget", 0)),
        bool(c.attribute("linear_before_reset", 0)),
    )  # fmt: skip


def _extents(c: NodeContext) -> tuple[int, int, int]:
    """Return the numbers of steps, batch entries and inputs."""
    if len(c.shape()) != 3:
        raise InvalidNode(f"its input has {len(c.shape())} axes, not 3")
    first, second, inputs = c.shape()
    return (second, first, inputs) if _is_batch_first(c) else (first, second, inputs)


def _check(c: NodeContext, cell: Cell, entries: int, inputs: int, units: int) -> None:
    """Check the operands' shapes, which ONNX's inference does not, and constant lengths."""
    directions, gates = len(cell.functions), len(GATES[c.op_type])
    state = (entries, directions, units) if _is_batch_first(c) else (directions, entries, units)
    expected = {
        _W: (directions, gates * units, inputs),
        _R: (directions, gates * units, units),
        _B: (directions, 2 * gates * units),
        _LENGTHS: (entries,),
        _H: state,
        _C: state,
        _P: (directions, len(PEEPHOLES) * units),
    }
    for index, shape in expected.items():
        if c.has(index) and c.shape(index) != shape:
            raise InvalidNode(f"its input {index} has the shape {c.shape(index)}, not {shape}")
    if c.attribute("hidden_size", units) != units:
        raise InvalidNode(f"its hidden_size is {c.attribute('hidden_size')}, its R has {units}")
    lengths, steps = c.known(_LENGTHS), _extents(c)[0]
    if lengths is not None and lengths.size and not 0 <= lengths.min() <= lengths.max() <= steps:
        raise InvalidNode(f"its sequence_lens are {lengths.tolist()}, of {steps} steps")


def _without_steps(c: NodeContext) -> list[relax.Expr | None]:
    """Return the results without any step or batch entry: the initial states, or zeros."""
    found: list[relax.Expr | None] = []
    for index, (result, state) in enumerate(zip(c.results, (0, _H, _C), strict=False)):
        if result is None:
            found.append(None)
        elif index and c.has(state):
            found.append(c.input(state))
        else:
            found.append(constant(np.zeros(result.shape, result.dtype)))
    return found


# -- axes ---------------------------------------------------------------------------------


def _is_batch_first(c: NodeContext) -> bool:
    return bool(c.attribute("layout", 0))


def _batch_second(c: NodeContext, x: relax.Expr) -> relax.Expr:
    """Return the input, or a state, with the batch as its second axis."""
    return R.permute_dims(x, [1, 0, 2]) if _is_batch_first(c) else x


def _batch_first(c: NodeContext, result: relax.Expr) -> relax.Expr:
    """Return a result in the node's layout."""
    if not _is_batch_first(c):
        return result
    result = c.emit(result)
    return R.permute_dims(result, [2, 0, 1, 3] if len(shape_of(result)) == 4 else [1, 0, 2])


def _padded(c: NodeContext, x: relax.Expr, axis: int = -1) -> relax.Expr:
    """Pad a tensor's axis of hidden units to whole blocks with zeros."""
    x = c.emit(x)
    shape = shape_of(x)
    axis %= len(shape)
    missing = -shape[axis] % BLOCK
    if not missing:
        return x
    pads = np.zeros((len(shape), 2), np.int64)
    pads[axis, 1] = missing
    array = constant_array(x)
    return R.nn.pad(x, pads.ravel().tolist()) if array is None else constant(np.pad(array, pads))


def _in_blocks(c: NodeContext, x: relax.Expr, axis: int, order: Sequence[int]) -> relax.Expr:
    """Split a tensor's axis of hidden units into blocks and units, then permute the axes."""
    x = c.emit(_padded(c, x, axis))
    shape = shape_of(x)
    split = (*shape[:axis], shape[axis] // BLOCK, BLOCK, *shape[axis + 1 :])
    return R.permute_dims(R.reshape(x, split), list(order))


# -- products of the input ----------------------------------------------------------------


def _biases(c: NodeContext, cell: Cell, operands: dict[str, relax.Expr]) -> relax.Expr | None:
    """Return the products' bias, in blocks; a separate bias of the state becomes an operand."""
    if not c.has(_B):
        return None
    gates, units = len(cell.gates), c.shape(_R)[2]
    shape = (len(cell.functions), gates, units)
    values = c.known(_B)
    if values is None:
        halves = c.emit(R.split(c.input(_B), 2, axis=1))
        inputs, states = (R.reshape(relax.TupleGetItem(halves, i), shape) for i in range(2))
    else:
        inputs, states = (constant(half.reshape(shape)) for half in np.split(values, 2, axis=1))
    if cell.kind == "GRU" and cell.linear:
        operands["b"] = _in_blocks(c, states, 2, [0, 2, 1, 3])
        return _in_blocks(c, inputs, 2, [0, 2, 1, 3])
    if values is not None:
        return _in_blocks(c, constant(values.reshape(-1, 2, gates, units).sum(1)), 2, [0, 2, 1, 3])
    return _in_blocks(c, inputs + states, 2, [0, 2, 1, 3])


def _products(c: NodeContext, layer: Layer, bias: relax.Expr | None) -> relax.Expr:
    """Return the products of all steps' inputs with the weights, plus the bias."""
    gates, inputs = len(layer.cell.gates), c.shape()[2]
    weight = c.reshaped(_W, (layer.directions, gates, layer.units, inputs))
    weight = _in_blocks(c, weight, 2, [4, 0, 2, 1, 3])
    columns = layer.directions * layer.blocks * gates * BLOCK
    rows = R.reshape(_batch_second(c, c.input()), (layer.steps * layer.entries, inputs))
    product = R.matmul(rows, R.reshape(weight, (inputs, columns)))
    if bias is not None:
        product = product + R.reshape(bias, (columns,))
    return R.reshape(product, layer.shape_of("x"))
