"""The storage pass: texture or buffer for every tensor between primary functions.

It runs on fused primary functions and changes their signatures only.  Before::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: [1,6,56,56,4], w: [2,24,1,1,4],
                                                  y: [1,2,56,56,4])

After::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: scope "global.texture:p4", ...)

The signature is the only place where the decision is kept: schedules, lowering and
the memory plan read it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GenericConst

from ..build import wants_schedule
from ..errors import CompileError
from ..graph.rewriter import constant_array, shape_of
from ..graph.weights import INLINE_LIMIT_BYTES
from ..target import Device
from .cost import Traffic, prefers_texture
from .overrides import resolve_overrides
from .placement import ASKED, COST, LAYOUT, LIMITS, NO_IMAGES, OBSTACLE, OVERRIDE, Placement
from .scope import CHANNELS, HALF_BUFFER, constant_scope, panel_scope, with_half
from .signatures import called_function, with_scopes

#: Element types that images have channels of, and schedules compute in.
DTYPES = ("float32",)


@dataclass
class _Tensor:
    """A tensor between primary functions, while it is being placed."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: bool
    #: Whether it may be stored in 16 bits: it is fp32, and no known value is beyond 65504.
    can_be_half: bool = False
    #: Why it must be a buffer; empty while it may be a texture.
    obstacle: str = ""
    traffic: Traffic = field(default_factory=Traffic)
    placement: Placement | None = None


