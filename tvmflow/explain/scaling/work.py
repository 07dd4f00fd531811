"""What a module's call is made of, for predictions of several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...module.module import load
from ..profiling.measure import profile
from .communication import Work

if TYPE_CHECKING:
    from ...ir.tensors import TensorInfo
    from ...runtime.json_types import JsonMapping
    from ..profiling.record import Profile
    from .measure import Scaling
    from .sources import Network

#: Calls in which kernels are measured: their parts of a call are wanted only.
_RUNS = 5


def work_of(network: Network, measured: Scaling, device_index: int) -> tuple[int, Work]:
    """Return a batch and its call: the largest one that was measured, with the most threads.

    Kernels are measured here; the errors are those of `profile`.
    """
    alone = [point for point in measured.points if point.measured and point.devices == 1]
    point = max(alone, key=lambda point: (point.batch, point.threads or 0))
    return point.batch, _work(network.modules[point.batch], point.median_ms or 0.0, device_index)


def _work(path: Path, call_ms: float, device_index: int) -> Work:
    module = load(path, device=device_index)
    try:
        found = profile(module, runs=_RUNS, analyse=False)
        layers, between = layers_of(found, module.metadata)
        sizes = _size(module.inputs), _size(module.outputs)
        return Work(call_ms / 1e3, *sizes, found.weights_bytes, layers, between)
    finally:
        module.close()


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
    return sum(int(np.prod(info.shape)) * np.dtype(info.dtype).itemsize for info in infos)
