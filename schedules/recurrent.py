"""Recurrent layers (ONNX's LSTM, GRU and RNN) as a scan over the steps, in one function.

The products of all inputs are one matrix product, computed before the scan and passed as an
operand.  For D directions, B batch entries, H hidden units and the gates G of a cell
(:mod:`.rnn_cells`), in blocks of 16 units, ``H' = ceil(H / 16)``, of which the last may extend past
H::

    x[T, B, D, H', G, 16]     W · input, with biases
    r[D, H', K, G, 16]        the weights of the state, K = H

and optionally ``b`` (biases within the reset), ``p`` (peepholes), ``h``, ``c`` (initial states) and
``lengths`` (of sequences).  For each direction and entry, step by step::

    s[g, j] = Σ over k < H of r[d, j // 16, k, g, j % 16] * h[k]        for each gate g and unit j
    h, c    = cell(x[t, b, d], s, h, c)
    y[t, d, b] = h

and at the end ``y_h[d, b] = h``, ``y_c[d, b] = c``.  A step at or beyond its sequence's length
changes no state, and its ``y`` is 0; a reversed direction therefore begins at a sequence's last
step.

Steps depend on each other: only directions, entries and units are parallel.  A CPU's thread takes
one direction of some entries; vectors run along units, and a block of gates × units stays in
registers while k runs.  On a GPU a work-group takes them, and its items share the units, with the
state in local memory and two barriers a step (before and after the next state replaces the last
one; one more between a GRU's phases): with few directions and entries most of a GPU is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from math import ceil, prod

from tvm import s_tir, tirx
from tvm.tirx import Buffer, Expr

from ..devices.target import Device
from ..ir.expressions import OPAQUE
from .boxes.builder import Statements, arithmetic, number, schedule_of
from .common import FAMILY, Workload
from .family import GROUP_FITS, Declined, Value, knob, only_block
from .rnn_cells import PEEPHOLES, RESET, STATE, Cell, Values
from .sizes import LOCAL_BYTES, largest_divisor, tile_choices

NAME = "recurrent"
ORDER = 450

#: Hidden units in a block.
BLOCK = 16
#: Annotations that hold the cell, the names of the function's parameters, and the direction.
_CELL, _OPERANDS, _REVERSE = "tvmflow.cell", "tvmflow.operands", "tvmflow.reverse"
#: Name of the memory for an LSTM's cell state, and prefix of the names of memory for the states
#: after a step, which items compute while others still read those before it.
_CELL_STATE, _NEXT = "cell", "next_"


# -- what it computes ---------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A recurrent layer: its cell, extents, and the names of its parameters."""

    cell: Cell
    steps: int
    entries: int
    units: int
    #: Whether the first direction runs from the last step to the first.
    reverse: bool
    dtype: str
    #: Optional inputs besides ``x`` and ``r``, out of ``b p h c lengths``.
    operands: tuple[str, ...]
    #: Outputs, out of ``y y_h y_c``.
    results: tuple[str, ...]

    @property
    def directions(self) -> int:
        """Return the number of directions, one or two."""
        return len(self.cell.functions)

    @property
    def blocks(self) -> int:
        """Return the number of blocks of units."""
        return ceil(self.units / BLOCK)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of all parameters of the function."""
        return ("x", "r", *self.operands, *self.results)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter."""
        gates, blocks, padded = len(self.cell.gates), self.blocks, self.blocks * BLOCK
        both = (self.directions, self.entries)
        return {
            "x": (self.steps, self.entries, self.directions, blocks, gates, BLOCK),
            "r": (self.directions, blocks, self.units, gates, BLOCK),
            "b": (self.directions, blocks, gates, BLOCK),
            "p": (self.directions, blocks, len(PEEPHOLES), BLOCK),
            "h": (*both, padded),
            "c": (*both, padded),
            "lengths": (self.entries,),
            "y": (self.steps, *both, self.units),
            "y_h": (*both, self.units),
            "y_c": (*both, self.units),
        }[name]

    def dtype_of(self, name: str) -> str:
        """Return the dtype of a parameter."""
        return "int32" if name == "lengths" else self.dtype


