"""Limits of tensors and modules, checked before work or memory is spent on them."""

from __future__ import annotations

import os
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from ..errors import ShapeError
from .tensors import TensorType
from .units import bytes_text

#: Kernels count a tensor's elements in 32 bits, as OpenCL counts work-items along an axis.
MOST_ELEMENTS = 2**31 - 1
#: Most axes of a tensor: the limit of NumPy 1.
MOST_DIMENSIONS = 32
#: Most shapes of a module: kernels of all of them are compiled before the file is there, and built
#: by a device's driver before the first call.
MOST_VARIANTS = 16
#: The largest finite float16.
LARGEST_HALF = 65504.0
#: Weights of at least this size stay outside the IR, as memory-mapped arrays in their own layout;
#: 8-bit ones are not multiplied by byte dot products.
LARGE_WEIGHT_BYTES = 128 << 20


@cache
def memory_bytes() -> int:
    """Return the memory of this machine in bytes, or the limit of its control group."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        allowed = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return physical
    return min(physical, int(allowed)) if allowed.isdecimal() else physical


def excess(kind: TensorType, *, in_memory: bool = True) -> str | None:
    """Return why a tensor is too large; ``None`` if it is not.

    Without ``in_memory`` (a weight in a file), it need not fit this machine's memory.
    """
    # NumPy knows bfloat16 only with another package.
    itemsize = 2 if kind.dtype == "bfloat16" else np.dtype(kind.dtype).itemsize
    needed = kind.elements * itemsize
    if kind.elements > MOST_ELEMENTS:
        return (
            f"{kind} has {kind.elements} elements ({bytes_text(needed)}), but kernels count up to "
            f"{MOST_ELEMENTS}"
        )
    if prod(extent or 1 for extent in kind.shape) > MOST_ELEMENTS:
        return f"{kind} has extents beside 0 that kernels do not count, up to {MOST_ELEMENTS}"
    if in_memory and needed > memory_bytes():
        return (
            f"{kind} needs {bytes_text(needed)}, but this machine has {bytes_text(memory_bytes())} "
            "of memory"
        )
    return None


def check_size(what: str, kind: TensorType, remedy: str, *, in_memory: bool = True) -> None:
    """Raise a `ShapeError` if a tensor is too large, or has too many axes.

    `what` begins the message, as "The input 'x'" does.
    """
    if (rank := len(kind.shape)) > MOST_DIMENSIONS:
        raise ShapeError(
            f"{what} has {rank} axes, expected at most {MOST_DIMENSIONS}.",
            remedy="Merge axes by a Reshape, and export the model again.",
        )
    if (reason := excess(kind, in_memory=in_memory)) is not None:
        raise ShapeError(f"{what} is too large: {reason}.", remedy=remedy)
