"""What a network is compiled for: columns of the table, and options drawn beside them."""

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
        The column of the table of cells: what decides which code is generated.
    options
        What is drawn beside it, a name and a value each:

        - ``knobs``: seeds random knobs from each family's space;
        - ``algorithms``: one for all convolutions that can have it;
        - ``keep_layout``: the form of all inputs and outputs that can have it;
        - ``format``: ``standalone``; ``both, opencl`` and ``both, cpu`` are of a library that has
          kernels for both, run by one of them;
        - ``flow``: where some nodes are put (`flow.FLOWS`);
        - ``accumulate``: ``mixed`` or ``fp16``.
    """

    column: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the column alone."""
        return dict((COLUMNS | CUDA)[self.column])

    @property
    def half(self) -> bool:
        return self.arguments.get("dtype") == "fp16"

    @property
    def longest_in_half(self) -> int:
        """Products in the longest sum in half precision, 0 where none is."""
        return LONGEST_IN_HALF.get(self.options.get("accumulate", "fp32"), 0)

    def __str__(self) -> str:
        return ", ".join([self.column, *(f"{k}={v}" for k, v in self.options.items())])


COLUMNS: dict[str, dict[str, str]] = {
    "llvm": {"target": "llvm"},
    "auto": {"target": "opencl"},
    "auto fp16": {"target": "opencl", "dtype": "fp16"},
    # PoCL has no arithmetic of halves, which is an option of its own.
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

#: Drawn where they are asked for by name: on the host, whose compiler takes seconds for each, or on
#: an NVIDIA GPU (``TVMFLOW_TEST_ON_GPU=1``).
CUDA: dict[str, dict[str, Any]] = {
    "cuda": {"target": "cuda"},
    "cuda graph": {"target": "cuda", "cuda_graph": True},
    "cuda fp16": {"target": "cuda", "dtype": "fp16"},
}

#: The backends of a library with a fallback, by the values of the option ``format``.
BACKENDS = {"both, opencl": "opencl", "both, cpu": "cpu"}

#: Options by name: values, and the columns in which they are possible (empty: all).
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

#: `CHUNK` and `MOST_PRODUCTS` of `tvmflow.ir.half_sums`, which processes that judge do not import.
LONGEST_IN_HALF = {"mixed": 40, "fp16": 8192}


def option_values(option: str, column: str) -> tuple[Any, ...]:
    """The values of an option in a column, none where it is not possible."""
    values, columns = OPTIONS[option]
    if option == "format" and column == "llvm":
        # It has kernels for processors anyway.
        return ("standalone",)
    return values if not columns or column in columns else ()
