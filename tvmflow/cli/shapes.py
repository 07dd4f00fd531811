"""Selection of a shape of a module by ``--shape`` and ``--at``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import typer

from .options import parse_at, parse_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..module.artifact import Artifact
    from ..module.module import Module
    from ..runtime.json_types import JsonMapping

    T = TypeVar("T", Artifact, Module)


def chosen(whole: T, shape: list[str] | None, at: str | None) -> T | None:
    """Return the shape of a module that the options select, or ``None`` if they are not given.

    Raises `InputError` if the module has no such shape, and `typer.BadParameter` if the options
    cannot be parsed or leave the input open.
    """
    wanted = {n: dict(enumerate(s)) for n, s in parse_shapes(shape).items()}
    if at is not None:
        for name, choices in parse_at([at]).items():
            input_name, axes = _open_axes(whole.metadata, name)
            if len(choices) != 1 or len(choices[0]) != len(axes):
                raise typer.BadParameter(
                    f"--at {at}: expected one extent for each of the {len(axes)} open ones of "
                    f"{input_name!r}, such as {'x'.join(['224'] * len(axes))}."
                )
            wanted.setdefault(input_name, {}).update(zip(axes, choices[0], strict=True))
    if not wanted:
        return None
    from ..module.shapes import choose

    return whole.variants[choose(whole.variants, wanted)]


def _open_axes(about: JsonMapping, name: str) -> tuple[str, list[int]]:
    """Return the input, and its extents that were open when the module was compiled."""
    shapes: Mapping[str, Sequence[object]] = about["options"].get("shapes", {})
    places = {n: [a for a, e in enumerate(s) if e == "?"] for n, s in shapes.items()}
    places = {n: axes for n, axes in places.items() if axes and name in ("", n)}
    if len(places) != 1:
        inputs = ", ".join(map(repr, places)) or "none"
        raise typer.BadParameter(
            f"--at needs one input with open extents, and the module was compiled with {inputs}; "
            "--shape NAME=1,3,224,224 names a whole shape."
        )
    return next(iter(places.items()))
