"""One execution plan of those of several shapes: one set of weights, sources and allocations.

One shape at a time runs, so that allocations of two shapes may be the same memory: weights of equal
content, inputs and outputs of the same number, and what lies between them by the least growth
(`tvmflow.graph.memory.share_allocations`).  Before and after::

    shape 0    allocations: x 600, w 90, t 400, y 20
    shape 1    allocations: x 900, w 90, t 300, y 20
    plan       allocations: x 900, w 90, t 400, y 20
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from ...graph.memory import AllocationSize, share_allocations
from ...ir.names import unique
from ...module.standalone.plan import (
    Allocation,
    Interface,
    Launch,
    Operand,
    Plan,
    PlanTensor,
)
from ...module.weights import content_digest
from .check import check_plan


def merge_plans(plans: Sequence[Plan]) -> Plan:
    """The plan of several shapes; each was checked, and is checked again in its new memory."""
    kinds = [_kinds(plan) for plan in plans]
    sizes, places = share_allocations(
        [
            [
                (kind, AllocationSize(a.bytes, a.extent))
                for kind, a in zip(own, plan.allocations, strict=True)
            ]
            for own, plan in zip(kinds, plans, strict=True)
        ]
    )
    channels = {
        place: allocation.channels
        for plan, own in zip(plans, places, strict=True)
        for place, allocation in zip(own, plan.allocations, strict=True)
    }
    merged = Plan(
        allocations=[
            Allocation(size.bytes, size.extent, channels[n]) for n, size in enumerate(sizes)
        ],
        code=plans[0].code,  # of all shapes
    )
    taken: set[str] = set()
    weights: dict[int, str] = {}
    for plan, own in zip(plans, places, strict=True):
        moved = _moved(plan, merged.allocations, own)
        check_plan(moved)
        first_output = len(merged.outputs)
        merged.shapes.append(len(moved.launches))
        merged.launches += moved.launches
        merged.inputs += moved.inputs
        merged.outputs += moved.outputs
        merged.test_inputs += moved.test_inputs
        merged.test_outputs += [
            replace(test, output=first_output + test.output) for test in moved.test_outputs
        ]
        merged.sources |= moved.sources
        for name, tensor in moved.weight_tensors.items():
            if tensor.allocation not in weights:
                weights[tensor.allocation] = known = unique(name, taken)
                merged.weights[known] = moved.weights[name]
                merged.weight_tensors[known] = tensor
    if not all(plan.test_outputs for plan in plans):
        merged.test_inputs, merged.test_outputs = [], []
    return merged


def _kinds(plan: Plan) -> list[Hashable]:
    """What an allocation shares its memory with: others of an equal kind."""
    kinds: list[Hashable] = [("between", a.channels) for a in plan.allocations]
    for side, interfaces in (("input", plan.inputs), ("output", plan.outputs)):
        for number, interface in enumerate(interfaces):
            at = interface.tensor.allocation
            # An application's image has to be of the extent that it is told.
            kinds[at] = side, number, plan.allocations[at].extent, plan.allocations[at].channels
    for name, tensor in plan.weight_tensors.items():
        content = content_digest(plan.weights[name])
        kinds[tensor.allocation] = "weight", plan.allocations[tensor.allocation], content
    return kinds


def _moved(plan: Plan, allocations: list[Allocation], places: Sequence[int]) -> Plan:
    """A plan whose tensors lie in other allocations."""
    tensors: dict[int, PlanTensor] = {}

    def tensor(old: PlanTensor) -> PlanTensor:
        if id(old) not in tensors:
            tensors[id(old)] = replace(old, allocation=places[old.allocation])
        return tensors[id(old)]

    def argument(old: Operand | bytes) -> Operand | bytes:
        return old if isinstance(old, bytes) else replace(old, tensor=tensor(old.tensor))

    def launch(old: Launch) -> Launch:
        return replace(old, arguments=tuple(map(argument, old.arguments)))

    def interface(old: Interface) -> Interface:
        return replace(old, tensor=tensor(old.tensor))

    return replace(
        plan,
        allocations=allocations,
        launches=list(map(launch, plan.launches)),
        inputs=list(map(interface, plan.inputs)),
        outputs=list(map(interface, plan.outputs)),
        weight_tensors={name: tensor(old) for name, old in plan.weight_tensors.items()},
    )
