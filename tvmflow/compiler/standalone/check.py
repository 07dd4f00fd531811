"""Check that no launch of a new plan reads memory that another tensor has overwritten.

Tensors share allocations; a mistake in that may give wrong results only for some inputs or drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ...errors import CompileError
from ...module.standalone.plan import Interface, Launch, Operand, Plan, PlanTensor

#: Name and parameters in a kernel's definition.
_PARAMETERS = re.compile(r"__kernel void\s+(?:__attribute__\(\(.*?\)\)\s+)?(\w+)\(([^)]*)\)\s*{")


def check_plan(plan: Plan) -> None:
    """Check a plan by tracking the contents of all allocations through a run of each shape.

    Raises `CompileError` if a launch reads memory that nothing has written or another tensor has
    overwritten; if it writes an input or a weight; or if its arguments do not fit its kernel.
    """
    signatures = {name: parameters_of(source, name) for name, source in plan.sources.items()}
    counts = plan.shapes or [len(plan.launches)]
    inputs, outputs = len(plan.inputs) // len(counts), len(plan.outputs) // len(counts)
    first = 0
    for number, count in enumerate(counts):
        _check_shape(
            plan,
            signatures,
            plan.launches[first : first + count],
            plan.inputs[number * inputs : (number + 1) * inputs],
            plan.outputs[number * outputs : (number + 1) * outputs],
        )
        first += count


def check_alternatives(plan: Plan) -> None:
    """Check that the launches of alternatives fit their kernels, and write what the others write.

    Raises `CompileError`.
    """
    sources = {name: text for each in plan.alternative_sources for name, text in each.items()}
    signatures = {name: parameters_of(source, name) for name, source in sources.items()}
    known = {operand.tensor.allocation for operand in operands_of(plan.launches)}
    for alternative in plan.alternatives:
        calls = plan.calls[alternative.call : alternative.call + alternative.calls]
        usual = plan.launches[calls[0].first : calls[-1].first + calls[-1].count]
        results = {o.tensor.allocation for o in operands_of(usual) if o.written}
        for launch in alternative.launches:
            where = f"an alternative's launch, {launch.kernel}"
            _check_arguments(plan, launch, signatures[launch.kernel], where)
            _check_no_overlap(operands_of([launch]), where)
        written = {o.tensor.allocation for o in operands_of(alternative.launches) if o.written}
        if written & known - results:
            raise _wrong(f"an alternative of {calls[0].function} writes other tensors")


def operands_of(launches: Iterable[Launch]) -> list[Operand]:
    """Return the tensors among the arguments of launches."""
    return [a for launch in launches for a in launch.arguments if isinstance(a, Operand)]


def _check_shape(
    plan: Plan,
    signatures: dict[str, list[str]],
    launches: Sequence[Launch],
    inputs: Sequence[Interface],
    outputs: Sequence[Interface],
) -> None:
    kept = [i.tensor for i in inputs] + list(plan.weight_tensors.values())
    content: dict[int, PlanTensor] = {tensor.allocation: tensor for tensor in kept}
    constant = set(content)
    for number, launch in enumerate(launches):
        where = f"launch {number}, {launch.kernel}"
        operands = operands_of([launch])
        if not plan.code:
            _check_arguments(plan, launch, signatures[launch.kernel], where)
        for operand in operands:
            allocation = operand.tensor.allocation
            # A kernel may read a tensor that it writes itself.
            known = operand.written or content.get(allocation) is operand.tensor
            if operand.read and not known:
                there = content[allocation].name if allocation in content else "nothing"
                raise _wrong(f"{where}, reads {operand.tensor.name} where {there} is")
            if operand.written and allocation in constant:
                raise _wrong(f"{where}, writes {content[allocation].name}")
        _check_no_overlap(operands, where)
        content |= {o.tensor.allocation: o.tensor for o in operands if o.written}
    seen: set[int] = set(constant)
    for output in outputs:
        allocation = output.tensor.allocation
        if content.get(allocation) is not output.tensor:
            raise _wrong(f"nothing leaves the output {output.info.name} in its memory")
        if allocation in seen:
            raise _wrong(f"the output {output.info.name} shares its memory")
        seen.add(allocation)


def _check_no_overlap(operands: Iterable[Operand], where: str) -> None:
    """Check that tensors of a launch do not share an allocation if one of them is written."""
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
    """Return the parameters in a kernel's definition, as text."""
    for name, text in _PARAMETERS.findall(source):
        if name == kernel:
            return [" ".join(p.split()) for p in text.split(",") if p.strip()]
    raise _wrong(f"the source of {kernel} does not define it")


def _wrong(what: str) -> CompileError:
    return CompileError(
        f"The execution plan is wrong: {what}.",
        remedy="Report the model; `format=tvm` does not use the plan.",
    )
