"""The tensors between primary functions: who writes and reads them, and what needs a buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst

from ...ir.rewriter import constant_array, shape_of
from ...ir.scope import CHANNELS
from ...ir.signatures import called_function, wants_schedule
from ..scans import PARTIAL
from .cost import Traffic

#: Element types that images have channels of, and schedules compute in.
DTYPES = ("float32",)


@dataclass
class Tensor:
    """A tensor between primary functions, while it is being placed."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: bool
    #: Whether it may be stored in 16 bits: it is fp32, and no known value is beyond 65504.
    can_be_half: bool = False
    #: Whether it is a constant that 16 bits hold as it is.
    is_exact_in_half: bool = False
    #: Why it is made as a buffer; empty if what makes it can make a texture.
    written_as_buffer: str = ""
    #: Why a reader needs a buffer; empty if all can read a texture.
    read_as_buffer: str = ""
    #: Why it must be a texture, for the application has or wants one.
    pinned: str = ""
    #: What the functions do with it that may have it in either storage.
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def obstacle(self) -> str:
        """Why it must be a buffer on one side, at least; empty while it may be a texture."""
        return self.written_as_buffer or self.read_as_buffer

    @property
    def has_texels(self) -> bool:
        """Whether its form is that of a texture: a constant of any rank, else blocked."""
        rank_fits = len(self.shape) >= 3 if self.constant else len(self.shape) == 5
        return rank_fits and self.shape[-1] == CHANNELS and self.dtype in DTYPES

    @property
    def why_no_texels(self) -> str:
        """What keeps it from being made of texels."""
        if self.dtype not in DTYPES:
            return f"of {self.dtype}, and textures hold {' or '.join(DTYPES)}"
        if self.constant and len(self.shape) < 3:
            return "a constant of fewer than 3 axes"
        if len(self.shape) == 5 and self.shape[-1] > CHANNELS:
            return f"in blocks of {self.shape[-1]} channels, and a texel has {CHANNELS}"
        return f"in a plain layout, without blocks of {CHANNELS} channels"


class Uses:
    """The tensors of ``main``, by :func:`key`.

    Parameters
    ----------
    mod
        Fused primary functions, called by ``main`` with ``call_tir``.
    inputs
        Names of the first parameters of ``main``, instead of their own.
    textures
        Inputs and outputs of the model that the application has as textures: numbers of
        parameters, and of results.
    """

    def __init__(
        self,
        mod: IRModule,
        inputs: Sequence[str] = (),
        textures: tuple[Collection[int], Collection[int]] = ((), ()),
    ):
        self.mod = mod
        self.main = mod["main"]
        self.tensors: dict[Any, Tensor] = {}
        self.bindings = [b for block in self.main.body.blocks for b in block.bindings]
        #: Values of the variables that are tuples, or other names.
        self.renamed = {
            b.var: b.value for b in self.bindings if isinstance(b.value, relax.Var | relax.Tuple)
        }
        #: What ``main`` returns, in order.
        self.results = self._results()
        for index, param in enumerate(self.main.params):
            name = inputs[index] if index < len(inputs) else param.name
            tensor = self._note(param, name, constant=False)
            if tensor is not None and index in textures[0]:
                tensor.pinned = "an input that is kept as a texture"
            elif tensor is not None:
                tensor.written_as_buffer = "an input of the model"
        for binding in self.bindings:
            self._follow(binding)
        for index, result in enumerate(self.results):
            tensor = self.get(result)
            if tensor is not None and index in textures[1]:
                tensor.pinned = tensor.pinned or "an output that is kept as a texture"
            else:
                self._needs_buffer([result], "an output of the model")

    def get(self, expr: relax.Expr) -> Tensor | None:
        """The tensor that an expression is."""
        return self.tensors.get(key(expr))

    def is_result(self, binding: relax.Binding) -> bool:
        """Whether a binding makes the tuple that ``main`` returns, or renames a tensor for it."""
        return binding.var.same_as(self.main.body.body) and binding.var in self.renamed

    def _results(self) -> list[relax.Expr]:
        body = self.main.body.body
        value = self.renamed.get(body, body)
        return list(value.fields) if isinstance(value, relax.Tuple) else [value]

    def _follow(self, binding: relax.Binding) -> None:
        if self.is_result(binding):
            return
        tensor = self._note(binding.var, binding.var.name, constant=False)
        call = called_function(self.mod, binding.value)
        if call is None:
            self._needs_buffer(_variables(binding.value), "read as a plain tensor")
            if tensor is not None:
                tensor.written_as_buffer = "not written by a primary function"
            return
        function, arguments = call
        if tensor is not None and PARTIAL in (function.attrs or {}):
            tensor.can_be_half = False
        opaque = is_opaque(function)
        for index, argument in enumerate(arguments):
            read = self.get(argument)
            if read is None:
                name = f"{binding.var.name}.{function.params[index].name}"
                read = self._note(argument, name, constant=True)
            if opaque:
                self._needs_buffer([argument], "read by a function that has no schedule of ours")
            elif read is not None and read.has_texels:
                read.traffic.read(function, index)
        if tensor is not None and opaque:
            tensor.written_as_buffer = "written by a function that has no schedule of ours"
        elif tensor is not None:
            tensor.traffic.written(tensor.shape)

    def _note(self, expr: relax.Expr, name: str, *, constant: bool) -> Tensor | None:
        if not isinstance(expr.ty, relax.TensorType):
            return None
        tensor = Tensor(name, shape_of(expr), str(expr.ty.dtype), constant)
        array = constant_array(expr)
        tensor.can_be_half = tensor.dtype == "float32" and (array is None or _fits_half(array))
        if array is not None and tensor.dtype == "float32" and array.size > 1:
            with np.errstate(over="ignore"):
                tensor.is_exact_in_half = bool((array.astype("float16") == array).all())
        self.tensors[key(expr)] = tensor
        return tensor

    def _needs_buffer(self, exprs: Iterable[relax.Expr], why: str) -> None:
        for expr in exprs:
            tensor = self.get(expr)
            if tensor is not None:
                tensor.read_as_buffer = tensor.read_as_buffer or why


def key(expr: relax.Expr) -> Any:
    """Variables are themselves; constants are known by their tensor, which calls may share."""
    return expr.value.__hash__() if isinstance(expr, GenericConst) else expr


def is_opaque(function: tirx.PrimFunc) -> bool:
    """Whether a function has its schedule already: then its accesses are not ours to change."""
    return not wants_schedule(function)


def _variables(expr: relax.Expr) -> list[relax.Expr]:
    found: list[relax.Expr] = []
    tvm_ffi.structural_walk(expr, (relax.Var, found.append))
    return found


def _fits_half(array: np.ndarray) -> bool:
    """Whether a constant is worth 16 bits, and has no value that they cannot hold.

    A number for each channel is not: there are few of them, and a scale that is rounded moves
    quantized numbers to other steps.
    """
    extents = array.shape
    if array.ndim == 5:  # in blocks of channels
        extents = (extents[0], extents[1] * extents[-1], *extents[2:-1])
    known = np.abs(array[np.isfinite(array)])
    large = array.size > max(extents, default=1)
    return large and known.max(initial=0) <= np.finfo(np.float16).max
