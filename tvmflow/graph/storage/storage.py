"""The storage pass: texture or buffer for every tensor between primary functions.

It runs on fused primary functions and changes their signatures.  Before::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: [1,6,56,56,4], w: [2,24,1,1,4],
                                                  y: [1,2,56,56,4])

After::

    lv1 = R.call_tir(conv2d, (x, w))       conv2d(x: scope "global.texture:p4", ...)

The signature is the only place where the decision is kept: schedules, lowering and
the memory plan read it there.  A tensor that has to be a buffer on one side and gains
from a texture on the other gets one copy (:mod:`.placement`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import IRModule

from ...devices.target import Device
from ...errors import CompileError
from ...ir.names import resolve_names, unique
from ...ir.scope import HALF_BUFFER, constant_scope, interface_scope, panel_scope, with_half
from .placement import (
    ASKED,
    COPY,
    COST,
    LAYOUT,
    LIMITS,
    NO_IMAGES,
    OBSTACLE,
    OVERRIDE,
    Placement,
    Retarget,
    Sides,
)
from .uses import Tensor, Uses, prefers_texture


@dataclass(frozen=True)
class _Decision:
    """The scope of a tensor's texture (``None`` is a buffer), and why."""

    scope: str | None
    cause: str
    reason: str


@dataclass
class StoragePass:
    """Places the tensors of ``main`` and gives its functions the signatures for it."""

    #: Fused primary functions, called by ``main`` with ``call_tir``.
    mod: IRModule
    #: Its image limits and its costs.
    device: Device
    #: ``texture``, ``buffer`` or ``auto``.
    storage: str
    #: Storage of single tensors by name, before everything else.
    overrides: Mapping[str, str] = field(default_factory=dict)
    #: Whether fp32 tensors are stored in 16 bits.
    half: bool = False
    #: Further names that overrides may use, with the tensors' own.
    aliases: Mapping[str, str] = field(default_factory=dict)
    #: Names of the first parameters of ``main``, instead of their own.
    inputs: Sequence[str] = ()
    #: Numbers of the parameters and of the results of ``main`` that are textures for the
    #: application, whatever else is asked for.
    textures: tuple[Collection[int], Collection[int]] = ((), ())
    #: Whether constants are stored in 16 bits that have no more.
    half_weights: bool = False
    #: Names of what one node of the model computes before its result, which stays in 32 bits: the
    #: square of a norm may be infinite in 16 bits where the norm is not.
    inner: Collection[str] = ()

    def run(self) -> tuple[IRModule, list[Placement]]:
        """Return the module with its new signatures, and every decision."""
        uses = Uses(self.mod, self.inputs, self.textures)
        tensors = uses.tensors
        names = [tensor.name for tensor in tensors.values()]
        # The copy that a tensor would get is asked for like the tensor.
        copies = {
            f"{t.name}_texture": t.name
            for t in tensors.values()
            if t.written_as_buffer and _can_be_copied(t)
        }
        self.overrides = resolve_names(
            self.overrides,
            names,
            {**copies, **self.aliases},
            table="The storage overrides",
            kind="tensor",
            unknown="The storage override {!r} names no tensor between primary functions",
            # What a reader wants in blocks was made and then packed by one primary function.
            suffix="_blocked",
            remark=" It is computed inside a primary function and is never stored.",
        )
        self.taken = set(names)
        pictures = [t for t in tensors.values() if t.has_texels and not t.constant]
        self.width = max((t.shape[3] for t in pictures), default=1)
        sides = {key: self._place(tensor) for key, tensor in tensors.items()}
        mod = Retarget(self.mod, uses, sides, self.textures[1]).run()
        return mod, [placement for side in sides.values() for placement in side.placements()]

    # -- the decision -----------------------------------------------------------------------

    def _place(self, tensor: Tensor) -> Sides:
        """Decide for one tensor; nothing for a constant that no texture could hold."""
        asked = self.overrides.get(tensor.name)
        decision = self._decide(tensor, asked)
        if asked == "texture" and decision.scope is None:
            raise _impossible(tensor, decision.reason)
        if asked == "buffer" and tensor.pinned:
            raise _contradictory(tensor)
        if decision.scope is not None and tensor.obstacle:
            return self._with_copy(tensor, decision)
        scope = decision.scope
        narrow = self._is_half(tensor) and not tensor.obstacle
        if scope is None and narrow:
            scope = HALF_BUFFER
        elif tensor.constant and decision.cause in (LAYOUT, NO_IMAGES):
            return Sides(None)
        return Sides(_placement(tensor, scope, decision.cause, decision.reason))

    def _with_copy(self, tensor: Tensor, decision: _Decision) -> Sides:
        """Both storages: what makes the tensor has the one, and the copy is the other."""
        kind = "texture" if tensor.written_as_buffer else "buffer"
        name = unique(f"{tensor.name}_{kind}", self.taken)
        origin = f"a copy of {tensor.name}, {tensor.obstacle}"
        if tensor.written_as_buffer:
            own = _placement(tensor, None, OBSTACLE, tensor.obstacle)
            reason = f"{origin}: {decision.reason}"
            copy = _placement(tensor, decision.scope, COPY, reason, name)
        else:
            own = _placement(tensor, decision.scope, decision.cause, decision.reason)
            copy = _placement(tensor, None, COPY, origin, name)
        return Sides(own, copy)

    def _decide(self, tensor: Tensor, asked: str | None) -> _Decision:
        """Choose the texture that a tensor is or gets, or a buffer."""
        if tensor.obstacle and not tensor.pinned and not _can_be_copied(tensor):
            return _Decision(None, OBSTACLE, tensor.obstacle)
        if not self.device.image_extent:
            return self._buffer(tensor, NO_IMAGES, "on a target or device without images")
        if not tensor.has_texels:
            return self._buffer(tensor, LAYOUT, tensor.why_no_texels)
        scope = self._scope_for(tensor)
        if scope is None:
            reason = f"over the limits of the device's images, {limits(self.device)}"
            return self._buffer(tensor, LIMITS, reason)
        if asked:
            return _Decision(scope if asked == "texture" else None, OVERRIDE, "asked for by name")
        if tensor.pinned:
            return _Decision(scope, ASKED, tensor.pinned)
        if self.storage == "buffer":
            return self._buffer(tensor, ASKED, "asked for")
        if self.storage == "texture":
            return _Decision(scope, ASKED, "asked for")
        copy = ""
        if tensor.obstacle:
            copy = "texture" if tensor.written_as_buffer else "buffer"
        better, reason = prefers_texture(tensor.traffic, self.device, copy)
        if not better and copy:
            reason = f"{tensor.obstacle}: {reason}"
        return _Decision(scope if better else None, COST, reason)

    @staticmethod
    def _buffer(tensor: Tensor, cause: str, reason: str) -> _Decision:
        """A buffer; if it had to be one anyway, that is the reason."""
        if tensor.obstacle:
            return _Decision(None, OBSTACLE, tensor.obstacle)
        return _Decision(None, cause, reason)

    def _is_half(self, tensor: Tensor) -> bool:
        # The layout pass names another form of a tensor after it.
        name = tensor.name.removesuffix("_blocked").removesuffix("_plain")
        half = self.half and tensor.can_be_half and name not in self.inner
        return half or (tensor.constant and self.half_weights and tensor.is_exact_in_half)

    def _scope_for(self, tensor: Tensor) -> str | None:
        half = self._is_half(tensor)
        if tensor.pinned:
            return interface_scope(tensor.shape, self.device, half)
        if tensor.constant:
            scope = constant_scope(tensor.shape, self.device)
        else:
            scope = panel_scope(tensor.shape, self.device, self.width)
        return with_half(scope) if scope is not None and half else scope


def _can_be_copied(tensor: Tensor) -> bool:
    """True if functions read a tensor, or write and read it, that would do so in a texture."""
    return not tensor.constant and tensor.has_texels and tensor.traffic.reads > 0


def _placement(
    tensor: Tensor, scope: str | None, cause: str, reason: str, name: str = ""
) -> Placement:
    return Placement(
        name or tensor.name, tensor.shape, tensor.dtype, scope, reason, cause, tensor.constant
    )


def _impossible(tensor: Tensor, reason: str) -> CompileError:
    return CompileError(
        f"The storage overrides ask for a texture for the tensor {tensor.name} "
        f"{list(tensor.shape)}, but it is {reason}.",
        remedy="Leave it out of the overrides, or ask for a buffer.",
    )


def _contradictory(tensor: Tensor) -> CompileError:
    return CompileError(
        f"The storage overrides ask for a buffer for the tensor {tensor.name}, but it is "
        f"{tensor.pinned}.",
        remedy="Leave it out of the overrides, or out of `keep_layout`.",
    )


def limits(device: Device) -> str:
    """A device's image limits, for messages."""
    extent = device.image_extent
    return f"{extent}x{extent} texels in {device.image_layers} layers"
