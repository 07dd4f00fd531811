"""Machine code of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MachineCode:
    """Kernels that are functions of the host, in an object file."""

    content: bytes
    #: Symbols in the file, by the kernels' names.
    symbols: Mapping[str, str]
    #: Processor feature that the code needs in addition to the plan's.
    feature: str = ""
