"""Group items by a key, or by the elements that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Group items by a key, in their order."""
    groups: defaultdict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def connected(used: Sequence[frozenset[Hashable]]) -> list[list[int]]:
    """Group sets that share elements, directly or through others; return their indices."""
    groups: list[tuple[list[int], frozenset[Hashable]]] = []
    for number, own in enumerate(used):
        touching = [group for group in groups if group[1] & own]
        groups = [group for group in groups if not group[1] & own]
        members = sorted([number, *(n for group in touching for n in group[0])])
        groups.append((members, own.union(*(group[1] for group in touching))))
    return [members for members, _ in groups]
