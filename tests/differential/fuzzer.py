"""Fuzzer: batches of networks drawn by Hypothesis, steered to cells that were not hit.

A cell is an operator, its position, and a column of `configurations.COLUMNS`.  Several networks
are compiled as one; failures are compiled alone, and Hypothesis then finds the smallest network
that still fails in the same way.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import generators
from configurations import COLUMNS, OPTIONS, PLAIN, Configuration, option_values
from contexts import POSITIONS, Network, network
from graphs import TAME, VALUES, InvalidError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import engine
from judging import Verdict, Worker, has_reference
from saving import signature

#: An operator and its position.
Aim = tuple[str, str]
#: Networks that are compiled as one.
BATCH = 8
#: Operator sets: the newest that ONNX Runtime supports, and some before; 9 covers removed
#: operators, and 28 those that only ONNX's evaluator computes.
OPSETS = (18, 21, 13, 23, 24, 9, 28)

SETTINGS = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    report_multiple_bugs=False,
)


@dataclass
class Counts:
    """Counts of a run; `merge` adds those of another one."""

    #: Networks by verdict.
    kinds: Counter[str] = field(default_factory=Counter)
    #: Networks that failed before and are right now, by their earlier verdict.
    again: Counter[str] = field(default_factory=Counter)
    #: Networks that ran, by operator, position and column.
    cells: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    #: Networks that ran, by operator and option.
    options: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Refusals by operator and reason.
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Draws that gave no valid network, by operator and reason.
    invalid: Counter[tuple[str, str]] = field(default_factory=Counter)

    def merge(self, other: Counts) -> None:
        for name in vars(self):
            getattr(self, name).update(getattr(other, name))

    def as_json(self) -> dict[str, list[Any]]:
        """Return lists of keys, each with its number."""
        return {
            name: [[*([key] if isinstance(key, str) else key), n] for key, n in sorted(c.items())]
            for name, c in vars(self).items()
        }

    @classmethod
    def from_json(cls, text: Mapping[str, list[Any]]) -> Counts:
        return cls(**{
            name: Counter({key[0] if len(key) == 1 else tuple(key): n for *key, n in rows})
            for name, rows in text.items()
        })  # fmt: skip

    def note(self, verdict: Verdict) -> None:
        self.kinds[verdict.kind] += 1
        n, configuration = verdict.network, verdict.configuration
        if verdict.kind in ("refused", "unjudged"):
            self.reasons[n.operator, reason(verdict.message)] += 1
        if verdict.kind in ("right", "wrong"):
            self.cells[n.operator, n.position, configuration.column] += 1
            for option in configuration.options or [PLAIN]:
                self.options[n.operator, option] += 1


def reason(message: str) -> str:
    """Return the reason of a refusal, without names and numbers."""
    lines = message.strip().splitlines()
    details = [line.strip() for line in lines if re.search(r"\(\d+ nodes?\): ", line)]
    return (details or lines)[0][:160]


def cells(columns: Iterable[str] = COLUMNS) -> list[tuple[str, str, str]]:
    """Return all cells of these columns."""
    return [(o, p, c) for o in generators.drawn() for p in POSITIONS for c in columns]


@dataclass(frozen=True)
class Batch:
    """Networks that are compiled as one."""

    networks: tuple[Network, ...]
    configuration: Configuration
    #: Draws that gave no valid network, by operator and reason.
    invalid: tuple[tuple[str, str], ...] = ()


def batches(
    aims: Sequence[Aim],
    column: str,
    opset: int,
    option: str | None = None,
    size: int = BATCH,
    values: Sequence[str] = VALUES,
) -> st.SearchStrategy[Batch]:
    """Return a strategy that draws batches of networks for a column of the table.

    Parameters
    ----------
    aims
        Operators and positions to draw from.
    option
        One of `configurations.OPTIONS` to draw a value of, or ``None``.
    values
        Kinds of values for the inputs.
    """
    # Sums in half precision overflow, and Winograd's algorithm mixes the elements of a tile: a
    # large or non-finite element would hide the others.
    tame = option in ("accumulate", "algorithms")
    kinds = [kind for kind in values if kind in TAME or not tame]

    @st.composite
    def strategy(draw: Any) -> Batch:
        chosen = {option: draw(st.sampled_from(option_values(option, column)))} if option else {}
        found: list[Network] = []
        invalid: list[tuple[str, str]] = []
        for index in range(size):
            # One in thirty batches ends here, which lets Hypothesis drop irrelevant networks.
            if index and draw(st.integers(0, 30)) == 0:
                break
            operator, position = draw(st.sampled_from(aims))
            try:
                n = network(draw, operator, position, opset, f"n{index}_", kinds)
            except InvalidError as error:
                invalid.append((operator, str(error)[:200]))
                continue
            found.append(n)
        return Batch(tuple(found), Configuration(column, chosen), tuple(invalid))

    return strategy()


class FoundError(AssertionError):
    """A network is wrong, crashes, or is refused without a reason."""

    def __init__(self, verdict: Verdict):
        super().__init__(str(verdict))
        self.verdict = verdict


@dataclass
class Fuzzer:
    """Judges batches, and keeps counts and failures.

    Parameters
    ----------
    worker
        Process that compiles and runs.
    known
        Returns whether a signature is known: such failures are counted, but not examined again.
    shrink_seconds
        Time limit of the search for a smaller failing network; 0 disables it.
    """

    worker: Worker
    known: Callable[[str], bool] = lambda _: False
    shrink_seconds: float = 60.0
    counts: Counts = field(default_factory=Counts)
    #: Every failure as it was drawn and counted, known or not.
    drawn: list[Verdict] = field(default_factory=list)
    #: Verdicts by the network and its configuration.
    _verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _failed: str | None = None
    _deadline: float = 0.0

    def failure(self, batch: Batch) -> Verdict | None:
        """Judge a batch; return a new failure, if there is one."""
        if self._failed is not None:
            return self._failure_of_smaller(batch)
        for operator, why in batch.invalid:
            self.counts.invalid[operator, why] += 1
        networks = [n for n in batch.networks if self._usable(n)]
        if not networks:
            return None
        found = None
        for verdict in self.worker.judge(networks, batch.configuration):
            self.counts.note(verdict)
            if verdict.failed:
                self.drawn.append(verdict)
                self._verdicts[self._key(verdict.network, batch.configuration)] = verdict
                if found is None and not self.known(signature(verdict)):
                    self._failed = signature(verdict)
                    self._deadline = time.monotonic() + self.shrink_seconds
                    found = verdict
        return found

    def _failure_of_smaller(self, batch: Batch) -> Verdict | None:
        """Judge one network at a time; networks judged before are not compiled again."""
        for n in batch.networks:
            key = self._key(n, batch.configuration)
            if key not in self._verdicts:
                if time.monotonic() > self._deadline or not has_reference(n):
                    continue
                (self._verdicts[key],) = self.worker.judge([n], batch.configuration)
            verdict = self._verdicts[key]
            if verdict.failed and signature(verdict) == self._failed:
                return verdict
        return None

    def _key(self, n: Network, configuration: Configuration) -> tuple[str, str]:
        return n.digest, str(configuration)

    def _usable(self, n: Network) -> bool:
        if has_reference(n):
            return True
        self.counts.invalid[n.operator, "neither ONNX Runtime nor ONNX computes it"] += 1
        return False

    def run(
        self,
        strategy: st.SearchStrategy[Batch],
        examples: int,
        number: int | None = None,
        database: Path | None = None,
    ) -> Verdict | None:
        """Draw batches; return the smallest new failure, if there is one."""
        self._failed = None
        found: list[Verdict] = []

        def check(batch: Batch) -> None:
            verdict = self.failure(batch)
            if verdict is not None:
                # The last batch that Hypothesis runs is the smallest.
                found[:] = [verdict]
                raise FoundError(verdict)

        phases = [Phase.generate]
        if self.shrink_seconds:
            # Hypothesis' own limit is five minutes, spent on batches that are no longer judged.
            engine.MAX_SHRINKING_SECONDS = int(self.shrink_seconds)
            phases.append(Phase.shrink)
        kept = None
        if database is not None:
            kept = DirectoryBasedExampleDatabase(database)
            phases.insert(0, Phase.reuse)
        test = settings(SETTINGS, max_examples=examples, database=kept, phases=phases)(
            given(strategy)(check)
        )
        if number is not None:
            test = seed(number)(test)
        try:
            test()
        except FoundError:
            return found[0]
        return None


def aims_for(
    column: str,
    opset: int,
    hits: Counter[tuple[str, str, str]],
    names: Iterable[str] = (),
    positions: Iterable[str] = (),
) -> list[Aim]:
    """Return the aims hit least in a column, among the operators of an operator set."""
    options = [
        (hits[o, p, column], o, p)
        for o in names or generators.drawn()
        for p in positions or POSITIONS
        if generators.available(o, opset)
    ]
    if not options:
        return []
    least = min(count for count, _, _ in options)
    return [(o, p) for count, o, p in options if count == least]


def next_option(column: str, turn: int) -> str | None:
    """Return an option for every third batch, each in turn."""
    if turn % 3 < 2:
        return None
    possible = [o for o in OPTIONS if option_values(o, column)]
    return possible[turn // 3 % len(possible)] if possible else None
