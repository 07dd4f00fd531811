"""Cases that measure memory and arithmetic: the kernels' launches, their work and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..agent.device import RemoteLaunch
from ..module.standalone.encode import CHANNEL_TYPES
from ..runtime.devices import DeviceInfo
from .bench import LAUNCH_S, Bench, Case, Program
from .kernels import CHAINS, LOCAL_VECTORS

#: Content of memory that is read, a vector of four, and the sum of its lanes.
_PATTERN = np.array([1, 2, 3, 4], "float32")
_SUM = float(_PATTERN.sum())
#: Steps of a work-item through a stream.
_STEPS = 32
#: Rows of a stream that are tried first.
LEAST_ROWS = 64
#: Least and most steps of loops.
_LEAST_STEPS, _MOST_STEPS = 64, 1 << 17
#: Largest sum of additions of 1 in half precision.
_MOST_HALF = 2048


@dataclass(frozen=True)
class Grid:
    """Work-items that fill a device."""

    #: Width and height of the work-groups of streams; 1 on CPUs.
    tile: int
    #: Work-items of loops.
    items: int

    @classmethod
    def of(cls, info: DeviceInfo, *, is_cpu: bool) -> Grid:
        """Return the grid for a device: on CPUs a work-item is a group, on GPUs 64 are.

        A GPU's compute unit holds at most 2,048 work-items (Adreno, Mali, NVIDIA).
        """
        tile = 1 if is_cpu or info.max_work_group_size < 64 else 8
        return cls(tile, max(1, info.compute_units) * (64 if is_cpu else 4096))

    @property
    def group(self) -> tuple[int]:
        """Return the work-group of loops."""
        return (self.tile**2,)


@dataclass(frozen=True)
class Place:
    """Vectors of four in a buffer or an image array."""

    dtype: str
    width: int
    height: int
    layers: int
    is_image: bool

    def __str__(self) -> str:
        kind = "images" if self.is_image else "buffers"
        return f"{self.dtype} {kind} of {self.width}x{self.height}x{self.layers}"

    @property
    def vector_bytes(self) -> int:
        """Return the bytes of a vector, or texel."""
        return 4 * np.dtype(self.dtype).itemsize

    @property
    def kernels(self) -> str:
        """Return the end of the names of kernels that read it."""
        half = "half_" * (self.dtype == "float16")
        return "image" if self.is_image else f"{half}buffer"

    def allocate(self, bench: Bench) -> int:
        """Allocate it, full of the pattern that kernels expect."""
        pattern = _PATTERN.astype(self.dtype).tobytes()
        size = (self.width, self.height, self.layers)
        if self.is_image:
            return bench.image(size, CHANNEL_TYPES[self.dtype], pattern)
        return bench.buffer(prod(size) * self.vector_bytes, pattern)


def stream(bench: Bench, program: Program, grid: Grid, place: Place, access: str) -> Case:
    """Return the case of reading, writing or copying all of a place once.

    What is written is checked by the kernel that reads.
    """
    # A work-item of a CPU takes a whole row, since each costs a call.
    steps = place.width if grid.tile == 1 else min(_STEPS, place.width // grid.tile)
    columns = place.width // steps
    rows, layers = place.height, place.layers
    if not place.is_image:
        rows, layers = rows * layers, 1
    built, memory = bench.build(program), place.allocate(bench)
    sums = bench.buffer(4 * columns * rows * layers)
    arguments: dict[str, tuple[int | bytes, ...]] = {"read": (memory, sums)}
    if access != "read":
        bench.remote.fill(memory, bytes(4))
        source = place.allocate(bench) if access == "copy" else _PATTERN.tobytes()
        arguments |= {"write": (memory, source), "copy": (source, memory)}

    def launch(amount: int, kernel: str = access) -> RemoteLaunch:
        some = (amount, 1) if amount <= rows else (rows, amount // rows)
        values = (*arguments[kernel], _int(steps))
        name = f"{kernel}_{place.kernels}"
        return RemoteLaunch(built, name, values, (columns, *some), (grid.tile, grid.tile, 1))

    each = steps * place.vector_bytes * (2 if access == "copy" else 1)
    return Case(
        f"{access} of {place}",
        launch,
        work=lambda amount: float(each * prod(launch(amount).global_size)),
        expected=lambda _: _SUM * steps,
        sums=sums,
        least=min(rows, LEAST_ROWS),
        most=rows * layers,
        check=lambda amount: launch(amount, "read"),
        target_s=LAUNCH_S,
    )


def reread(bench: Bench, program: Program, grid: Grid, place: Place) -> Case:
    """Return the case of reading all of a place, whose extents are powers of two, again and again.

    Work-items begin side by side, and go down the rows.
    """
    extents = _int(place.width), _int(place.height)
    case = (f"reread_{place.kernels}", place.allocate(bench), extents)
    return _loop(bench, program, grid, case, place.vector_bytes, _SUM)


def local(bench: Bench, program: Program, grid: Grid) -> Case:
    """Return the case of reading vectors of four from local memory."""
    start = bench.buffer(_PATTERN.nbytes * LOCAL_VECTORS, _PATTERN.tobytes())
    return _loop(bench, program, grid, ("read_local", start, ()), _PATTERN.nbytes, _SUM)


def arithmetic(
    bench: Bench, program: Program, grid: Grid, kernel: str, dtype: str, lanes: int
) -> Case:
    """Return the case of a kernel of multiply-adds, each of which is two operations."""
    # Chains begin with 0; then come the factor 1, the summand 1, and 0.
    numbers = np.repeat(np.array([0] * CHAINS + [1, 1, 0], dtype), lanes)
    start = bench.values(numbers)
    most = _MOST_HALF if kernel.endswith("half") else None
    each = CHAINS * lanes
    return _loop(bench, program, grid, (kernel, start, ()), 2 * each, each, most=most)


def live_values(bench: Bench, program: Program, grid: Grid, count: int) -> Case:
    """Return the case of a chain of multiply-adds through so many live vectors."""
    start = bench.values(np.repeat(np.arange(count, dtype="float32"), 4))
    # The last value, which moves through all others.
    total = 4.0 * count * (count - 1)
    return _loop(bench, program, grid, (f"live_{count}", start, (bytes(16),)), count, total, most=1)


def _loop(
    bench: Bench,
    program: Program,
    grid: Grid,
    kernel: tuple[str, int, tuple[bytes, ...]],
    work: float,
    sum_of_step: float,
    most: int | None = None,
) -> Case:
    """Return the case of a kernel whose work-items do so much in each step.

    ``kernel`` is its name, memory and further arguments; sums grow for ``most`` steps.
    """
    name, memory, further = kernel
    built, sums = bench.build(program), bench.buffer(4 * grid.items)

    def launch(steps: int) -> RemoteLaunch:
        arguments: list[int | bytes] = [memory, sums, _int(steps), *further]
        return RemoteLaunch(built, name, arguments, (grid.items,), grid.group)

    return Case(
        name,
        launch,
        work=lambda steps: float(work * grid.items * steps),
        expected=lambda steps: sum_of_step * min(steps, most or steps),
        sums=sums,
        least=_LEAST_STEPS,
        most=_MOST_STEPS,
    )


def _int(value: int) -> bytes:
    return value.to_bytes(4, "little")
