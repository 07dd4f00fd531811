"""The kernel lab: computations with a series of schedules from a naive one to a fast one.

Each lab is one computation in TE with its size as a parameter; each step schedules it anew and
states what limited the step before.  :mod:`tvmflow.explain.lab` runs and times them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tvm import tirx

from ...devices.presets import Device
from ...devices.target import TargetSpec, resolve
from ...errors import InputError
from ...ir.units import bytes_text
from . import convolution, formulas, matmul, quantized
from .product import GroupTile, Tile
from .steps import Lab, Layout, Step, tensor_bytes

#: Labs by name.
LABS: dict[str, Lab] = {
    lab.name: lab
    for lab in (
        matmul.MATMUL, *formulas.LABS.values(), matmul.BATCH, convolution.CONV3X3,
        quantized.MATMUL, quantized.RELU,
    )
}  # fmt: skip
#: Copies of the data in a device's memory: arguments and result, and what a step packs or pads.
ON_DEVICE = 2
#: Largest number of elements: kernels count them in 32 bits.
_MOST_ELEMENTS = 2**31 - 1


def lab_of(name: str) -> Lab:
    """Return a lab by its name; raise `InputError` if there is none."""
    if name not in LABS:
        raise InputError(
            f"There is no lab {name!r}; expected one of {', '.join(LABS)}.",
            remedy="`tvmflow lab` lists them.",
        )
    return LABS[name]


def steps_of(lab: Lab, target: TargetSpec, names: Sequence[str] | None = None) -> tuple[Step, ...]:
    """Return a lab's steps on a target, or the named ones; raise `InputError` for unknown names."""
    steps = lab.steps(target.device)
    for name in names or ():
        if name not in (known := [step.name for step in steps]):
            raise InputError(
                f"The lab {lab.name} has no step {name!r}; expected some of {', '.join(known)}.",
                remedy="Name one of these; without `steps` all of them run.",
            )
    return tuple(step for step in steps if not names or step.name in names)


def with_blocks(
    lab: Lab, steps: Sequence[Step], size: int, block: int | None, device: Device
) -> tuple[Step, ...]:
    """Return the steps with blocks of another size; steps without blocks are unchanged.

    On a CPU ``block`` is the most register tiles below each other in a block, on a GPU the items
    of a work-group along its rows and columns.  Raises `InputError` if no step has blocks, or
    some step cannot have blocks of this size.
    """
    if block is None:
        return tuple(steps)
    if not any(map(_has_blocks, steps)):
        names = ", ".join(step.name for step in steps)
        labs = [name for name, lab in LABS.items() if any(map(_has_blocks, lab.steps(device)))]
        raise InputError(
            f"The lab {lab.name} was asked for blocks of {block}; none of its steps {names} has "
            "blocks.",
            remedy=f"Leave `block` out; labs with blocks: {', '.join(labs)}.",
        )
    changed = []
    for step in steps:
        schedule = step.apply
        if isinstance(schedule, Tile | GroupTile) and (blocked := schedule.with_block(block)):
            most = schedule.most(int(lab.compute(size)[-1].shape[-2]), device)
            if not 1 <= block <= most:
                raise InputError(
                    f"The step {step.name} of the lab {lab.name} was asked for blocks of {block}; "
                    f"expected 1 to {most}, with {size} {lab.counts} on {device.name}.",
                    remedy=f"Give a `block` from 1 to {most}, or none.",
                )
            step = replace(step, apply=blocked)
        changed.append(step)
    return tuple(changed)


def _has_blocks(step: Step) -> bool:
    return isinstance(step.apply, Tile | GroupTile) and step.apply.with_block(1) is not None


def check_size(lab: Lab, size: int, memory: int | None, where: str, copies: int) -> None:
    """Raise `InputError` for an invalid size, or one for which there is not enough memory.

    The arguments and the result have to fit ``copies`` times into the ``memory`` of ``where``, in
    bytes; ``None`` if nothing is allocated.
    """
    remedy, most = "Give a smaller `size`.", f"kernels count up to {_MOST_ELEMENTS:,}"
    # TE does not allow tensors of larger extents.
    tensors = lab.compute(size) if 1 <= size <= _MOST_ELEMENTS else []
    largest = max((prod(int(d) for d in tensor.shape) for tensor in tensors), default=0)
    needed = copies * sum(map(tensor_bytes, tensors))
    if size < 1:
        wrong = f"was asked for {size} {lab.counts}; expected at least 1"
        remedy = f"Give a positive `size`, or none for {lab.size}."
    elif size > _MOST_ELEMENTS:
        wrong = f"was asked for {size:,} {lab.counts}; {most}"
    elif largest > _MOST_ELEMENTS:
        wrong = f"with {size} {lab.counts} has a tensor of {largest:,} elements; {most}"
    elif memory is not None and needed > memory:
        there = f"{bytes_text(needed)}, copies included; {where} has {bytes_text(memory)}"
        wrong = f"with {size} {lab.counts} needs {there}"
    else:
        return
    raise InputError(f"The lab {lab.name} {wrong}.", remedy=remedy)


def scheduled(
    name: str,
    step: str,
    *,
    size: int | None = None,
    target: str = "llvm",
    device: str = "auto",
    block: int | None = None,
) -> tirx.PrimFunc:
    """Return a lab's computation as one of its steps schedules it; needs no device.

    `InputError` if there is no such lab, step, size or block; `TargetError` if target and device do
    not match.
    """
    lab, spec = lab_of(name), resolve(target, device)
    size = lab.size if size is None else size
    check_size(lab, size, None, "nothing", 0)
    (chosen,) = with_blocks(lab, steps_of(lab, spec, [step]), size, block, spec.device)
    return lab.schedule(chosen, size, spec)


__all__ = [
    "LABS",
    "ON_DEVICE",
    "Lab",
    "Layout",
    "Step",
    "check_size",
    "lab_of",
    "scheduled",
    "steps_of",
    "with_blocks",
]
