"""Inputs and outputs of the model that the application has in the blocked layout.

They are ``[N, C', H, W, 4]`` in a buffer (``nchw4c``) or in an image (``texture``), which saves
the kernels that pack or unpack them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...devices.choices import KEPT_FORMS
from ...devices.target import Device
from ...errors import CompileError, nearest
from ...ir.blocked import blocked_shape
from ...ir.scope import CHANNELS, extent_of, interface_scope
from ...ir.tensors import TensorInfo


@dataclass(frozen=True)
class BlockedInterface:
    """Indices of the blocked inputs and outputs, and of those among them that are textures."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    textures: tuple[frozenset[int], frozenset[int]] = field(default=(frozenset(), frozenset()))


def block_interface(
    requested: Mapping[str, str],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    device: Device,
    half: bool = False,
) -> tuple[BlockedInterface, tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """Find the blocked inputs and outputs, and describe them as the application passes them.

    ``requested`` maps the ONNX model's names to ``nchw4c`` or ``texture``; a name of both an input
    and an output applies to both.  With ``half``, textures have channels of 16 bits.
    Raises ``CompileError`` if a name is unknown, or a tensor cannot have the requested form.
    """
    names = [info.name for info in (*inputs, *outputs)]
    for name in requested:
        if name not in names:
            near = nearest(name, names, {}) or f"; it has {', '.join(names)}"
            raise CompileError(
                f"The model has no input or output {name!r}, whose layout is to be kept{near}.",
                remedy="Give names of the ONNX model's inputs and outputs.",
            )

    def described(infos: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        return tuple(
            _blocked(info, requested[info.name], device, half) if info.name in requested else info
            for info in infos
        )

    def numbers(infos: Sequence[TensorInfo], *forms: str) -> frozenset[int]:
        return frozenset(i for i, info in enumerate(infos) if requested.get(info.name) in forms)

    textures = numbers(inputs, "texture"), numbers(outputs, "texture")
    interface = BlockedInterface(
        numbers(inputs, *KEPT_FORMS), numbers(outputs, *KEPT_FORMS), textures
    )
    return interface, described(inputs), described(outputs)


def _blocked(info: TensorInfo, form: str, device: Device, half: bool) -> TensorInfo:
    shape = blocked_shape(info.shape, CHANNELS) if len(info.shape) == 4 else ()
    scope = interface_scope(shape, device, half) if shape and device.image_extent else None
    why = ""
    if not shape:
        why = "only tensors of 4 axes, NCHW, have blocks of channels"
    elif info.dtype != "float32":
        why = "only tensors of float32 are blocked"
    elif form == "texture" and not device.image_extent:
        why = "the device has no images"
    elif form == "texture" and scope is None:
        limit = f"{device.image_extent}x{device.image_extent} texels"
        why = f"no image of the device, at most {limit}, holds it"
    if why:
        raise CompileError(
            f"Keeping {info} as {form} is not possible: {why}.",
            remedy=f"Leave {info.name} out of `keep_layout`"
            + (", or keep it as nchw4c." if "image" in why else "."),
        )
    kept = replace(info, shape=shape, logical_shape=info.shape)
    if form == "nchw4c":
        return kept
    return replace(kept, scope=scope, image=str(extent_of(shape, str(scope))))
