"""A check that a plan reads nothing but what it wrote, made whenever there is a new one.

Tensors share allocations, and an error in who shares with whom gives wrong numbers only for some
inputs, or only on some drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import CompileError
from ...module.standalone.plan import Launch, Operand, Plan, PlanTensor

#: The parameters of a kernel's definition.
_PARAMETERS = re.compile(r"__kernel void\s+(?:__attribute__\(\(.*?\)\)\s+)?(\w+)\(([^)]*)\)\s*{")


def check_plan(plan: Plan) -> None:
    """Follow the contents of all allocations through a run, and compare arguments with source.

    Raises `CompileError` if a launch reads what nothing wrote, or what another tensor has
    overwritten; if it writes an input or a weight; or if its arguments are not those of its kernel.
    """
    signatures = {name: parameters_of(source, name) for name, source in plan.sources.items()}
    kept = [i.tensor for i in plan.inputs] + list(plan.weight_tensors.values())
    content: dict[int, PlanTensor] = {tensor.allocation: tensor for tensor in kept}
    constant = set(content)
    for number, launch in enumerate(plan.launches):
        where = f"launch {number}, {launch.kernel}"
        operands = [a for a in launch.arguments if isinstance(a, Operand)]
        if not plan.code:
            _check_arguments(plan, launch, signatures[launch.kernel], where)
        for operand in operands:
            allocation = operand.tensor.allocation
            # What a kernel writes, it may itself have written before it reads it.
            known = operand.written or content.get(allocation) is operand.tensor
            if operand.read and not known:
                there = content[allocation].name if allocation in content else "nothing"
                raise _wrong(f"{where}, reads {operand.tensor.name} where {there} is")
            if operand.written and allocation in constant:
                raise _wrong(f"{where}, writes {content[allocation].name}")
        _check_together(operands, where)
        content |= {o.tensor.allocation: o.tensor for o in operands if o.written}
    seen: set[int] = set(constant)
    for output in plan.outputs:
        allocation = output.tensor.allocation
        if content.get(allocation) is not output.tensor:
            raise _wrong(f"nothing leaves the output {output.info.name} in its memory")
        if allocation in seen:
            raise _wrong(f"the output {output.info.name} shares its memory")
        seen.add(allocation)


def _check_together(operands: Iterable[Operand], where: str) -> None:
    """Within one launch, two tensors must not be in one allocation when one is written."""
    found: dict[int, Operand] = {}
    for operand in operands:
        other = found.setdefault(operand.tensor.allocation, operand)
        if other is not operand and (operand.written or other.written):
            raise _wrong(f"{where}, has {operand.tensor.name} and {other.tensor.name} in one place")


def _check_arguments(plan: Plan, launch: Launch, parameters: list[str], where: str) -> None:
    if len(parameters) != len(launch.arguments):
        raise _wrong(f"{where}, has {len(launch.arguments)} arguments for {parameters}")
    for parameter, argument in zip(parameters, launch.arguments, strict=True):
        is_image = "image2d_array_t" in parameter.split()
        if isinstance(argument, bytes):
            fits = "*" not in parameter and not is_image
        else:
            allocation = plan.allocations[argument.tensor.allocation]
            fits = is_image == (allocation.extent is not None)
            fits = fits and (is_image or "*" in parameter)
            if "__read_only" in parameter or "const " in parameter:
                fits = fits and not argument.written
            if "__write_only" in parameter:
                fits = fits and not argument.read
        if not fits:
            raise _wrong(f"{where}, has no argument that fits {parameter}")
    pairs = zip(launch.global_size, launch.local_size, strict=True)
    if any(not size or size % group for size, group in pairs):
        raise _wrong(f"{where}, has sizes {launch.global_size} in groups of {launch.local_size}")


def parameters_of(source: str, kernel: str) -> list[str]:
    """The parameters in a kernel's definition, as text."""
    for name, text in _PARAMETERS.findall(source):
        if name == kernel:
            return [" ".join(p.split()) for p in text.split(",") if p.strip()]
    raise _wrong(f"the source of {kernel} does not define it")


def _wrong(what: str) -> CompileError:
    return CompileError(
        f"The execution plan is wrong: {what}.",
        remedy="Report the model; `format=tvm` does not use the plan.",
    )
