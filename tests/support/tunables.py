"""A small network to tune, and fake builders and runners."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from support.onnx_models import model_of
from tvmflow.compiler.options import CompileOptions
from tvmflow.journal.records import Device
from tvmflow.tuning.building import Built, Case, ExclusiveCpu
from tvmflow.tuning.measure import Measured, Standing
from tvmflow.tuning.session import Network
from tvmflow.tuning.tasks import Task
from tvmflow.tuning.timing import PAIRS, StopRule, time_alone, time_in_turn


def model() -> onnx.ModelProto:
    """Return a network of a 3x3, two equal pointwise and a depthwise convolution, in this order."""
    rng = np.random.default_rng(4)

    shapes = [(20, 5, 3, 3), (20, 20, 1, 1), (20, 20, 1, 1), (20, 1, 3, 3)]
    weights = {
        f"w{number}": (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32)
        for number, s in enumerate(shapes)
    }
    nodes = """
        a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w0) b = Relu(a)
        c = Conv(b, w1) d = Relu(c) e = Conv(d, w2) f = Relu(e)
        y = Conv<group = 20, pads = [1, 1, 1, 1]>(f, w3)
    """
    return model_of(nodes, {"x": (1, 5, 18, 14)}, {"y": None}, weights, opset=18)


@cache
def tasks(device: str = "cpu", storage: str = "auto") -> dict[str, Task]:
    """Return the network's tasks by family."""
    found = Network(model(), CompileOptions(device=device, storage=storage)).tasks()
    return {task.family.NAME: task for task in found}


def cost_of(knobs: Mapping[str, Any]) -> float:
    """Return a cost whose only minimum is not at the heuristic's knobs."""
    sizes = {"tile_o": 2, "tile_h": 1, "tile_w": 4, "unroll_i": 2}
    off = sum(abs(log2(knobs[name] / best)) for name, best in sizes.items() if name in knobs)
    return 1e-4 * (1 + off)


class PretendedBuilder:
    """Builder that builds nothing; knobs for which ``same`` returns equal values share a kernel."""

    def __init__(self, folder: Path, same: Callable[[Mapping[str, Any]], Any] = dict):
        self.built: list[dict[str, Any]] = []
        self.exclusive_cpu = ExclusiveCpu(folder / "busy", ())
        self._same = same

    def submit(self, task: Task, knobs: Mapping[str, Any]) -> Future[Built]:
        self.built.append(dict(knobs))
        source = f"{task.digest} {self._same(knobs)}"
        return done(Built(task.digest, knobs, source, Path("x"), task.arguments, None))

    def make_case(self, task: Task) -> Future[Case]:
        return done(Case(Path("x")))


class PretendedRunner:
    """Runner whose costs, or errors, come from a function of the knobs."""

    name, driver = "pretended", "1.0"

    def __init__(self, measure: Callable[[Mapping[str, Any]], Measured | float] = cost_of):
        self.measured: list[dict[str, Any]] = []
        #: The incumbent's knobs in each measurement; ``None`` if it had no incumbent.
        self.incumbents: list[Mapping[str, Any] | None] = []
        self._measure = measure
        self._seen: dict[str, float] = {}

    def submit(self, built: Built, case: Case, incumbent: Built | None = None) -> Future[Measured]:
        self.measured.append(dict(built.knobs))
        self.incumbents.append(incumbent.knobs if incumbent is not None else None)
        future: Future[Measured] = Future()
        try:
            found = self._found(built, incumbent)
            future.set_result(replace(found, device=self.name, driver=self.driver))
        except Exception as error:  # noqa: BLE001 (a farm without devices raises, too)
            future.set_exception(error)
        return future

    def _found(self, built: Built, incumbent: Built | None) -> Measured:
        found = self._measure(built.knobs)
        if isinstance(found, float):
            found = Measured((found,) * 3, None, "", "pretended")
        if not found.error:
            # Drift is divided out: it changes the incumbent's cost by the same factor.
            self._seen[built.source_hash] = cost = found.cost / found.drift
            if incumbent is not None:
                theirs = self._seen.get(incumbent.source_hash) or self._measure(incumbent.knobs)
                return replace(found, ratios=(cost / theirs,) * PAIRS)
        return found

    def devices(self) -> list[Device]:
        return [Device("", self.name, self.driver)]

    def standings(self) -> list[Standing]:
        return [Standing(self.name, len(self.measured), "")]

    def close(self) -> None:
        pass


class NoisyRunner(PretendedRunner):
    """Runner that disturbs true costs by noise in each run, bursts and drift."""

    def __init__(self, seed: int, noise: float = 0.3):
        super().__init__()
        self._random = random.Random(seed)
        self._noise = noise
        self._speed = 1.0

    def _run(self, cost: float) -> float:
        # The factor on times drifts slowly from 0.7 to 3; one run in twenty is 4 times as long.
        self._speed = min(3.0, max(0.7, self._speed * self._random.lognormvariate(0, 0.02)))
        burst = 4.0 if self._random.random() < 0.05 else 1.0
        return cost * self._speed * burst * self._random.lognormvariate(0, self._noise)

    def _found(self, built: Built, incumbent: Built | None) -> Measured:
        def timer(knobs: Mapping[str, Any]) -> Callable[[int], list[float]]:
            return lambda rounds: [self._run(cost_of(knobs)) for _ in range(rounds)]

        if incumbent is None:
            return Measured(time_alone(timer(built.knobs), StopRule()), None, "", "noisy")
        pairs = time_in_turn(timer(built.knobs), timer(incumbent.knobs), StopRule())
        ratios = tuple(a / b for a, b in zip(*pairs, strict=True))
        return Measured(tuple(pairs[0]), None, "", "noisy", 1.0, ratios)


def done(result: Any) -> Future[Any]:
    """Return a future that has its result."""
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def failed(error: str) -> Measured:
    """Return a measurement that failed."""
    return Measured((), error, "pretended", "pretended")


def drifted(measured: float, drift: float) -> Measured:
    """Return a measurement on a device that runs at another speed than before."""
    return replace(Measured((measured,) * 3, None, "", "pretended"), drift=drift)