class StoragePass:
    """Places the tensors of ``main`` and gives its functions the signatures for it.

    Parameters
    ----------
    mod
        Fused primary functions, called by ``main`` with ``call_tir``.
    device
        Its image limits and its costs.
    storage
        ``texture``, ``buffer`` or ``auto``.
    overrides
        Storage of single tensors by name, before everything else.
    half
        Whether fp32 tensors are stored in 16 bits.
    aliases
        Further names that overrides may use, with the tensors' own.
    inputs
        Names of the first parameters of ``main``, instead of their own.
    """

    def __init__(
        self,
        mod: IRModule,
        device: Device,
        storage: str,
        overrides: Mapping[str, str] | None = None,
        half: bool = False,
        aliases: Mapping[str, str] | None = None,
        inputs: Sequence[str] = (),
    ):
        self.mod = mod
        self.device = device
        self.storage = storage
        self.overrides = dict(overrides or {})
        self.half = half
        self.aliases = dict(aliases or {})
        self.inputs = inputs
        self.tensors: dict[Any, _Tensor] = {}
        #: Functions by the one they were made from and the scopes of their parameters.
        self.variants: dict[tuple[str, tuple[str | None, ...]], relax.GlobalVar] = {}

    def run(self) -> tuple[IRModule, list[Placement]]:
        """Return the module with its new signatures, and every decision."""
        main = self.mod["main"]
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        self._find(main, bindings)
        names = [tensor.name for tensor in self.tensors.values()]
        self.overrides = resolve_overrides(self.overrides, names, self.aliases)
        pictures = [t for t in self.tensors.values() if _has_texels(t) and not t.constant]
        self.width = max((t.shape[3] for t in pictures), default=1)
        for tensor in self.tensors.values():
            tensor.placement = self._place(tensor)
        mod = self._rewrite(main)
        return mod, [t.placement for t in self.tensors.values() if t.placement is not None]

    # -- what there is ----------------------------------------------------------------------

    def _find(self, main: relax.Function, bindings: list[relax.Binding]) -> None:
        """Collect the tensors that pass between functions, with producers and readers."""
        for index, param in enumerate(main.params):
            name = self.inputs[index] if index < len(self.inputs) else param.name
            self._note(param, name, constant=False)
        self._mark(main.params, "an input of the model")
        for binding in bindings:
            tensor = self._note(binding.var, binding.var.name, constant=False)
            call = called_function(self.mod, binding.value)
            if call is None:
                self._mark(_variables(binding.value), "read as a plain tensor")
                if tensor is not None:
                    tensor.obstacle = "not written by a primary function"
                continue
            function, arguments = call
            for index, argument in enumerate(arguments):
                read = self.tensors.get(_key(argument))
                if read is None:
                    name = f"{binding.var.name}.{function.params[index].name}"
                    read = self._note(argument, name, constant=True)
                if read is None:
                    continue
                if _is_opaque(function):
                    self._mark([argument], "read by a function that has no schedule of ours")
                if _has_texels(read):
                    read.traffic.read(function, index)
            if tensor is not None:
                tensor.traffic.written(tensor.shape)
                if _is_opaque(function):
                    self._mark([binding.var], "written by a function that has no schedule of ours")
        self._mark([main.body.body], "an output of the model")

    def _note(self, expr: relax.Expr, name: str, *, constant: bool) -> _Tensor | None:
        if not isinstance(expr.ty, relax.TensorType):
            return None
        tensor = _Tensor(name, shape_of(expr), str(expr.ty.dtype), constant)
        array = constant_array(expr)
        tensor.can_be_half = tensor.dtype == "float32" and (array is None or _fits_half(array))
        self.tensors[_key(expr)] = tensor
        return tensor

    def _mark(self, exprs: Iterable[relax.Expr], obstacle: str) -> None:
        for expr in exprs:
            tensor = self.tensors.get(_key(expr))
            if tensor is not None:
                tensor.obstacle = tensor.obstacle or obstacle

    # -- the decision -----------------------------------------------------------------------

    def _place(self, tensor: _Tensor) -> Placement | None:
        """Decide for one tensor; ``None`` for a constant that no texture could hold."""
        asked = self.overrides.get(tensor.name)
        scope, cause, reason = self._decide(tensor)
        if asked == "texture":
            if cause in (LAYOUT, OBSTACLE, LIMITS, NO_IMAGES):
                raise _impossible(tensor, reason)
            scope = self._scope_for(tensor)
        elif asked == "buffer":
            scope = None
        narrow = self.half and tensor.can_be_half and not tensor.obstacle
        if scope is None and narrow:
            scope = HALF_BUFFER
        elif tensor.constant and cause in (LAYOUT, NO_IMAGES) and not asked:
            return None
        if asked:
            cause, reason = OVERRIDE, "asked for by name"
        return Placement(
            tensor.name, tensor.shape, tensor.dtype, scope, reason, cause, tensor.constant
        )

    def _decide(self, tensor: _Tensor) -> tuple[str | None, str, str]:
        """Scope, cause and reason without overrides."""
        if tensor.obstacle:
            return None, OBSTACLE, tensor.obstacle
        if not self.device.image_extent:
            return None, NO_IMAGES, "on a target or device without images"
        if not _has_texels(tensor):
            return None, LAYOUT, _why_no_texels(tensor)
        scope = self._scope_for(tensor)
        if scope is None:
            return None, LIMITS, f"over the limits of the device's images, {limits(self.device)}"
        if self.storage != "auto":
            return (scope if self.storage == "texture" else None), ASKED, "asked for"
        better, reason = prefers_texture(tensor.traffic, self.device)
        return (scope if better else None), COST, reason

    def _scope_for(self, tensor: _Tensor) -> str | None:
        if tensor.constant:
            scope = constant_scope(tensor.shape, self.device)
        else:
            scope = panel_scope(tensor.shape, self.device, self.width)
        return with_half(scope) if scope is not None and self.half and tensor.can_be_half else scope

    # -- the new signatures -----------------------------------------------------------------

    def _rewrite(self, main: relax.Function) -> IRModule:
        others = {gv: f for gv, f in self.mod.functions.items() if not isinstance(f, tirx.PrimFunc)}
        self.builder = relax.BlockBuilder(IRModule({}, attrs=self.mod.attrs))
        blocks = [
            type(block)([self._retarget(b) for b in block.bindings]) for block in main.body.blocks
        ]
        body = relax.SeqExpr(blocks, main.body.body)
        rewritten = relax.Function(
            main.params, body, main.ret_ty, main.is_pure, main.attrs, main.span
        )
        functions = dict(self.builder.get().functions.items())
        for gv, function in others.items():
            functions[gv] = rewritten if gv.name_hint == "main" else function
        return IRModule(functions, attrs=self.mod.attrs)

    def _retarget(self, binding: relax.Binding) -> relax.Binding:
        """The same call, of the function with the signature that the placements ask for."""
        call = called_function(self.mod, binding.value)
        if call is None:
            return binding
        function, arguments = call
        scopes = [self._scope(argument) for argument in arguments]
        # A function with several results has no tensor of its own: they stay buffers.
        scopes += [self._scope(binding.var)] * (len(function.params) - len(scopes))
        name = binding.value.args[0].name_hint
        key = (name, tuple(scopes))
        if key not in self.variants:
            self.variants[key] = self.builder.add_func(with_scopes(function, scopes), name)
        old = binding.value
        new = relax.Call(old.op, [self.variants[key], *old.args[1:]], old.attrs, old.ty_args)
        return relax.VarBinding(binding.var, new)

    def _scope(self, expr: relax.Expr) -> str | None:
        tensor = self.tensors.get(_key(expr))
        return None if tensor is None or tensor.placement is None else tensor.placement.scope


