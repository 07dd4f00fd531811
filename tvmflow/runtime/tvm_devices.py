"""Devices as TVM numbers them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tvm


def exists(device: tvm.runtime.Device) -> bool:
    """Return whether a TVM device and its driver exist."""
    # The CUDA runtime raises an error if there is no driver.
    with suppress(RuntimeError):
        return bool(device.exist)
    return False


def cuda_gpus() -> Iterator[tvm.runtime.Device]:
    """Yield the CUDA devices; none where TVM's CUDA runtime or the driver is missing."""
    import tvm

    return takewhile(exists, map(tvm.cuda, count()))
