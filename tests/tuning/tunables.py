"""A small network to tune, and builders and runners that only pretend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvmflow.tuning.building import Built
from tvmflow.tuning.case import Case
from tvmflow.tuning.measure import Measured
from tvmflow.tuning.quiet import Quiet
from tvmflow.tuning.session import Network
from tvmflow.tuning.tasks import Task


def model() -> onnx.ModelProto:
    """Two equal pointwise convolutions behind a 3x3 one, and a depthwise one."""
    rng = np.random.default_rng(4)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    same = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], strides=[2, 2], **same),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "w2"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("Conv", ["f", "w3"], ["y"], group=20, **same),
    ]
    weights = [
        weight("w0", 20, 5, 3, 3), weight("w1", 20, 20, 1, 1), weight("w2", 20, 20, 1, 1),
        weight("w3", 20, 1, 3, 3),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "tunable",
        [value("x", TensorProto.FLOAT, (1, 5, 18, 14))],
        [value("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@cache
def tasks(device: str = "cpu", storage: str = "auto") -> dict[str, Task]:
    """Its tasks by family."""
    found = Network(model(), "opencl", device, storage=storage).tasks()
    return {task.family.NAME: task for task in found}


def cost_of(knobs: Mapping[str, Any]) -> float:
    """A cost with one best choice that is not the heuristic's."""
    sizes = {"tile_o": 2, "tile_h": 1, "tile_w": 4, "unroll_i": 2}
    off = sum(abs(log2(knobs[name] / best)) for name, best in sizes.items() if name in knobs)
    return 1e-4 * (1 + off)


class PretendedBuilder:
    """Builds nothing; ``same`` says which knobs lead to the same kernel."""

    def __init__(self, folder: Path, same: Callable[[Mapping[str, Any]], Any] = dict):
        self.built: list[dict[str, Any]] = []
        self.quiet = Quiet(folder / "busy", ())
        self._same = same

    def submit(self, task: Task, knobs: Mapping[str, Any]) -> Future[Built]:
        self.built.append(dict(knobs))
        source = f"{task.digest} {self._same(knobs)}"
        arguments = task.arguments
        return done(Built(task.digest, knobs, source, Path("x"), arguments, None, 0.1))

    def make_case(self, task: Task) -> Future[Case]:
        return done(Case(Path("x")))


class PretendedRunner:
    """Measures by a function of the knobs; what that raises, its futures raise."""

    def __init__(self, measure: Callable[[Mapping[str, Any]], Measured | float] = cost_of):
        self.measured: list[dict[str, Any]] = []
        self._measure = measure

    def submit(self, built: Built, case: Case, bound_s: float | None = None) -> Future[Measured]:
        self.measured.append(dict(built.knobs))
        future: Future[Measured] = Future()
        try:
            found = self._measure(built.knobs)
        except Exception as error:  # noqa: BLE001 (as a farm without devices does)
            future.set_exception(error)
            return future
        if isinstance(found, float):
            found = Measured((found,) * 3, None, "", "pretended", 0.1)
        future.set_result(found)
        return future

    def close(self) -> None:
        pass


def done(result: Any) -> Future[Any]:
    """A future that has its result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def failed(error: str) -> Measured:
    """A measurement that failed."""
    return Measured((), error, "pretended", "pretended", 0.1)


def drifted(measured: float, drift: float) -> Measured:
    """A measurement on a device that runs at another speed than before."""
    return replace(Measured((measured,) * 3, None, "", "pretended", 0.1), drift=drift)
