"""Lowered kernels of scheduled primary functions, as they are just before code generation.

Analyses take a kernel and a target; :func:`of_kernels` and :func:`of_cpu_code` make them accept
primary functions, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from math import prod
from typing import Any, TypeAlias, TypeVar

from tvm import IRModule, tirx

from ...codegen.kernels import split_kernels
from ...devices.target import TargetSpec
from ...errors import InputError
from ...module.functions import functions_of_shape, tir_text
from ...module.module import Module
from ..profiling.record import Finding
from .accesses import KernelCode, Site

_Found = TypeVar("_Found")
#: Pattern of a statement that binds an axis of work-groups or work-items.
_BINDS = re.compile(r"\"(blockIdx|threadIdx)\.[xyz]\"")
_DECLARES = ("T.reads", "T.writes", "T.match_buffer", "def ")


@dataclass(frozen=True)
class InKernel:
    """A place in the code of a kernel."""

    kernel: str
    #: Access there: buffer and index as TVMScript.
    text: str
    #: Line in the text of the scheduled primary function, starting at 1; 0 if there is none.
    line: int

    @property
    def buffer(self) -> str:
        """Name of the accessed buffer."""
        return self.text.split("[")[0]

    def finding(
        self,
        kind: str,
        cost: Mapping[str, float],
        share: float,
        sentence: str,
        remedy: str,
        text: str = "",
    ) -> Finding:
        """Make a finding at this place; ``text`` replaces the access, if given."""
        access = text or self.text
        return Finding(self.kernel, kind, access, self.line, cost, share, sentence, remedy)


class LoweredKernel(KernelCode):
    """One kernel of a primary function, and its memory accesses."""

    def __init__(self, name: str, device: tirx.PrimFunc, source: tirx.PrimFunc):
        super().__init__(device)
        self.name = name
        #: Lowered function: flat buffers, explicit vectors, unrolled loops.
        self.device = device
        #: Scheduled primary function that the kernel belongs to.
        self.source = source
        #: Cached results of analyses.
        self.memo: dict[Hashable, Any] = {}

    @cached_property
    def text(self) -> str:
        """TVMScript of the scheduled primary function, which line numbers refer to."""
        return tir_text(self.source)

    @property
    def group_size(self) -> int:
        """Work-items of a work-group."""
        return prod(extent for _, extent in self.items)

    @property
    def groups(self) -> int:
        """Number of work-groups."""
        return prod(extent for _, extent in self.blocks)

    def line(self, *sites: Site) -> int:
        """Return the line of the first site that has one; 0 if none has."""
        places = ((site.name, site.is_store) for site in sites)
        lines = (self.once(("line", *at), partial(line_of, self.text, *at)) for at in places)
        return next(filter(None, lines), 0)

    def at(self, site: Site, *others: Site) -> tuple[str, str, int]:
        """Return the fields of `InKernel` for a site, with the line of ``others`` if given."""
        return self.name, str(site), self.line(*(others or (site,)))

    @cached_property
    def launch_line(self) -> int:
        """Line that binds the work-items which write the results; 0 if there is none."""
        below = max(map(self.line, self.stores), default=0)
        lines = self.text.splitlines()
        return next((n for n in range(below - 1, 0, -1) if _BINDS.search(lines[n - 1])), 0)

    def once(self, key: Hashable, compute: Callable[[], _Found]) -> _Found:
        """Return a cached result, computed on first use."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]


def line_of(text: str, buffer: str, is_store: bool) -> int:
    """Return the line of the first access to a buffer in a primary function's text.

    Lowering splits statements but keeps the names of tensors, so this is the first statement that
    writes to, or reads from, the tensor of this name.  Lines start at 1; 0 means none.
    """
    # TVMScript replaces letters of names that its variables cannot have.
    name = re.sub(r"\W", "_", buffer)
    pattern = re.compile(rf"(?<!\w){name}\[")
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if code.startswith(_DECLARES):
            continue
        target, assigned, value = code.partition("] = ")
        found = pattern.match(target) if is_store else pattern.search(value if assigned else code)
        if found and (assigned or not is_store):
            return number
    return 0


#: A scheduled primary function, or one of its kernels.
Analysed: TypeAlias = "tirx.PrimFunc | LoweredKernel"


def functions_of(module: Module) -> dict[str, tirx.PrimFunc]:
    """Return the scheduled primary functions that a module carries, by name.

    `InputError` if it carries none, like standalone libraries.
    """
    functions = functions_of_shape(module.read_functions(), module.metadata)
    if not functions:
        raise InputError(
            f"{module.path} cannot be analysed: scheduled functions were expected in it, and it "
            "carries none.",
            remedy="Compile the network without `format=standalone`.",
        )
    return functions


def kernels_of(function: Analysed, target: TargetSpec) -> list[LoweredKernel]:
    """Lower a scheduled primary function to its kernels, in the order of their launches.

    A kernel is returned as it is.  Targets without work-items have no kernels.
    """
    if isinstance(function, LoweredKernel) or target.is_gpu_kernel:
        return _lowered(function, target)
    return []


def code_for_cpu(function: Analysed, target: TargetSpec) -> list[LoweredKernel]:
    """Lower a function for CPUs: its kernels, or on ``llvm`` all loops as one; else none."""
    return _lowered(function, target) if target.device.is_cpu else []


def _lowered(function: Analysed, target: TargetSpec) -> list[LoweredKernel]:
    if isinstance(function, LoweredKernel):
        return [function]
    name = str((function.attrs or {}).get("global_symbol", "main"))
    with target.tvm_target:
        hosts, devices = split_kernels(IRModule({name: function}), target)
    code = devices if target.is_gpu_kernel else hosts
    kernels = [LoweredKernel(each, lowered, function) for each, lowered in code.items()]
    # Kernels for tensors without elements are not launched.
    return [kernel for kernel in kernels if kernel.groups * kernel.group_size]


_OfKernel = Callable[[LoweredKernel, TargetSpec], Iterable[_Found]]
_OfAll = Callable[[Analysed, TargetSpec], list[_Found]]


def of_kernels(
    analyse: _OfKernel[_Found], kernels: _OfAll[LoweredKernel] = kernels_of
) -> _OfAll[_Found]:
    """Extend an analysis of a kernel to all kernels of a primary function."""

    @wraps(analyse)
    def of_all(function: Analysed, target: TargetSpec) -> list[_Found]:
        return [one for kernel in kernels(function, target) for one in analyse(kernel, target)]

    return of_all


def of_cpu_code(analyse: _OfKernel[_Found]) -> _OfAll[_Found]:
    """Extend an analysis of a kernel to a primary function on CPUs; elsewhere it finds nothing."""
    return of_kernels(analyse, code_for_cpu)
