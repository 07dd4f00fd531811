"""Which kernels of two profiles do the same work.

Fusion, storage and algorithms may differ: a layer of one profile may be a part of one, or
several, in the other.  What ties them together are the ONNX nodes that kernels compute.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .record import KernelLaunch, Profile


@dataclass(frozen=True)
class Pair:
    """The launches that compute the same nodes, as indices of ``Profile.kernels``."""

    #: Their nodes; of kernels that belong to none, the function.
    nodes: tuple[str, ...]
    #: Empty where the other profile has no such work.
    before: tuple[int, ...]
    after: tuple[int, ...]


def pair(before: Profile, after: Profile) -> tuple[Pair, ...]:
    """The smallest groups of launches that share no node with any other launch.

    They come in the order of the first launches of `after`, then those of `before` alone.
    """
    root: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    sides = (after.kernels, before.kernels)
    for kernels in sides:
        for kernel in kernels:
            first, *others = _keys(kernel)
            for other in others:
                root[find(other)] = find(first)
    groups: dict[Hashable, tuple[list[int], list[int]]] = {}
    for side, kernels in enumerate(sides):
        for index, kernel in enumerate(kernels):
            groups.setdefault(find(_keys(kernel)[0]), ([], []))[side].append(index)
    return tuple(
        Pair(_names(after, now) if now else _names(before, old), tuple(old), tuple(now))
        for now, old in groups.values()
    )


def _keys(kernel: KernelLaunch) -> Sequence[Hashable]:
    """What it shares with other launches of the same work; functions are not nodes."""
    return kernel.nodes or (("function", kernel.function),)


def _names(profile: Profile, launches: Sequence[int]) -> tuple[str, ...]:
    kernels = [profile.kernels[index] for index in launches]
    # Each once, in their order.
    return tuple(dict.fromkeys(name for k in kernels for name in k.nodes or (k.function,)))