def define(layer: Layer) -> tirx.PrimFunc:
    """Define a layer as loops over directions, entries, steps, units and the state, one by one.

    The function has the layer's parameters, in their order.
    """
    names = layer.parameters
    tensors = [tirx.decl_buffer(layer.shape_of(name), layer.dtype_of(name), name) for name in names]
    memory = _state(layer, 1, "local")
    annotations: dict[str, str | int] = {
        FAMILY: NAME, _CELL: layer.cell.to_json(), _OPERANDS: " ".join(names),
        _REVERSE: int(layer.reverse),
    }  # fmt: skip
    code = Statements()
    scan = _Scan(code, layer, dict(zip(names, tensors, strict=True)), memory)
    with (
        code.block("root"),
        code.block(NAME, list(memory.values()), annotations),
        code.loop("direction", layer.directions) as direction,
        code.loop("entry", layer.entries) as entry,
    ):
        scan.write(direction, entry)
    function = tirx.PrimFunc(tensors, code.finish())
    return function.with_attrs({"op_pattern": OPAQUE, "tirx.noalias": True})


def _state(layer: Layer, entries: int, scope: str) -> dict[str, Buffer]:
    """Return memory for the states before and after a step, for a number of entries."""
    shape, dtype = (entries, layer.blocks * BLOCK), arithmetic(layer.dtype)
    states = [STATE, _CELL_STATE] if layer.cell.kind == "LSTM" else [STATE]
    names = [*states, *(_NEXT + state for state in states)]
    if len(layer.cell.phases) > 1:
        names.append(RESET)
    return {name: tirx.decl_buffer(shape, dtype, name, scope=scope) for name in names}


# -- its knobs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """The kind of cell, and the extents."""

    #: ``LSTM``, ``GRU`` or ``RNN``.
    cell: str
    directions: int
    steps: int
    entries: int
    units: int
    _: KW_ONLY
    #: Sums that are computed in the same loop, one for each gate.
    sums: int
    #: Bytes of state for one entry.
    state_bytes: int


@dataclass(frozen=True)
class Knobs:
    """Knobs of the distribution over threads, items and vectors."""

    entries: int = knob("Batch entries that a thread, or a group, takes: they share the weights.")
    lanes: int = knob("Hidden units of a vector.")
    tile: int = knob("Vectors that an item computes at a time.")
    group_size: int = knob("Most work-items of a group, which has no more than tiles; 1 on a CPU.")


def _vectors(shape: Shape, lanes: int) -> int:
    return ceil(shape.units / lanes)


CONSTRAINTS = {
    **GROUP_FITS,
    "entries divides the batch.": lambda k, s, d: s.entries % k.entries == 0,
    "lanes divides a block of units.": lambda k, s, d: k.lanes <= BLOCK and BLOCK % k.lanes == 0,
    "tile divides the vectors of all units.": lambda k, s, d: _vectors(s, k.lanes) % k.tile == 0,
    "group_size is 1 on a CPU.": lambda k, s, d: not d.is_cpu or k.group_size == 1,
    "On a GPU, the state must fit local memory.": lambda k, s, d: (
        d.is_cpu or k.entries * s.state_bytes <= LOCAL_BYTES
    ),
}

#: Sums in registers of a CPU's thread, and of a GPU's item; parts that keep a CPU's threads busy.
CPU_SUMS, GPU_SUMS, CPU_PARTS = 8, 8, 2


