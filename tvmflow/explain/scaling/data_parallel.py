"""Data parallelism: several devices run the same network, each on its share of the samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...ir.tensors import TensorInfo
from ...module.blocked_layout import to_blocked
from ...module.values import Outputs, as_array, order_inputs

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...module.module import Module


class DataParallel:
    """The same network on several devices, called with a batch that is divided among them.

    The modules, one for each device, have the same network and batch.  Inputs that ``batched``
    names are split along their first axis, every device gets the whole of the others, and outputs
    are concatenated along their first axis.

    `InputError` if ``batched`` is empty or names an unknown input, or an output has no row for each
    sample (a mean over the batch, for example).
    """

    def __init__(self, modules: Sequence[Module], batched: Collection[str]):
        self.modules, self._batched = tuple(modules), frozenset(batched)
        first = self.modules[0]
        self.metadata = first.metadata
        names = [info.name for info in first.inputs]
        if not batched or not self._batched.issubset(names):
            raise InputError(
                f"Batches of {first.metadata['name']} cannot be spread over devices: some of its "
                f"inputs {', '.join(names)} were expected to be split, got "
                f"{', '.join(sorted(batched)) or 'none'}.",
                remedy="Name those whose first axis is the batch.",
            )
        count, batch = len(self.modules), batch_of(first, batched)
        for info in first.outputs:
            if not info.shape or info.shape[0] != batch or info.bounded_axis is not None:
                raise InputError(
                    f"Batches of {first.metadata['name']} cannot be spread over devices: its output"
                    f" {info.name!r} of shape {info.shape} has no row for each of {batch} samples.",
                    remedy="Measure one device, or export the network without what joins samples.",
                )
        #: Inputs with the shapes of the whole batch.
        self.inputs = tuple(
            _times(info, count) if info.name in self._batched else info for info in first.inputs
        )
        self._pool = ThreadPoolExecutor(count, "tvmflow-device")

    def prepare(self) -> Self:
        """Import the modules that opening needs."""
        self.modules[0].prepare()
        return self

    def open(self) -> Self:
        """Load the network onto each device, at the same time."""
        list(self._pool.map(lambda module: module.open(), self.modules))
        return self

    def __call__(self, inputs: Mapping[str, object]) -> Outputs:
        """Run the whole batch; errors are the same as those of a module."""
        values = order_inputs(self.inputs, (), inputs)
        shares = [
            np.split(as_array(info, to_blocked(info, value)), len(self.modules))
            if info.name in self._batched
            else [value] * len(self.modules)
            for info, value in zip(self.inputs, values, strict=True)
        ]
        each = zip(self.modules, zip(*shares, strict=True), strict=True)
        results = list(self._pool.map(lambda work: work[0].run(list(work[1])), each))
        joined = [np.concatenate(parts) for parts in zip(*results, strict=True)]
        return Outputs(results[0].names, joined)

    def close(self) -> None:
        """Close the modules on all devices."""
        self._pool.shutdown()
        for module in self.modules:
            module.close()


def batch_of(module: Module, batched: Collection[str]) -> int:
    """Return the number of samples in a module's call."""
    return next(info.shape[0] for info in module.inputs if info.name in batched)


def _times(info: TensorInfo, count: int) -> TensorInfo:
    logical = info.logical_shape and (count * info.logical_shape[0], *info.logical_shape[1:])
    return replace(info, shape=(count * info.shape[0], *info.shape[1:]), logical_shape=logical)
