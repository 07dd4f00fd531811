"""Parts of a network compiled with other options, as choices of a library.

The network is compiled again: with the other algorithm for convolutions, without textures, or with
sums in 16 bits.  Both plans are cut where they hold the same tensors in the same storage; what
differs between two cuts is a choice.  With another algorithm for ``b``::

    plan     a, b_input, b_product, b_output, c      cuts after a, b_output, c
    other    a, b, c                                 cuts after a, b, c
    choice                 b                         in place of three calls
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...devices.choices import DIRECT, MIXED, WINOGRAD
from ...graph.layout.algorithms import Choice
from ...ir.names import unique
from ...module.standalone.format import AlternativeKind
from ...module.standalone.plan import Alternative, Call, Launch, Operand, Plan, PlanTensor
from ...module.weights import content_digest
from ..compilation import Compilation
from ..options import CompileOptions
from .check import operands_of

logger = logging.getLogger(__name__)


def other_options(job: Compilation, plan: Plan) -> dict[str, CompileOptions]:
    """Return the options to compile a network with once more, by a name for what differs."""
    options = replace(job.options, fallback=None, alternatives="none", choices=0)
    found: dict[str, CompileOptions] = {}
    if job.variants:
        return found
    algorithms = {
        choice.convolution: other
        for choice in job.choices
        if not choice.asked and (other := _other_algorithm(choice))
    }
    if algorithms:
        found["algorithm"] = replace(options, algorithms={**options.algorithms, **algorithms})
    is_open = options.storage == "auto" and not options.storage_overrides
    if is_open and not options.keep_layout and not options.image_inputs:
        if any(allocation.extent for allocation in plan.allocations):
            found["storage"] = replace(options, storage="buffer")
        elif job.target.device.image_extent and not job.target.device.is_cpu:
            found["storage"] = replace(options, storage="texture")
    if options.accumulate == MIXED:
        found["sums"] = replace(options, accumulate="fp16")
    return found


def _other_algorithm(choice: Choice) -> str | None:
    """Return Winograd's algorithm for a direct convolution, and the other way round."""
    if choice.algorithm != DIRECT:
        return DIRECT if DIRECT in choice.possible else None
    return next((name for name in reversed(WINOGRAD) if name in choice.possible), None)


def add_parts(plan: Plan, other: Plan, name: str) -> None:
    """Add the parts in which another plan of the network differs, which ``name`` describes."""
    parts = _Parts(plan, other, name)
    begun = 0, 0
    for end in _cuts(parts.flow, parts.other_flow):
        parts.add(range(begun[0], end[0]), range(begun[1], end[1]))
        begun = end
    if parts.sources:
        plan.alternative_sources.append(parts.sources)


# -- cuts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tensor:
    """Facts that are equal where two plans hold the same tensor in the same storage."""

    name: str
    layout: str
    scope: str | None
    channels: str


