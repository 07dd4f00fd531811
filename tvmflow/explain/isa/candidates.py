"""Machine code of tuning candidates: tasks with knobs that no module contains yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...codegen.kernels import split_source
from ...devices.gpus import Gpu
from ...tuning.building import lower
from ...tuning.offline import Code, MachineCode, scheduled
from ...tuning.tasks import Knobs, Task
from . import mesa
from .record import KernelCode, KernelSource
from .report import SUITE


def machine_code_for(gpu: Gpu) -> MachineCode:
    """Return a function that compiles candidates; `DeviceError` if there is no compiler."""
    tree = mesa.find_tree(gpu, SUITE)

    def compile_all(cases: Sequence[tuple[Task, Knobs]]) -> list[Code | None]:
        sources = [list(_kernels(task, knobs)) for task, knobs in cases]
        compiler, found = mesa.compile_kernels([k for some in sources for k in some], gpu, tree)
        codes = iter(found)
        return [_code([next(codes) for _ in some], compiler) for some in sources]

    return compile_all


def _kernels(task: Task, knobs: Knobs) -> Iterator[KernelSource]:
    """Yield the kernels of a candidate; none if it cannot be scheduled."""
    if (schedule := scheduled(task, knobs)) is None:
        return
    with task.target.tvm_target:
        library = lower(schedule.mod["main"], task.target)
    for module in library.imports:
        for name, text in split_source(str(module.inspect_source())).items():
            yield KernelSource(name, task.name, text)


def _code(kernels: Sequence[object], compiler: str) -> Code | None:
    """Return the statistics of a candidate's main kernel; ``None`` if a kernel did not compile."""
    codes = [kernel for kernel in kernels if isinstance(kernel, KernelCode)]
    if not codes or len(codes) < len(kernels):
        return None
    # Padding or packing may be kernels of their own; the main one has the most multiply-adds.
    code = max(codes, key=lambda each: each.whole.multiply_adds)
    return Code(compiler, code.registers, code.spills, code.waves, code.wave)