def heuristic(shape: Shape, device: Device) -> Knobs:
    """Return block-wide vectors on CPUs, and an item for each unit on GPUs.

    Entries share weights, as far as registers allow and all threads have work.  On GPUs, an item
    takes more units if there are more of them than items in a group; this is assumed, not measured.
    """
    if device.is_cpu:
        most = max(1, min(4, shape.entries * shape.directions // CPU_PARTS))
        entries, lanes = largest_divisor(shape.entries, most), BLOCK
        tile = CPU_SUMS // (shape.sums * entries)
        return Knobs(entries, lanes, largest_divisor(_vectors(shape, lanes), max(1, tile)), 1)
    most = min(GPU_SUMS // shape.sums, LOCAL_BYTES // shape.state_bytes)
    entries = largest_divisor(shape.entries, max(1, most))
    lanes, size = 1, min(4 * device.group_size, device.max_group_size)
    while lanes < 4 and _vectors(shape, lanes) > size:
        lanes *= 2
    return Knobs(entries, lanes, 1, size)


def space(shape: Shape, device: Device) -> dict[str, tuple[Value, ...]]:
    """Return few entries and vectors, and groups in powers of 2."""
    sizes = (32, 64, 128, 256, 512, 1024)
    return {
        "entries": tuple(e for e in (1, 2, 4, 8) if shape.entries % e == 0),
        "lanes": (8, 16) if device.is_cpu else (1, 2, 4),
        "tile": tile_choices(shape.units, 4),
        "group_size": (1,) if device.is_cpu else sizes,
    }


# -- how it is scheduled ------------------------------------------------------------------


def match(workload: Workload) -> Shape:
    """Return the shape of a layer, which is a function by itself."""
    layer, _ = _layer_of(workload)
    state = _state(layer, 1, "shared").values()
    state_bytes = sum(prod(map(int, buffer.shape)) * buffer.dtype.itemsize for buffer in state)
    if not workload.is_cpu and state_bytes > LOCAL_BYTES:
        raise Declined(f"its state of {state_bytes} bytes does not fit local memory")
    sums = max(len(phase) for phase in layer.cell.phases)
    return Shape(
        layer.cell.kind, layer.directions, layer.steps, layer.entries, layer.units,
        sums=sums, state_bytes=state_bytes,
    )  # fmt: skip


def apply(workload: Workload, knobs: Knobs) -> s_tir.Schedule:
    """Write a kernel in which a part or a work-group takes one direction of some entries."""
    layer, tensors = _layer_of(workload)
    cpu, code = workload.is_cpu, Statements()
    memory = {} if cpu else _state(layer, knobs.entries, "shared")
    parts = layer.entries // knobs.entries
    count = layer.directions * parts

    def write(part: Expr, item: Expr | None) -> None:
        state = memory
        if cpu:
            state = _state(layer, knobs.entries, "local")
            for buffer in state.values():
                code.add(tirx.AllocBuffer(buffer))
        scan = _Scan(code, layer, tensors, state, knobs, item)
        direction = code.name("direction", tirx.truncdiv(part, number(parts)))
        first = code.name("first", tirx.truncmod(part, number(parts)) * knobs.entries)
        scan.write(direction, first)

    with code.block("root"):
        if cpu:
            with code.parts(NAME, count, workload.target.is_gpu_kernel) as part:
                write(part, None)
        else:
            shared = list(memory.values())
            # Use no more items than tiles: if items take no turns, there is no test.
            tiles = ceil(layer.units / knobs.lanes) // knobs.tile
            knobs = replace(knobs, group_size=min(knobs.group_size, tiles))
            with code.items(NAME, count, knobs.group_size, shared) as (group, item):
                write(group, item)
    return schedule_of(workload.function, code.finish())


def _layer_of(workload: Workload) -> tuple[Layer, dict[str, Buffer]]:
    """Return the layer that a function computes, and its parameters by name."""
    anchor = only_block(workload, NAME)
    annotations = workload.sch.get(anchor).annotations
    names = str(annotations[_OPERANDS]).split()
    tensors = dict(zip(names, workload.function.params, strict=True))
    steps, entries, *_ = map(int, tensors["x"].shape)
    layer = Layer(
        Cell.from_json(str(annotations[_CELL])), steps, entries, int(tensors["r"].shape[2]),
        bool(annotations[_REVERSE]), str(tensors["x"].dtype),
        tuple(name for name in names[2:] if not name.startswith("y")),
        tuple(name for name in names if name.startswith("y")),
    )  # fmt: skip
    return layer, tensors


@dataclass
class _Scan:
    """Writer of all steps of one direction of some entries.

    The default knobs give the definition: one entry, one unit at a time.
    """

    code: Statements
    layer: Layer
    tensors: dict[str, Buffer]
    #: Memory by name, as returned by `_state`.
    memory: dict[str, Buffer]
    knobs: Knobs = field(default_factory=lambda: Knobs(1, 1, 1, 1))
    #: The item's index in a group that shares the units.
    item: Expr | None = None

    def write(self, direction: Expr, first: Expr) -> None:
        """Write the steps of a direction, for entries starting at ``first``."""
        code, layer = self.code, self.layer
        self.direction = direction
        self.entries = [first + entry for entry in range(self.knobs.entries)]
        with self._tiles() as tile:
            for unit in tile:
                self._begin(unit)
        self._barrier()
        with code.loop("step", layer.steps) as step:
            self.time = code.name("time", self._time(step))
            *before, last = layer.cell.phases
            for phase in before:
                self._phase(phase, self._reset)
            self._phase(last, self._update)
            with self._tiles() as tile:
                for unit in tile:
                    self._advance(unit)
            self._barrier()
        if not {"y_h", "y_c"} & self.tensors.keys():
            return
        with self._tiles() as tile:
            for unit in tile:
                self._end(unit)

    # -- loops ----------------------------------------------------------------------------

    @contextmanager
    def _tiles(self) -> Iterator[list[Expr]]:
        """Open loops over all units, tile by tile; yield the first unit of each vector."""
        code, knobs = self.code, self.knobs
        tiles = ceil(self.layer.units / knobs.lanes) // knobs.tile
        if self.item is None:
            with code.loop("tile", tiles) as tile:
                yield self._units(tile)
            return
        with code.loop("turn", ceil(tiles / knobs.group_size)) as turn:
            tile = code.name("tile", turn * knobs.group_size + self.item)
            whole = tiles % knobs.group_size == 0
            with nullcontext() if whole else code.when(tile < tiles):
                yield self._units(tile)

    def _units(self, tile: Expr) -> list[Expr]:
        lanes, count = self.knobs.lanes, self.knobs.tile
        return [(tile * count + vector) * lanes for vector in range(count)]

    def _lanes(self) -> AbstractContextManager[Expr]:
        """Open a loop over the units of a vector."""
        return self.code.lane_loop(self.knobs.lanes)

    def _barrier(self) -> None:
        """Write a barrier, so that all items see what each one wrote."""
        if self.item is not None:
            self.code.barrier()

    def _time(self, step: Expr) -> Expr:
        """Return the time in the sequence at which a step computes."""
        back = number(self.layer.steps - 1) - step
        if self.layer.directions == 2:
            return tirx.Select(self.direction == 0, step, back)
        return back if self.layer.reverse else step

    # -- tensors --------------------------------------------------------------------------

    def _read(self, name: str, *place: Expr | int) -> Expr:
        tensor = self.tensors[name]
        return tirx.BufferLoad(tensor, list(place)).astype(arithmetic(tensor.dtype))

    def _in_block(self, unit: Expr, lane: Expr) -> tuple[Expr, Expr]:
        """Return a unit's block and its index there; vectors do not cross blocks."""
        block, place = (f(unit, number(BLOCK)) for f in (tirx.truncdiv, tirx.truncmod))
        return block, place + lane

    def _store(self, name: str, unit: Expr, value: Callable[[Expr], Expr], *place: Expr) -> None:
        """Write a vector of a result, except units after the last."""
        if name not in self.tensors:
            return
        code, tensor, lanes = self.code, self.tensors[name], self.knobs.lanes
        units = self.layer.units

        def write(lane: Expr) -> None:
            code.store(tensor, value(lane).astype(tensor.dtype), *place, unit + lane)

        if units % lanes == 0:
            with self._lanes() as lane:
                write(lane)
            return
        with code.when(unit + lanes <= units), self._lanes() as lane:
            write(lane)
        with code.when(unit + lanes > units), code.loop("lane", units % lanes) as lane:
            write(lane)

    # -- steps ----------------------------------------------------------------------------

    def _begin(self, unit: Expr) -> None:
        """Initialise the state before the first step."""
        code, zero = self.code, tirx.const(0, arithmetic(self.layer.dtype))
        for index, entry in enumerate(self.entries):
            with self._lanes() as lane:
                for name, memory in (("h", STATE), ("c", _CELL_STATE)):
                    if memory not in self.memory:
                        continue
                    there = name in self.tensors
                    value = self._read(name, self.direction, entry, unit + lane) if there else zero
                    code.store(self.memory[memory], value, index, unit + lane)

    def _advance(self, unit: Expr) -> None:
        """Write the results of a step, and move its state to that before the next step."""
        for index, entry in enumerate(self.entries):
            for name in (STATE, _CELL_STATE):
                if name in self.memory:
                    with self._lanes() as lane:
                        place = (index, unit + lane)
                        self.code.store(self.memory[name], self.memory[_NEXT + name][place], *place)

            def value(lane: Expr, index: int = index, entry: Expr = entry) -> Expr:
                h = self.memory[_NEXT + STATE][index, unit + lane]
                if "lengths" not in self.tensors:
                    return h
                return tirx.Select(self._counts(entry), h, tirx.const(0, h.ty.dtype))

            self._store("y", unit, value, self.time, self.direction, entry)

    def _end(self, unit: Expr) -> None:
        """Write the state after the last step."""
        for name, memory in (("y_h", STATE), ("y_c", _CELL_STATE)):
            for index, entry in enumerate(self.entries):

                def value(lane: Expr, memory: str = memory, index: int = index) -> Expr:
                    return self.memory[memory][index, unit + lane]

                self._store(name, unit, value, self.direction, entry)

    def _phase(
        self, phase: dict[str, str], then: Callable[[Expr, int, Expr, Values, Expr], None]
    ) -> None:
        """Sum some gates of all units, and compute what follows from the sums."""
        code, layer, knobs = self.code, self.layer, self.knobs
        gates = layer.cell.gates
        with self._tiles() as tile:
            shape = (len(tile), len(self.entries), len(gates), knobs.lanes)
            sums = code.alloc("sums", shape, arithmetic(layer.dtype))
            for vector, unit in enumerate(tile):
                self._clear(sums, vector, unit, phase)
            with code.loop("k", layer.units) as k:
                for vector, unit in enumerate(tile):
                    for gate, source in phase.items():
                        self._multiply(sums, vector, unit, gates.index(gate), source, k)
            for vector, unit in enumerate(tile):
                for index, entry in enumerate(self.entries):
                    with self._lanes() as lane:
                        values = self._values(sums, vector, unit, index, entry, lane)
                        then(unit, index, entry, values, lane)
        self._barrier()

    def _clear(self, sums: Buffer, vector: int, unit: Expr, phase: dict[str, str]) -> None:
        """Initialise sums with their bias, or zero."""
        for gate in phase:
            which = self.layer.cell.gates.index(gate)
            for index in range(len(self.entries)):
                with self._lanes() as lane:
                    block, place = self._in_block(unit, lane)
                    first = tirx.const(0, sums.dtype)
                    if "b" in self.tensors:
                        first = self._read("b", self.direction, block, which, place)
                    self.code.store(sums, first, vector, index, which, lane)

    def _multiply(
        self, sums: Buffer, vector: int, unit: Expr, which: int, source: str, k: Expr
    ) -> None:
        """Add a product to the sums of a gate: a row of weights for all entries."""
        memory = self.memory[source]
        with self._lanes() as lane:
            block, place = self._in_block(unit, lane)
            weight = self._read("r", self.direction, block, k, which, place)
            for index in range(len(self.entries)):
                total = sums[vector, index, which, lane] + weight * memory[index, k]
                self.code.store(sums, total, vector, index, which, lane)

    def _values(
        self, sums: Buffer, vector: int, unit: Expr, index: int, entry: Expr, lane: Expr
    ) -> Values:
        """Return the values from which a unit of an entry is computed."""
        gates, cell = self.layer.cell.gates, self.memory.get(_CELL_STATE)
        block, place = self._in_block(unit, lane)

        def kept(gate: str) -> Expr:
            return sums[vector, index, gates.index(gate), lane]

        def keep(gate: str, value: Expr) -> Expr:
            self.code.store(sums, value, vector, index, gates.index(gate), lane)
            return kept(gate)

        def peephole(gate: str) -> Expr:
            return self._read("p", self.direction, block, PEEPHOLES.index(gate), place)

        return Values(
            x=lambda gate: self._read(
                "x", self.time, entry, self.direction, block, gates.index(gate), place
            ),
            s=kept,
            peephole=peephole if "p" in self.tensors else None,
            h=self.memory[STATE][index, unit + lane],
            c=cell[index, unit + lane] if cell is not None else None,
            direction=self.direction,
            keep=keep,
        )

    def _reset(self, unit: Expr, index: int, _: Expr, values: Values, lane: Expr) -> None:
        """Store the state times the reset gate."""
        value = self.layer.cell.reset(values)
        self.code.store(self.memory[RESET], value, index, unit + lane)

    def _update(self, unit: Expr, index: int, entry: Expr, values: Values, lane: Expr) -> None:
        """Store the state after the step; it does not change after a sequence's end."""
        h, c = self.layer.cell.step(values)
        if "lengths" in self.tensors:
            counts = self._counts(entry)
            h = tirx.Select(counts, h, values.h)
            c = c if c is None else tirx.Select(counts, c, values.c)
        self.code.store(self.memory[_NEXT + STATE], h, index, unit + lane)
        if c is not None:
            self.code.store(self.memory[_NEXT + _CELL_STATE], c, index, unit + lane)

    def _counts(self, entry: Expr) -> Expr:
        """Return whether the step is within an entry's sequence."""
        return self.time < self.tensors["lengths"][entry]
