"""What a module's call is made of, for predictions of several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from ...errors import FarmError
from ...module.load import load
from ..profiling.measure import profile, weights_bytes
from .communication import Work
from .devices import FarmDevices

if TYPE_CHECKING:
    from ...ir.tensors import TensorInfo
    from ...runtime.json_types import JsonMapping
    from ..profiling.record import Profile
    from .devices import DevicePool
    from .measure import Scaling
    from .sources import Network

#: Calls in which kernels are measured: their parts of a call are wanted only.
_RUNS = 5


def work_of(network: Network, measured: Scaling, pool: DevicePool) -> tuple[int, Work]:
    """Return a batch and its call: the largest one that was measured, with the most threads.

    Kernels are measured here, on the pool's first device; the errors are those of `profile`.  A
    farm's are not: there a call is one layer, without the transfers that its link takes.
    """
    alone = [point for point in measured.points if point.measured and point.devices == 1]
    point = max(alone, key=lambda point: (point.batch, point.threads or 0))
    call_s = 1e-3 * (point.median_ms or 0.0)
    path = network.modules[point.batch]
    if isinstance(pool, FarmDevices):
        module = load(path)
        sizes = _size(module.inputs), _size(module.outputs)
        moved_s = sum(pool.link.seconds(size) for size in sizes)
        if moved_s >= call_s:
            raise FarmError(
                f"A call of {path.name} takes {1e3 * call_s:.3g} ms, and its inputs and outputs "
                f"{1e3 * moved_s:.3g} ms over the farm's link: the kernels' part of it is lost in "
                "the noise.",
                remedy="Measure a larger batch.",
            )
        return point.batch, Work(call_s - moved_s, *sizes, weights_bytes(module), (1.0,), ())
    with closing(load(path, device=pool.infos[0].index)) as module:
        found = profile(module, runs=_RUNS, analyse=False)
        layers, between = layers_of(found, module.metadata)
        sizes = _size(module.inputs), _size(module.outputs)
        return point.batch, Work(call_s, *sizes, found.weights_bytes, layers, between)


def layers_of(found: Profile, metadata: JsonMapping) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Time of each call of a primary function, and the bytes that later ones read of earlier ones.

    One layer where launches are not those of the module's plan.
    """
    starts = found.step_starts()
    if not starts or not found.kernels:
        return (1.0,), ()
    layers = [
        sum(k.median_us for k in found.kernels if begin <= k.start_us < end)
        for begin, end in pairwise([*starts, inf])
    ]
    if sum(layers) <= 0:
        return (1.0,), ()
    crossing: Counter[int] = Counter()
    for tensor in metadata["memory"]["tensors"]:
        crossing.update(dict.fromkeys(range(tensor["first"], tensor["last"]), tensor["bytes"]))
    return tuple(layers), tuple(crossing[step] for step in range(len(layers) - 1))


def _size(infos: Sequence[TensorInfo]) -> int:
    """Bytes of tensors."""
    return sum(info.size_bytes for info in infos)
