"""From a scheduled primary function to its kernels as they are just before code generation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from tvm import IRModule, tirx

from ...codegen.kernels import split_kernels
from ...devices.target import TargetSpec
from ...errors import InputError
from ...module.functions import tir_text, unpack_functions
from ...module.module import Module
from .collector import Collector
from .lines import binding_above, line_of
from .sites import Branch, Site

_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Kernel:
    """One kernel of a primary function, and where it accesses memory."""

    name: str
    #: Lowered: flat buffers, explicit vectors, unrolled loops.
    device: tirx.PrimFunc
    #: The scheduled primary function that it is of.
    source: tirx.PrimFunc

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What analyses have computed of it, by keys of their own."""
        return {}

    @cached_property
    def text(self) -> str:
        """The scheduled primary function as TVMScript, which lines refer to."""
        return tir_text(self.source)

    @cached_property
    def _collected(self) -> Collector:
        return Collector(self.device)

    @property
    def sites(self) -> list[Site]:
        """Accesses to memory of all scopes, in the order of the code."""
        return self._collected.sites

    @property
    def branches(self) -> list[Branch]:
        """Conditions of statements and values."""
        return self._collected.branches

    @property
    def allocated(self) -> list[Any]:
        """Buffers that the kernel has of its own, in private and local memory."""
        return self._collected.allocated

    @property
    def sums(self) -> set[Any]:
        """Buffers that are written with sums of what they had."""
        return self._collected.sums

    @property
    def parallel(self) -> set[Any]:
        """Variables whose values are spread over cores: of work-items, or of parallel loops."""
        return self._collected.parallel | {var for var, _ in self.launch.values()}

    @property
    def launch(self) -> dict[str, tuple[Any, int]]:
        """Variable and extent of each bound axis, by its tag, ``threadIdx.x`` for example."""
        return self._collected.launch

    @property
    def group(self) -> tuple[int, int, int]:
        """Work-items of a work-group along x, y and z."""
        x, y, z = (self.launch.get(f"threadIdx.{axis}", (None, 1))[1] for axis in _AXES)
        return x, y, z

    @property
    def group_size(self) -> int:
        """Work-items of a work-group."""
        return prod(self.group)

    @property
    def groups(self) -> int:
        """Number of work-groups."""
        return prod(self.launch.get(f"blockIdx.{axis}", (None, 1))[1] for axis in _AXES)

    def line(self, *sites: Site) -> int:
        """Line in the text of the first of some sites that has one, 0 if none has."""
        return next(filter(None, (self._line(s.name, s.is_store) for s in sites)), 0)

    @cached_property
    def launch_line(self) -> int:
        """Line in the text that binds the items which write its results, 0 if there is none."""
        stores = (self.line(site) for site in self.sites if site.is_store)
        return binding_above(self.text, max(stores, default=0))

    def _line(self, buffer: str, is_store: bool) -> int:
        key = "line", buffer, is_store
        if key not in self.memo:
            self.memo[key] = line_of(self.text, buffer, is_store=is_store)
        return int(self.memo[key])


def functions_of(module: Module) -> dict[str, tirx.PrimFunc]:
    """The scheduled primary functions that a module carries, by name.

    Raises
    ------
    InputError
        If it carries none, as standalone libraries and modules of older versions.
    """
    content = module.read_functions()
    if content is None:
        raise InputError(
            f"{module.path} cannot be analysed: scheduled functions were expected in it, and it "
            "carries none.",
            remedy="Compile the network with this version, without `format=standalone`.",
        )
    return unpack_functions(content)


def kernels_of(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Kernel]:
    """Lower a scheduled primary function; what is a kernel already stays as it is.

    Returns
    -------
    list of Kernel
        In the order in which they are launched; empty for targets without work-items.
    """
    if isinstance(function, Kernel):
        return [function]
    if not target.is_gpu_kernel:
        return []
    return _lowered(function, target)[1]


def code_for_cpu(function: tirx.PrimFunc | Kernel, target: TargetSpec) -> list[Kernel]:
    """The same for a CPU: its kernels, or on ``llvm`` all of the function's loops as one.

    Returns
    -------
    list of Kernel
        Empty for other devices.
    """
    if not target.device.is_cpu:
        return []
    if isinstance(function, Kernel):
        return [function]
    hosts, devices = _lowered(function, target)
    return devices if target.is_gpu_kernel else hosts


def _lowered(function: tirx.PrimFunc, target: TargetSpec) -> tuple[list[Kernel], list[Kernel]]:
    """What runs on the host, and on the device."""
    name = str((function.attrs or {}).get("global_symbol", "main"))
    with target.tvm_target:
        split = split_kernels(IRModule({name: function}), target)
    hosts, devices = (
        [Kernel(each, code, function) for each, code in side.items()] for side in split
    )
    # Those of tensors without elements are not launched.
    return hosts, [kernel for kernel in devices if kernel.groups * kernel.group_size]