def _fits_half(array: np.ndarray) -> bool:
    """Whether a constant leaves the program, and has no value that 16 bits cannot hold."""
    known = np.abs(array[np.isfinite(array)])
    return array.nbytes >= INLINE_LIMIT_BYTES and known.max(initial=0) <= np.finfo(np.float16).max


def _has_texels(tensor: _Tensor) -> bool:
    """Whether a tensor's form is that of a texture: a constant of any rank, else blocked."""
    shape = tensor.shape
    rank_fits = len(shape) >= 3 if tensor.constant else len(shape) == 5
    return rank_fits and shape[-1] == CHANNELS and tensor.dtype in DTYPES


def _why_no_texels(tensor: _Tensor) -> str:
    """What keeps a tensor from being made of texels."""
    shape = tensor.shape
    if tensor.dtype not in DTYPES:
        return f"of {tensor.dtype}, and textures hold {' or '.join(DTYPES)}"
    if tensor.constant and len(shape) < 3:
        return "a constant of fewer than 3 axes"
    if len(shape) == 5 and shape[-1] > CHANNELS:
        return f"in blocks of {shape[-1]} channels, and a texel has {CHANNELS}"
    return f"in a plain layout, without blocks of {CHANNELS} channels"


def _impossible(tensor: _Tensor, reason: str) -> CompileError:
    return CompileError(
        f"The storage overrides ask for a texture for the tensor {tensor.name} "
        f"{list(tensor.shape)}, but it is {reason}.",
        remedy="Leave it out of the overrides, or ask for a buffer.",
    )


def limits(device: Device) -> str:
    """A device's image limits, for messages."""
    extent = device.image_extent
    return f"{extent}x{extent} texels in {device.image_layers} layers"


def place_tensors(*arguments: Any, **options: Any) -> tuple[IRModule, list[Placement]]:
    """Run the pass; the arguments are those of :class:`StoragePass`."""
    return StoragePass(*arguments, **options).run()


def _key(expr: relax.Expr) -> Any:
    """Variables are themselves; constants are known by their tensor, which calls may share."""
    return expr.value.__hash__() if isinstance(expr, GenericConst) else expr


def _variables(expr: relax.Expr) -> list[relax.Expr]:
    found: list[relax.Expr] = []
    tvm_ffi.structural_walk(expr, (relax.Var, found.append))
    return found


def _is_opaque(function: tirx.PrimFunc) -> bool:
    """Whether a function has its schedule already: then its accesses are not ours to change."""
    return not wants_schedule(function)
