"""Measure what limiting indices from data costs: calls with and without the limits, in turn.

python benchmarks/index_limits.py [--targets llvm opencl] [--rounds 101]
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import onnx
from common import arguments, in_turn, network_of, report, write_json
from onnx import helper

import tvmflow
from tvmflow.frontend.ops import indexing

#: Shapes of the data and of the indices, and attributes.
CASES: Mapping[str, tuple[str, list[int], list[int], dict[str, Any]]] = {
    "GatherElements, 1M of 1M": ("GatherElements", [1024, 1024], [1024, 1024], {"axis": 1}),
    "GatherElements, 64k of 1M": ("GatherElements", [1024, 1024], [64, 1024], {"axis": 0}),
    "GatherND, 64k rows of 16": ("GatherND", [512, 512, 16], [65536, 2], {}),
    "Gather, 4k rows of 256": ("Gather", [30000, 256], [4096], {"axis": 0}),
    "ScatterND, 4k rows of 256": ("ScatterND", [30000, 256], [4096, 1], {}),
}


def network(
    operator: str, data: list[int], indices: list[int], attributes: Mapping[str, Any]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network of one node, and indices in range."""
    rng = np.random.default_rng(5)
    least = min(data[: indices[-1]]) if "ND" in operator else data[attributes["axis"]]
    feeds = {"x": rng.standard_normal(data).astype(np.float32)}
    feeds["i"] = rng.integers(0, least, indices)
    if operator == "ScatterND":
        feeds["i"] = rng.permutation(data[0])[: indices[0], None]
        feeds["u"] = rng.standard_normal([indices[0], *data[1:]]).astype(np.float32)
    node = helper.make_node(operator, [*feeds], ["y"], **attributes)
    return network_of([node], feeds), feeds


def main() -> None:
    """Measure, print and write the results."""
    options = arguments(__doc__, targets=["llvm", "opencl"], rounds=101).parse_args()
    results, rows = [], []
    for target in options.targets:
        for name, case in CASES.items():
            model, feeds = network(*case)
            limited = tvmflow.compile(model, target=target)
            with mock.patch.object(indexing, "in_range", lambda indices, _extents: indices):
                plain = tvmflow.compile(model, target=target)
            with limited, plain:
                calls = {
                    "limited": lambda module=limited, feeds=feeds: module(**feeds),
                    "plain": lambda module=plain, feeds=feeds: module(**feeds),
                }
                times = in_turn(calls, rounds=options.rounds)
            medians = {key: statistics.median(values) for key, values in times.items()}
            ratio = medians["limited"] / medians["plain"]
            results.append({"target": target, "case": name, "median_ms": medians, "ratio": ratio})
            rows.append((target, name, *(f"{ms:.2f}" for ms in medians.values()), f"{ratio:.2f}"))
    report("Indices", ("target", "case", ">limited ms", ">without ms", ">ratio"), rows)
    write_json("index_limits", {"rounds": options.rounds, "cases": results})


if __name__ == "__main__":
    main()
