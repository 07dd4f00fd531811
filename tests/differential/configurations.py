"""Configurations that networks are compiled for: columns of the table, and random options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Configuration:
    """Arguments of `tvmflow.compile`.

    Parameters
    ----------
    column
        Column of the table of cells; it determines which code is generated.
    options
        Random options next to the column, by name:

        - ``knobs``: seed of random knobs from each family's space;
        - ``algorithms``: one algorithm for all convolutions that support it;
        - ``keep_layout``: the form of all inputs and outputs that support it;
        - ``format``: ``standalone``; with ``both, opencl`` and ``both, cpu`` the library has
          kernels for both backends, and the named one runs;
        - ``flow``: control flow around some nodes (`flow.FLOWS`);
        - ``accumulate``: ``mixed`` or ``fp16``.
    """

    column: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the column's arguments, without the options'."""
        return dict((COLUMNS | CUDA)[self.column])

    @property
    def half(self) -> bool:
        return self.arguments.get("dtype") == "fp16"

    @property
    def longest_in_half(self) -> int:
        """Return the number of products in the longest sum in half precision, or 0."""
        return LONGEST_IN_HALF.get(self.options.get("accumulate", "fp32"), 0)

    def __str__(self) -> str:
        return ", ".join([self.column, *(f"{k}={v}" for k, v in self.options.items())])


COLUMNS: dict[str, dict[str, str]] = {
    "llvm": {"target": "llvm"},
    "auto": {"target": "opencl"},
    "auto fp16": {"target": "opencl", "dtype": "fp16"},
    # PoCL has no arithmetic in halves, which is an option of its own.
    "adreno texture": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "adreno texture fp16": {
        "target": "opencl", "device": "adreno", "storage": "texture", "dtype": "fp16",
        "accumulate": "fp32",
    },
    "adreno buffer": {"target": "opencl", "device": "adreno", "storage": "buffer"},
    "mali": {"target": "opencl", "device": "mali"},
    "mali fp16": {"target": "opencl", "device": "mali", "dtype": "fp16", "accumulate": "fp32"},
    "nvidia": {"target": "opencl", "device": "nvidia"},
}  # fmt: skip

#: Columns that run only if named: on the host, whose compiler takes seconds for each, or on an
#: NVIDIA GPU (``TVMFLOW_TEST_ON_GPU=1``).
CUDA: dict[str, dict[str, Any]] = {
    "cuda": {"target": "cuda"},
    "cuda graph": {"target": "cuda", "cuda_graph": True},
    "cuda fp16": {"target": "cuda", "dtype": "fp16"},
}

#: Backends of a library with a fallback, by value of the option ``format``.
BACKENDS = {"both, opencl": "opencl", "both, cpu": "cpu"}

#: Options by name: values, and the columns that support them (empty: all).
OPTIONS: dict[str, tuple[tuple[Any, ...], tuple[str, ...]]] = {
    "knobs": (tuple(range(1000)), ()),
    "algorithms": (("winograd2", "winograd4", "direct"), ()),
    "keep_layout": (
        ("nchw4c", "texture"),
        ("adreno texture", "adreno texture fp16", "mali", "mali fp16", "adreno buffer"),
    ),
    "flow": (("then", "else", "while", "scan", "counted", "rows"), ()),
    "format": (("standalone", *BACKENDS), ()),
    "accumulate": (("mixed", "fp16"), ("auto fp16", "adreno texture fp16", "mali fp16")),
}
PLAIN = "plain"

#: `CHUNK` and `MOST_PRODUCTS` of `tvmflow.ir.half_sums`, which judging processes do not import.
LONGEST_IN_HALF = {"mixed": 40, "fp16": 8192}


def option_values(option: str, column: str) -> tuple[Any, ...]:
    """Return the values of an option in a column, none if the column does not support it."""
    values, columns = OPTIONS[option]
    if option == "format" and column == "llvm":
        # Such a library has kernels for processors anyway.
        return ("standalone",)
    return values if not columns or column in columns else ()