class _Flow:
    """The tensors that are in memory after each call of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.known = {id(o.tensor): o.tensor for o in operands_of(plan.launches)}
        outputs = {id(i.tensor): ("output", i.info.name) for i in plan.outputs}
        self.described = {**plan.names, **outputs}
        last = dict.fromkeys((id(i.tensor) for i in plan.outputs), len(plan.calls))
        written: list[set[int]] = []
        for number, call in enumerate(plan.calls):
            operands = operands_of(_launches(plan, [call]))
            written.append({id(o.tensor) for o in operands if o.written})
            read = (id(o.tensor) for o in operands if o.read)
            last |= {t: max(number, last.get(t, 0)) for t in read}
        #: Tensors that calls before each cut have written and later ones read.
        self.live: list[set[int]] = [set()]
        done: set[int] = set()
        for number, results in enumerate(written):
            done |= results
            self.live.append({t for t in done if last.get(t, -1) > number})

    def names(self, cut: int) -> frozenset[_Tensor] | None:
        """Return the tensors in memory at a cut; ``None`` if one has no name in the model."""
        found = [self.of(self.known[tensor]) for tensor in self.live[cut]]
        return None if None in found else frozenset(t for t in found if t is not None)

    def of(self, tensor: PlanTensor) -> _Tensor | None:
        """Return a tensor as both plans know it."""
        found = self.described.get(id(tensor))
        channels = self.plan.allocations[tensor.allocation].channels
        return None if found is None else _Tensor(*found, tensor.scope, channels)


def _cuts(mine: _Flow, theirs: _Flow) -> Iterator[tuple[int, int]]:
    """Yield the numbers of calls after which both plans hold the same tensors."""
    places = {theirs.names(cut): cut for cut in range(len(theirs.plan.calls), 0, -1)}
    reached = 0
    for cut in range(1, len(mine.plan.calls) + 1):
        names = mine.names(cut)
        there = places.get(names) if names is not None else None
        if there is not None and there > reached:
            reached = there
            yield cut, there


def _launches(plan: Plan, calls: Sequence[Call]) -> list[Launch]:
    first, last = calls[0], calls[-1]
    return plan.launches[first.first : last.first + last.count]


# -- parts ----------------------------------------------------------------------------------------


class _Parts:
    """The parts of another plan, with their tensors and kernels in this one."""

    def __init__(self, plan: Plan, other: Plan, name: str) -> None:
        self.plan, self.other, self.name = plan, other, name
        self.flow, self.other_flow = _Flow(plan), _Flow(other)
        self.sources: dict[str, str] = {}
        #: Kernels of this plan by their text without their name.
        self.texts = {_anonymous(text, kernel): kernel for kernel, text in plan.sources.items()}
        self.by_name = {self.flow.of(t): t for t in self.flow.known.values()}
        interfaces = zip(
            (*plan.inputs, *plan.outputs), (*other.inputs, *other.outputs), strict=True
        )
        #: This plan's tensors by the identity of the other's.
        self.moved = {id(theirs.tensor): ours.tensor for ours, theirs in interfaces}
        self.allocations: dict[int, int] = {}
        self.weights = {
            self._content(plan, name, tensor): tensor
            for name, tensor in plan.weight_tensors.items()
        }
        self.weight_names = {id(tensor): name for name, tensor in other.weight_tensors.items()}

    def add(self, calls: range, others: range) -> None:
        """Add a choice of ``others`` in place of ``calls``, unless they are the same."""
        before = _launches(self.plan, [self.plan.calls[n] for n in calls])
        theirs = _launches(self.other, [self.other.calls[n] for n in others])
        kernels = [self._kernel(launch.kernel) for launch in theirs]
        if kernels == [launch.kernel for launch in before]:
            return
        kept = self.other_flow.live[others.start] | self.other_flow.live[others.stop]
        launches = []
        for launch, kernel in zip(theirs, kernels, strict=True):
            arguments = tuple(self._argument(argument, kept) for argument in launch.arguments)
            launches.append(replace(launch, kernel=kernel, arguments=arguments))
        if not _keeps_inputs(launches):
            logger.info("%s: %s would overwrite its input", self.name, before[0].function)
            return
        for launch, kernel in zip(theirs, kernels, strict=True):
            if kernel not in self.plan.sources:
                text = self.other.sources[launch.kernel]
                self.sources[kernel] = _renamed(text, launch.kernel, kernel)
        self.plan.alternatives.append(
            Alternative(calls.start, tuple(launches), AlternativeKind.CHOICE, len(calls))
        )

    def _kernel(self, kernel: str) -> str:
        """Return the name of a kernel in this plan."""
        known = self.texts.get(_anonymous(self.other.sources[kernel], kernel))
        return known or f"{self.name}_{kernel}"

    def _argument(self, argument: Operand | bytes, kept: set[int]) -> Operand | bytes:
        if isinstance(argument, bytes):
            return argument
        return replace(argument, tensor=self._tensor(argument.tensor, kept))

    def _tensor(self, tensor: PlanTensor, kept: set[int]) -> PlanTensor:
        if id(tensor) in kept:
            found = self.by_name.get(self.other_flow.of(tensor))
            assert found is not None
            return found
        if id(tensor) not in self.moved:
            name = self.weight_names.get(id(tensor))
            self.moved[id(tensor)] = (
                self._between(tensor) if name is None else self._weight(name, tensor)
            )
        return self.moved[id(tensor)]

    def _between(self, tensor: PlanTensor) -> PlanTensor:
        at = tensor.allocation
        if at not in self.allocations:
            self.allocations[at] = self.plan.allocate(self.other.allocations[at])
        return replace(tensor, allocation=self.allocations[at])

    def _weight(self, name: str, tensor: PlanTensor) -> PlanTensor:
        key = self._content(self.other, name, tensor)
        if key not in self.weights:
            known = unique(name, set(self.plan.weights))
            place = self.plan.allocate(self.other.allocations[tensor.allocation])
            self.weights[key] = replace(tensor, allocation=place)
            self.plan.weights[known] = self.other.weights[name]
            self.plan.weight_tensors[known] = self.weights[key]
            self.plan.alternative_weights.add(known)
        return self.weights[key]

    @staticmethod
    def _content(plan: Plan, name: str, tensor: PlanTensor) -> tuple[object, ...]:
        """Return what is equal for two weights that can be one."""
        allocation = plan.allocations[tensor.allocation]
        return content_digest(plan.weights[name]), tensor.scope, allocation


def _anonymous(text: str, kernel: str) -> str:
    return _renamed(text, kernel, "kernel_")


def _renamed(text: str, kernel: str, name: str) -> str:
    return re.sub(rf"\b{re.escape(kernel)}\b", name, text)


def _keeps_inputs(launches: Sequence[Launch]) -> bool:
    """Return whether no launch reads a tensor whose memory another one was written to."""
    content: dict[int, PlanTensor] = {}
    for launch in launches:
        operands = operands_of([launch])
        for operand in operands:
            tensor = operand.tensor
            if operand.read and content.get(tensor.allocation, tensor) is not tensor:
                return False
            if operand.written and any(
                o.tensor is not tensor and o.tensor.allocation == tensor.allocation
                for o in operands
            ):
                return False
        content |= {o.tensor.allocation: o.tensor for o in operands if o.written}
    return True
