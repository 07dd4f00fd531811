"""Tensors between primary functions: writers, readers, obstacles to textures, and costs.

A tensor is written once, streamed from memory once, and then read again from the
cache as often as its readers' loops say.  With W texels written, U different texels,
R texel reads of all readers, and speeds relative to a buffer of the same device::

    cost(buffer)  =  W         +  U          +  max(0, R - U)
    cost(texture) =  W / write +  U / stream +  max(0, R - U) / cached

The three speeds are facts of the device (:class:`tvmflow.devices.target.TextureSpeed`).
Register tiles reduce R equally in both, so they do not change which cost is larger.

Primary functions accept any combination of storage, so tensors need no conversion.  Only if one
side of a tensor must have a buffer (an input or output of the model, say), a texture for the other
side costs a copy of U texels::

    into a texture:  U  +  U / write          into a buffer:  U / stream  +  U
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax, tirx
from tvm.ir import Call, GenericConst
from tvm.ir.expr import TensorLoad

from ...devices.target import Device
from ...ir.expressions import nodes_in
from ...ir.loops import is_loop_call
from ...ir.rewriter import constant_array, shape_of
from ...ir.scope import CHANNELS
from ...ir.signatures import bindings_of, called_function, takes_textures
from ...ir.traffic import count_reads
from ..legalize import PARTIAL


@dataclass
class Traffic:
    """Numbers of texels of a tensor that are written, exist, and are read."""

    writes: int = 0
    unique: int = 0
    reads: int = 0

    def read(self, function: tirx.PrimFunc, index: int) -> None:
        """Add the reads of a function's parameter ``index``."""
        param = function.params[index]
        self.unique = prod(int(d) for d in param.shape) // CHANNELS
        self.reads += count_reads(function, param) // CHANNELS

    def cost(self, write: float, stream: float, cached: float) -> float:
        """Return the cost by the formula above, in texels read from a buffer."""
        again = max(0, self.reads - self.unique)
        return self.writes / write + self.unique / stream + again / cached


def prefers_texture(traffic: Traffic, device: Device, copy: str = "") -> tuple[bool, str]:
    """Return whether a texture costs less, and a text with both costs.

    ``copy`` is ``texture`` or ``buffer`` if a texture requires a copy of the tensor into that
    storage. Equal costs go to the texture on a device that reads textures faster.
    """
    speed = device.texture
    buffer = traffic.cost(1.0, 1.0, 1.0)
    texture = traffic.cost(speed.write, speed.stream, speed.cached)
    if copy == "texture":
        texture += traffic.unique + traffic.unique / speed.write
    elif copy == "buffer":
        texture += traffic.unique / speed.stream + traffic.unique
    better = texture < buffer or (texture == buffer and speed.cached > 1)
    order = "<" if texture < buffer else "=" if texture == buffer else ">"
    how = "as texture, with its copy," if copy else "as texture"
    return better, f"cost {texture:,.0f} {how} {order} {buffer:,.0f} as buffer"


#: Element types that images support and schedules compute in.
DTYPES = ("float32",)
#: Element types of indices, sizes and counts.
COUNTS = ("int32", "int64", "bool")


