"""Boxes in the lanes of a vector, for CPUs: a coordinate of 16 boxes is computed at once.

Coordinates of a box are neighbours in memory, which four vectors read as they are; two steps of
shuffles make of them a vector for each coordinate, and of results what is written::

    x0 y0 u0 v0  x1 y1 u1 v1        x0 x1 y0 y1                x0 x1 x2 x3
    x2 y2 u2 v2  x3 y3 u3 v3   ->   u0 u1 v0 v1, x2 x3 ..  ->  y0 y1 y2 y3  ..

A sample that has fewer boxes than a vector lanes is computed box by box, as is what is not valid;
else the last vector begins earlier, and some boxes are computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from ..ir.expressions import uses
from ..ir.scope import is_texture
from .box_code import COORDINATES, Code, Expr, choice, is_of_box
from .box_items import box_statement
from .box_loops import loop
from .box_nests import Nest, Output, emit, shared_test
from .masked_terms import replaced
from .statements import sequence

#: Numbers that vectors are read of; TVM's OpenCL code is wrong for vectors of bytes.
_FLOATS = ("float", "bfloat")


def stretch(nest: Nest, outer: Sequence[Expr], begin: Expr, length: Expr, lanes: int) -> tirx.Stmt:
    """The boxes of a sample from ``begin`` on."""

    def single(first: Expr) -> tirx.Stmt:
        return loop(
            length - first,
            tirx.ForKind.SERIAL,
            lambda i: box_statement(nest, [*outer, begin + first + i]),
        )

    if lanes == 1 or not is_vector(nest):
        return single(tirx.const(0, "int32"))
    code, counted = Code(lambda code, load: load), length
    if nest.limit() is not None:
        # A name keeps what is read out of the bounds of loops, where TVM's OpenCL code is wrong.
        counted = code.name("counted", tirx.Max(tirx.Min(nest.limit_of(outer) - begin, length), 0))
    whole = counted >= lanes
    vectors = tirx.Select(whole, tirx.ceildiv(counted, lanes), 0)

    def vector(i: tirx.Var) -> tirx.Stmt:
        first = begin + tirx.Min(i * lanes, counted - lanes)
        return _vector(nest, [*outer, first], lanes)

    code.statements += [
        loop(vectors, tirx.ForKind.SERIAL, vector),
        single(tirx.Select(whole, counted, 0)),
    ]
    return code.finish()


def is_vector(nest: Nest) -> bool:
    """Whether neighbours are neighbours in all that is read and written, and nothing is lazy."""
    place, limited = nest.box[-1], nest.limit() is not None
    for out in nest.outputs:
        if is_texture(out.tensor.scope()) or (out.row is not None and not limited):
            return False
        if out.row is not None and not _follows(out.row, place):
            return False
    values = [value for out in nest.outputs for value in out.values]
    if limited:
        values = [value.args[1] for value in values]
    elif shared_test(values) is not None:
        values = [part for value in values for part in value.args[1:]]
    lazy: list[Any] = []
    tvm_ffi.structural_walk(
        values, (Call, lambda node: lazy.append(node) if choice(node) else None)
    )
    return not lazy and all(_is_vector(load, place) for load in _loads(values))


def _loads(expressions: Any) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(expressions, (TensorLoad, found.append))
    return found


def _is_vector(load: TensorLoad, place: tirx.Var) -> bool:
    """Whether a load is of neighbours, or of the same for all of them."""
    if not any(uses(index, place) for index in load.indices):
        return True
    if is_texture(load.source.scope()) or not str(load.source.dtype).startswith(_FLOATS):
        return False
    rest = load.indices[:-1] if is_of_box(load) else load.indices
    return _follows(rest[-1], place) and not any(uses(index, place) for index in rest[:-1])


def _follows(index: Expr, place: tirx.Var) -> bool:
    """Whether an index counts with a variable."""
    return not uses(Analyzer().simplify(index - place), place)


def _vector(nest: Nest, box: Sequence[Expr], lanes: int) -> tirx.Stmt:
    """What computes boxes from one on."""
    lane = tirx.Var("lane", "int32")
    *outer, first = box
    before: list[tirx.Stmt] = []
    behind: list[tirx.Stmt] = []

    def read(code: Code, load: TensorLoad) -> Expr:
        if not is_of_box(load) or not uses(load.indices[-2], lane):
            return load
        copy = code.copied(load)
        if copy is None:
            copy = code.private(f"{load.source.name}_boxes", (COORDINATES, lanes))
            start = [replaced(index, [(lane, tirx.const(0, "int32"))]) for index in load.indices]
            before.extend(_gather(load.source, start[:-1], copy, lanes))
            code.copies.append((load.source, list(load.indices[:-1]), copy))
        return tirx.BufferLoad(copy, [load.indices[-1], lane])

    def write(code: Code, out: Output, values: list[Expr]) -> None:
        at = out.place([*outer, first + lane]) if out.row is None else [code.lift(out.row)]
        if not out.whole:
            value = values[0].astype(out.tensor.dtype)
            code.statements.append(tirx.BufferStore(out.tensor, value, at))
            return
        result = code.private(f"{out.tensor.name}_boxes", (COORDINATES, lanes))
        for corner, value in enumerate(values):
            code.statements.append(
                tirx.BufferStore(result, value.astype("float32"), [corner, lane])
            )
        start = [replaced(index, [(lane, tirx.const(0, "int32"))]) for index in at]
        behind.extend(_scatter(out.tensor, start, result, lanes))

    code = Code(read, lane=lane, lanes=lanes)
    outputs = nest.at([*outer, first + lane])
    test = shared_test([value for out in outputs for value in out.values])
    if test is not None and nest.limit() is None:
        # What is not valid is computed, too, and left out.
        if not all(_is_vector(load, nest.box[-1]) for load in _loads(nest.test())):
            test = _tested(test, lane, code, before)
        outputs = _with(outputs, lambda value: tirx.Select(test, *value.args[1:]))
    elif test is not None:
        outputs = _with(outputs, lambda value: value.args[1])
    emit(code, outputs, write)
    body = tirx.For(
        lane, tirx.const(0, "int32"), tirx.const(lanes, "int32"), tirx.ForKind.VECTORIZED,
        sequence(code.statements),
    )  # fmt: skip
    return sequence([*code.memory, *before, body, *behind])


def _with(outputs: Sequence[Output], value: Callable[[Expr], Expr]) -> list[Output]:
    """Outputs with other values."""
    return [Output(out.tensor, [value(v) for v in out.values], out.row) for out in outputs]


def _tested(test: Expr, lane: tirx.Var, code: Code, before: list[tirx.Stmt]) -> Expr:
    """A condition of lanes, computed one by one ahead of the vector."""
    flags = code.private("chosen", (code.lanes,))
    for number in range(code.lanes):
        of_lane = replaced(test, [(lane, tirx.const(number, "int32"))])
        before.append(tirx.BufferStore(flags, of_lane.astype("float32"), [number]))
    return flags[lane] != 0


# -- shuffles -----------------------------------------------------------------------------


def _gather(source: Any, first: list[Expr], copy: Any, lanes: int) -> list[tirx.Stmt]:
    """Copy neighbouring boxes, a vector for each coordinate."""
    names = _Names()
    wide = f"float32x{lanes}"
    parts = [
        names.name(
            "part",
            tirx.BufferLoad(source, [*first, _ramp(lanes * part, lanes, _dtype(first))]).astype(
                wide
            ),
        )
        for part in range(COORDINATES)
    ]
    for half in range(COORDINATES // 2):
        pairs = [
            names.name("pair", _shuffle(parts[2 * p : 2 * p + 2], _pair_lanes(lanes, half)))
            for p in range(COORDINATES // 2)
        ]
        for corner in (2 * half, 2 * half + 1):
            places = _corner_lanes(lanes, corner - 2 * half)
            value = _shuffle(pairs, places)
            names.statements.append(
                tirx.BufferStore(copy, value, [tirx.const(corner, "int32"), _ramp(0, lanes)])
            )
    return names.statements


def _pair_lanes(lanes: int, half: int) -> list[int]:
    """Of two vectors of boxes: two coordinates of each box, the first ones before the others."""
    boxes = range(2 * lanes // COORDINATES)
    return [COORDINATES * box + 2 * half + corner for corner in range(2) for box in boxes]


def _corner_lanes(lanes: int, corner: int) -> list[int]:
    """Of two such results: one coordinate."""
    half = lanes // 2
    return [corner * half + lane for lane in range(half)] + [
        lanes + corner * half + lane for lane in range(half)
    ]


def _scatter(target: Any, first: list[Expr], result: Any, lanes: int) -> list[tirx.Stmt]:
    """Write neighbouring boxes, of which there is a vector for each coordinate."""
    names = _Names()
    corners = [
        names.name("corner", tirx.BufferLoad(result, [tirx.const(k, "int32"), _ramp(0, lanes)]))
        for k in range(COORDINATES)
    ]
    wide = f"{target.dtype}x{lanes}"
    for half in range(2):
        boxes = range(half * lanes // 2, (half + 1) * lanes // 2)
        both = [place for box in boxes for place in (box, lanes + box)]
        pairs = [names.name("pair", _shuffle(corners[c : c + 2], both)) for c in (0, 2)]
        for quarter in range(2):
            begin = quarter * lanes // 2
            places = [
                place
                for pair in range(begin, begin + lanes // 2, 2)
                for place in (pair, pair + 1, lanes + pair, lanes + pair + 1)
            ]
            at = _ramp((2 * half + quarter) * lanes, lanes, _dtype(first))
            value = _shuffle(pairs, places).astype(wide)
            names.statements.append(tirx.BufferStore(target, value, [*first, at]))
    return names.statements


class _Names:
    """Statements that name values."""

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []

    def name(self, name: str, value: Expr) -> tirx.Var:
        var = tirx.Var(name, value.ty)
        self.statements.append(tirx.Bind(var, value))
        return var


def _ramp(first: int, lanes: int, dtype: str = "int32") -> Expr:
    return tirx.Ramp(tirx.const(first, dtype), tirx.const(1, dtype), lanes)


def _shuffle(vectors: Sequence[Expr], places: Sequence[int]) -> Expr:
    return tirx.Shuffle(list(vectors), [tirx.const(place, "int32") for place in places])


def _dtype(index: Sequence[Expr]) -> str:
    """Of the last one: indices of a tensor are of one dtype."""
    return str(index[-1].ty.dtype)
