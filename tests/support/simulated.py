"""Count what kernels execute under `oclgrind-kernel`, without a driver or a process of TVM."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

from tvm import IRModule, tirx

from tvmflow.codegen.kernels import generate_kernels
from tvmflow.devices.target import TargetSpec
from tvmflow.explain.analysis import LoweredKernel, kernels_of

_HEADING = re.compile(r"Instructions executed for kernel '(\w+)'")
_COUNT = re.compile(r"\s*([\d,]+) - (.+?)(?: \(([\d,]+) bytes\))?$")
#: A call of an OpenCL C built-in; mangled names carry the address space.
_CALL = re.compile(r"call _Z\d+(vload\d+|vstore\d+|[a-z_]+)")


def simulate(function: tirx.PrimFunc, target: TargetSpec, folder: Path) -> Counter[str]:
    """Count the instructions of a function's only kernel, as Oclgrind names them.

    Optimisation is off: every access of the source is an instruction.
    """
    options = ["--inst-counts", "--build-options", "-cl-opt-disable"]
    (kernel,) = kernels_of(function, target)
    said = _run(function, kernel, _source(function, kernel, target), folder, options)
    (counts,) = executed(said).values()
    return counts


def addresses(
    function: tirx.PrimFunc, target: TargetSpec, folder: Path
) -> dict[tuple[int, ...], list[tuple[str, int]]]:
    """Return each work-item's accesses to global memory in a function's only kernel, in order.

    Returns
    -------
    dict
        By numbers of group and item: names of tensors and numbers of elements; for vectors,
        the first element.
    """
    (kernel,) = kernels_of(function, target)
    tensors = [param.name for param in kernel.device.params]
    text = _source(function, kernel, target)
    for number, name in enumerate(tensors):
        text = _logged(text, f"{name}[", "]", number)
        text = _logged(text, f"{name} + (", ")", number)
    head = text.index(")", text.index(f"{kernel.name}("))
    text = f"{_LOG}{text[:head]}, __global int* seen_{text[head:]}"
    items = kernel.groups * kernel.group_size
    said = _run(function, kernel, text, folder, [], f"<size={4 * _EVENTS * items} fill=0 int dump>")
    log = [int(number) for number in re.findall(r"seen_\[\d+\] = (-?\d+)", said)]
    assert len(log) == _EVENTS * items, said
    found = {}
    for item in range(items):
        count, *events = log[item * _EVENTS : (item + 1) * _EVENTS]
        assert count < _EVENTS
        found[divmod(item, kernel.group_size)] = [
            (tensors[event % _TENSORS].removesuffix("_ptr"), event // _TENSORS)
            for event in events[:count]
        ]
    return found


#: Size of an item's log: the number of events, and the events.
_EVENTS = 64
_TENSORS = 8
#: Items are numbered group by group, and within a group along x first.
_LOG = f"""
int seen(__global int* log, int tensor, int element) {{
  int group = get_group_id(0) + get_num_groups(0) * get_group_id(1);
  int item = get_local_id(0) + get_local_size(0) * get_local_id(1);
  int size = get_local_size(0) * get_local_size(1);
  __global int* mine = log + (group * size + item) * {_EVENTS};
  mine[0] += 1;
  mine[mine[0]] = element * {_TENSORS} + tensor;
  return element;
}}
"""


def _logged(text: str, opening: str, closing: str, tensor: int) -> str:
    """Return the source with accesses logged whose brackets open with ``opening``."""
    opens = opening[-1]
    done, _, rest = text.partition(opening)
    while rest:
        depth, end = 1, 0
        while depth:
            depth += {opens: 1, closing: -1}.get(rest[end], 0)
            end += 1
        # Elements of another tensor may occur within.
        inner = _logged(rest[: end - 1], opening, closing, tensor)
        done += f"{opening}seen(seen_, {tensor}, {inner}){closing}"
        more, _, rest = rest[end:].partition(opening)
        done += more
    return done


def _source(function: tirx.PrimFunc, kernel: LoweredKernel, target: TargetSpec) -> str:
    name = kernel.name.removesuffix("_kernel")
    with target.tvm_target:
        return generate_kernels(IRModule({name: function}), target).sources[kernel.name]


def _run(
    function: tirx.PrimFunc,
    kernel: LoweredKernel,
    source: str,
    folder: Path,
    options: Sequence[str],
    *more: str,
) -> str:
    """Run a kernel with tensors of zeros and more arguments; return Oclgrind's output."""
    (folder / "kernel.cl").write_text(source)
    extents = {tag: extent for tag, (_, extent) in kernel.launch.items()}
    local = [extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
    blocks = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
    lines = ["kernel.cl", kernel.name]
    lines.append(" ".join(str(b * n) for b, n in zip(blocks, local, strict=True)))
    lines.append(" ".join(map(str, local)))
    sizes = {b.name: prod(map(int, b.shape)) for b in function.params}
    names = [param.name.removesuffix("_ptr") for param in kernel.device.params]
    lines += [f"<size={4 * sizes[name]} fill=0 int>" for name in names]
    (folder / "kernel.sim").write_text("\n".join([*lines, *more]) + "\n")
    run = subprocess.run(
        ["oclgrind-kernel", *options, "kernel.sim"],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return run.stdout + run.stderr


def executed(said: str) -> dict[str, Counter[str]]:
    """Return instructions, and bytes of accesses, of each kernel in Oclgrind's output.

    Built-ins of OpenCL C have their name, and the address space if it is global.
    """
    kernels: dict[str, Counter[str]] = {}
    for line in said.splitlines():
        if heading := _HEADING.match(line):
            counts = kernels.setdefault(heading.group(1), Counter())
        elif found := _COUNT.match(line):
            count, name, size = found.groups()
            if call := _CALL.match(name):
                name = call.group(1) + (" global" if "AS1" in name else "")
            counts[name] += int(count.replace(",", ""))
            if size:
                counts[f"{name} bytes"] += int(size.replace(",", ""))
    assert kernels, said
    return kernels