@dataclass
class Tensor:
    """A tensor between primary functions, before its placement is decided."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: bool
    #: Whether it may be stored in 16 bits: it is fp32, and no known value exceeds 65504.
    can_be_half: bool = False
    #: Whether it is computed from integers, booleans and scalars only: indices, for example, which
    #: exporters divide as floats and round down, and which exceed 2048, beyond which 16 bits skip
    #: integers.
    of_integers: bool = False
    #: Whether it is a constant that is exact in 16 bits.
    is_exact_in_half: bool = False
    #: Reason why its producer writes a buffer; empty if the producer can write a texture.
    written_as_buffer: str = ""
    #: Reason why a reader needs a buffer; empty if all readers can read a texture.
    read_as_buffer: str = ""
    #: Reason why it must be a texture: the application passes or requests one.
    pinned: str = ""
    #: Accesses of the functions that accept either storage.
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def obstacle(self) -> str:
        """Return the reason for a buffer on at least one side; empty if a texture is possible."""
        return self.written_as_buffer or self.read_as_buffer

    @property
    def has_texels(self) -> bool:
        """Return whether its shape fits a texture: a constant of three axes or more, or blocked."""
        rank_fits = len(self.shape) >= 3 if self.constant else len(self.shape) == 5
        return rank_fits and self.shape[-1] == CHANNELS and self.dtype in DTYPES

    @property
    def can_be_copied(self) -> bool:
        """Return whether a texture copy is possible and has readers that would use it."""
        return not self.constant and self.has_texels and self.traffic.reads > 0

    @property
    def why_no_texels(self) -> str:
        """Return the reason why it does not consist of texels."""
        if self.dtype not in DTYPES:
            return f"of {self.dtype}, and textures hold {' or '.join(DTYPES)}"
        if self.constant and len(self.shape) < 3:
            return "a constant of fewer than 3 axes"
        if len(self.shape) == 5 and self.shape[-1] > CHANNELS:
            return f"in blocks of {self.shape[-1]} channels, and a texel has {CHANNELS}"
        return f"in a plain layout, without blocks of {CHANNELS} channels"


class Uses:
    """Tensors of ``main`` by :func:`key`; the arguments are those of the pass."""

    def __init__(
        self,
        mod: IRModule,
        inputs: Sequence[str] = (),
        textures: tuple[Collection[int], Collection[int]] = ((), ()),
    ):
        self.mod = mod
        self.main = mod["main"]
        self.tensors: dict[Hashable, Tensor] = {}
        self.bindings = bindings_of(self.main)
        #: Values of the variables that are tuples or aliases.
        self.renamed = {
            b.var: b.value for b in self.bindings if isinstance(b.value, relax.Var | relax.Tuple)
        }
        #: Results of loops, as tuples.
        self._loops = {b.var for b in self.bindings if is_loop_call(b.value)}
        #: Results of ``main``, in order.
        result = self.main.body.body
        result = self.renamed.get(result, result)
        self.results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
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
        """Return the tensor of an expression, if it is known."""
        return self.tensors.get(key(expr))

    def is_result(self, binding: relax.Binding) -> bool:
        """Return whether a binding defines the tuple that ``main`` returns, or renames it."""
        return binding.var.same_as(self.main.body.body) and binding.var in self.renamed

    def _follow(self, binding: relax.Binding) -> None:
        if self.is_result(binding):
            return
        tensor = self._note(binding.var, binding.var.name, constant=False)
        call = called_function(self.mod, binding.value)
        if call is None:
            self._needs_buffer(nodes_in(binding.value, relax.Var), "read as a plain tensor")
            if tensor is not None:
                tensor.written_as_buffer = "not written by a primary function"
                # A loop has its own program, and may compute its result from integers only.
                value = binding.value
                tensor.of_integers = (
                    isinstance(value, relax.TupleGetItem) and value.tuple_value in self._loops
                )
            return
        function, arguments = call
        # A function with a given schedule, whose accesses cannot be changed.
        opaque = not takes_textures(function)
        for index, argument in enumerate(arguments):
            read = self.get(argument)
            if read is None:
                name = f"{binding.var.name}.{function.params[index].name}"
                read = self._note(argument, name, constant=True)
            if opaque:
                self._needs_buffer([argument], "read by a function without a tvmflow schedule")
            elif read is not None and read.has_texels:
                read.traffic.read(function, index)
        if tensor is not None and tensor.can_be_half:
            tensor.of_integers = _makes_counts(function, [self._counts(a) for a in arguments])
            partial = PARTIAL in (function.attrs or {})
            tensor.can_be_half = not (tensor.of_integers or partial)
        if tensor is not None and opaque:
            tensor.written_as_buffer = "written by a function without a tvmflow schedule"
        elif tensor is not None:
            tensor.traffic.writes += prod(tensor.shape) // CHANNELS

    def _counts(self, expr: relax.Expr) -> bool:
        """Return whether a tensor is of `COUNTS`, is computed from such, or is a scalar."""
        tensor = self.get(expr)
        return tensor is None or tensor.dtype in COUNTS or tensor.of_integers

    def _note(self, expr: relax.Expr, name: str, *, constant: bool) -> Tensor | None:
        if not isinstance(expr.ty, relax.TensorType):
            return None
        tensor = Tensor(name, shape_of(expr), str(expr.ty.dtype), constant)
        array = constant_array(expr)
        tensor.can_be_half = tensor.dtype == "float32" and (array is None or _fits_half(array))
        tensor.of_integers = array is not None and (array.size == 1 or _is_whole(array))
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


def key(expr: relax.Expr) -> Hashable:
    """Return a variable itself; for a constant its tensor's hash, which several calls may share."""
    return expr.value.__hash__() if isinstance(expr, GenericConst) else expr


def _makes_counts(function: tirx.PrimFunc, counts: Sequence[bool]) -> bool:
    """Return whether a function's result is computed from integers, booleans and counts only.

    ``counts`` says for each argument whether it is a count.
    """
    exact = {param for param, is_count in zip(function.params, counts, strict=False) if is_count}
    others = set()
    for store in nodes_in(function.body, tirx.BufferStore):
        if store.buffer in others or not _is_count(store.value, exact):
            others.add(store.buffer)
            exact.discard(store.buffer)
        else:
            exact.add(store.buffer)
    return function.params[-1] in exact


def _is_count(value: tirx.Expr, exact: Collection[tirx.Var]) -> bool:
    """Return whether a value uses only integers, booleans, literals and ``exact`` buffers."""
    if str(value.ty.dtype) in COUNTS:
        return True
    if isinstance(value, TensorLoad):
        return value.source in exact
    if isinstance(value, tirx.FloatImm):
        return True
    parts = _PARTS.get(type(value))
    return parts is not None and all(_is_count(part, exact) for part in parts(value))


def _sides(value: tirx.Expr) -> Sequence[tirx.Expr]:
    return value.a, value.b


#: The operands of an expression from which its value is computed, by node type.
_PARTS: dict[type, Callable[[Any], Sequence[tirx.Expr]]] = {
    **dict.fromkeys((tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min), _sides),
    tirx.Select: lambda value: (value.true_value, value.false_value),
    tirx.Cast: lambda value: (value.value,),
    Call: lambda value: value.args,
}


def _is_whole(array: np.ndarray) -> bool:
    """Return whether all values are integers; a few weights usually suffice to say no."""
    parts = (array.reshape(-1)[:64], array)
    return all((np.rint(part) == part).all() for part in parts)


def _fits_half(array: np.ndarray) -> bool:
    """Return whether a constant should and can be stored in 16 bits.

    Sixteen bits skip integers beyond 2048, but indices must stay exact.  A constant with one number
    for each channel stays in 32 bits: it is small, and a rounded scale moves quantized numbers to
    other steps.
    """
    extents = array.shape
    if array.ndim == 5:  # in blocks of channels
        extents = (extents[0], extents[1] * extents[-1], *extents[2:-1])
    if array.size <= max(extents, default=1):
        return False
    largest = np.abs(array[np.isfinite(array)]).max(initial=0)
    return bool(largest <= (2048 if _is_whole(array) else np.finfo(np.float16).max))
