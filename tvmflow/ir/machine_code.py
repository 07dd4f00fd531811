"""Machine code of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MachineCode:
    """Kernels that are functions of the host, in an object file."""

    content: bytes
    #: Their names in the file, by the kernels' names.
    symbols: Mapping[str, str]
    #: What a processor must have for them beyond what the plan needs.
    feature: str = ""
