"""Storage pass: choose texture or buffer for every tensor between primary functions.

It runs on fused primary functions and changes their signatures.  Before::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: [1,6,56,56,4], w: [2,24,1,1,4],
                                                  y: [1,2,56,56,4])

After::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: scope "global.texture:p4", ...)

The decision is recorded in the signature only: schedules, lowering and the memory plan read it
there.  Copies between the two storages are inserted by :mod:`.placement`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm import IRModule

from ...devices.target import Device
from ...errors import CompileError
from ...ir.names import found_in, resolve_names, unique
from ...ir.scope import (
    HALF_BUFFER,
    constant_scope,
    extent_of,
    interface_scope,
    panel_scope,
    with_half,
)
from .placement import Cause, Placement, Retarget, Sides
from .uses import Tensor, Uses, prefers_texture


@dataclass
class StoragePass:
    """Choice of each tensor's storage, written into the signatures of functions."""

    #: Module of fused primary functions, called by ``main`` with ``call_tir``.
    mod: IRModule
    #: Device, with its image limits and costs.
    device: Device
    #: Storage of all tensors: ``texture``, ``buffer`` or ``auto``.
    storage: str
    #: Storage of single tensors by name, which takes precedence.
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Whether fp32 tensors are stored in 16 bits.
    half: bool = False
    #: Further names that overrides may use, mapped to the tensors' own.
    aliases: Mapping[str, str] = field(default_factory=dict)
    #: Names of the first parameters of ``main``, which replace their own.
    inputs: Sequence[str] = ()
    #: Indices of the parameters and of the results of ``main`` that are textures for the
    #: application, regardless of the other options.
    textures: tuple[Collection[int], Collection[int]] = ((), ())
    #: Whether constants that are exact in 16 bits are stored in 16 bits.
    half_weights: bool = False
    #: Reasons why tensors stay in 32 bits, by identifier (:mod:`..ranges`).
    wide: Mapping[str, str] = field(default_factory=dict)
    #: Names of the tensors that are stored in 16 bits, set by `run`.
    halves: list[str] = field(default_factory=list, init=False)

    def run(self) -> tuple[IRModule, list[Placement]]:
        """Return the module with its new signatures, and all decisions."""
        uses = Uses(self.mod, self.inputs, self.textures)
        self.model_names = set(self.aliases.values())
        tensors = uses.tensors
        names = [tensor.name for tensor in tensors.values()]
        # The texture that a tensor may be copied to can be overridden by the copy's name, too.
        copies = {f"{t.name}_texture": t.name for t in tensors.values()
                  if t.written_as_buffer and t.can_be_copied}  # fmt: skip
        self.overrides = resolve_names(
            self.overrides,
            names,
            {**copies, **self.aliases},
            table="The storage overrides",
            kind="tensor",
            unknown="The storage override {!r} names no tensor between primary functions",
            # The blocked form of a tensor that one primary function computes and packs.
            suffix="_blocked",
            remark=" It is computed inside a primary function and is never stored.",
        )
        self.taken = set(names)
        pictures = [t for t in tensors.values() if t.has_texels and not t.constant]
        self.width = max((t.shape[3] for t in pictures), default=1)
        sides = {key: self._place(tensor) for key, tensor in tensors.items()}
        mod = Retarget(self.mod, uses, sides, self.textures[1]).run()
        placements = [p for side in sides.values() for p in (side.own, side.copy) if p is not None]
        self.halves = [p.tensor for p in placements if not p.constant and p.stored_as == "float16"]
        return mod, placements

    def _place(self, tensor: Tensor) -> Sides:
        """Choose a tensor's storage; return none for a constant that no texture could hold."""
        asked = self.overrides.get(tensor.name)
        decision = self._decide(tensor, asked)
        wide = self._why_wide(tensor)
        if self.half and tensor.can_be_half and wide is not None:
            decision = replace(decision, reason=f"{decision.reason}; in 32 bits: {wide}")
        if asked == "texture" and decision.scope is None:
            raise CompileError(
                f"The storage overrides ask for a texture for the tensor {tensor.name} "
                f"{list(tensor.shape)}, but it is {decision.reason}.",
                remedy="Leave it out of the overrides, or ask for a buffer.",
            )
        if asked == "buffer" and tensor.pinned:
            raise CompileError(
                f"The storage overrides ask for a buffer for the tensor {tensor.name}, but it is "
                f"{tensor.pinned}.",
                remedy="Leave it out of the overrides, or out of `keep_layout`.",
            )
        if decision.scope is not None and tensor.obstacle:
            # The producer writes one kind of storage, and the copy has the other kind.
            kind = "texture" if tensor.written_as_buffer else "buffer"
            name = unique(f"{tensor.name}_{kind}", self.taken)
            reason = f"a copy of {tensor.name}, {tensor.obstacle}"
            if not tensor.written_as_buffer:
                copy = replace(decision, tensor=name, scope=None, cause="copy", reason=reason)
                return Sides(decision, copy)
            reason = f"{reason}: {decision.reason}"
            copy = replace(decision, tensor=name, cause="copy", reason=reason)
            own = replace(decision, scope=None, cause="obstacle", reason=tensor.obstacle)
            return Sides(own, copy)
        if decision.scope is None and self._is_half(tensor) and not tensor.obstacle:
            return Sides(replace(decision, scope=HALF_BUFFER))
        if tensor.constant and decision.cause in ("layout", "no images"):
            return Sides(None)
        return Sides(decision)

    def _decide(self, tensor: Tensor, asked: str | None) -> Placement:
        """Choose a texture or a buffer for a tensor or its copy."""

        def chosen(scope: str | None, cause: Cause, reason: str) -> Placement:
            return Placement(
                tensor.name, tensor.shape, tensor.dtype, scope, reason, cause, tensor.constant
            )

        def buffer(cause: Cause, reason: str) -> Placement:
            """Return a buffer; an obstacle to textures takes precedence as the reason."""
            if tensor.obstacle:
                cause, reason = "obstacle", tensor.obstacle
            return chosen(None, cause, reason)

        if tensor.obstacle and not tensor.pinned and not tensor.can_be_copied:
            return chosen(None, "obstacle", tensor.obstacle)
        extent = self.device.image_extent
        if not extent:
            return buffer("no images", "on a target or device without images")
        if not tensor.has_texels:
            return buffer("layout", tensor.why_no_texels)
        scope = self._scope_for(tensor)
        if scope is None:
            limits = f"{extent}x{extent} texels in {self.device.image_layers} layers"
            return buffer("limits", f"over the limits of the device's images, {limits}")
        if asked:
            return chosen(scope if asked == "texture" else None, "override", "asked for by name")
        if tensor.pinned:
            return chosen(scope, "asked", tensor.pinned)
        if self.storage == "buffer":
            return buffer("asked", "asked for")
        if self.storage == "texture":
            return chosen(scope, "asked", "asked for")
        tall = self.device.texture.tall
        if tensor.constant and (rows := extent_of(tensor.shape, scope).height) > tall:
            return buffer("cost", f"an image of {rows} rows: with more than {tall}, buffers are "
                          "faster")  # fmt: skip
        copy = ""
        if tensor.obstacle:
            copy = "texture" if tensor.written_as_buffer else "buffer"
        better, reason = prefers_texture(tensor.traffic, self.device, copy)
        if not better and copy:
            reason = f"{tensor.obstacle}: {reason}"
        return chosen(scope if better else None, "cost", reason)

    def _why_wide(self, tensor: Tensor) -> str | None:
        return found_in(self.wide, tensor.name, self.model_names)

    def _is_half(self, tensor: Tensor) -> bool:
        half = self.half and tensor.can_be_half and self._why_wide(tensor) is None
        return half or (tensor.constant and self.half_weights and tensor.is_exact_in_half)

    def _scope_for(self, tensor: Tensor) -> str | None:
        half = self._is_half(tensor)
        if tensor.pinned:
            return interface_scope(tensor.shape, self.device, half)
        shape, device = tensor.shape, self.device
        constant = tensor.constant
        scope = (
            constant_scope(shape, device) if constant else panel_scope(shape, device, self.width)
        )
        return with_half(scope) if scope is not None and half else scope
