"""Merge the execution plans of several shapes into one, which shares weights, code and memory.

Only one shape runs at a time, so that allocations of two shapes may share memory: weights of equal
content, inputs and outputs of the same number, and intermediate tensors such that allocations grow
least (`tvmflow.graph.memory.share_allocations`).  Before and after::

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


def merge_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plan of several shapes, with the launches of one after those of another."""
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
        code=plans[0].code,  # with the functions of all shapes
    )
    taken: set[str] = set()
    #: Weights of equal content are one tensor, by its allocation.
    weights: dict[int, PlanTensor] = {}
    for plan, own in zip(plans, places, strict=True):
        tensors: dict[int, PlanTensor] = {}
        for name, tensor in plan.weight_tensors.items():
            place = own[tensor.allocation]
            if place not in weights:
                known = unique(name, taken)
                weights[place] = replace(tensor, allocation=place)
                merged.weights[known] = plan.weights[name]
                merged.weight_tensors[known] = weights[place]
            tensors[id(tensor)] = weights[place]
        _append_shape(merged, plan, own, tensors)
    return merged


def _kinds(plan: Plan) -> list[Hashable]:
    """Return the kind of each allocation; allocations of an equal kind may share memory."""
    kinds: list[Hashable] = [("between", a.channels) for a in plan.allocations]
    for side, interfaces in (("input", plan.inputs), ("output", plan.outputs)):
        for number, interface in enumerate(interfaces):
            at = interface.tensor.allocation
            # An application provides an image of exactly the extent that it asked for.
            kinds[at] = side, number, plan.allocations[at].extent, plan.allocations[at].channels
    for name, tensor in plan.weight_tensors.items():
        content = content_digest(plan.weights[name])
        kinds[tensor.allocation] = "weight", plan.allocations[tensor.allocation], content
    return kinds


def _append_shape(
    merged: Plan, plan: Plan, places: Sequence[int], tensors: dict[int, PlanTensor]
) -> None:
    """Append the launches and interface of a shape, with its tensors in other allocations.

    ``tensors`` are those already moved, by the ``id`` of the original.
    """

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

    before = len(merged.launches)
    merged.calls += [
        replace(call, first=before + call.first, operands=tuple(map(tensor, call.operands)))
        for call in plan.calls
    ]
    merged.shapes.append(len(plan.launches))
    merged.launches += map(launch, plan.launches)
    merged.inputs += map(interface, plan.inputs)
    merged.outputs += map(interface, plan.outputs)
    merged.sources |= plan.sources
