"""The page of a profile: its records as JSON, and a script that draws them.

Texts of kernels are most of what a profile holds and are looked at one at a time: they are
compressed, and unpacked by the browser when the first of them is opened.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from ....module.files import write_file
from ...grouping import connected
from ..record import Profile

if TYPE_CHECKING:
    from ...isa.record import Report

#: In this order: the first ones define what the others use.
_SCRIPTS = (
    *("base", "model", "roofline", "layers", "timeline", "table"),
    *("findings", "kernel", "compare", "main"),
)


def write_page(
    path: str | os.PathLike[str],
    profile: Profile,
    before: Profile | None = None,
    codes: Sequence[Report] = (),
) -> None:
    """Write the page of a profile, or of two; `ArtifactError` if it cannot be written."""
    write_file(path, page_text(profile, before, codes))


def page_text(profile: Profile, before: Profile | None = None, codes: Sequence[Report] = ()) -> str:
    """The page itself.

    Parameters
    ----------
    before
        An earlier profile, or one on another device, beside it.
    codes
        Machine code of the profile's kernels, for GPUs that need not have run it.
    """
    profiles = [profile] if before is None else [before, profile]
    contents = [
        {
            **one.to_json(),
            "step_starts": one.step_starts(),
            "ceilings_measured": one.ceilings and one.ceilings.measured_text(),
        }
        for one in profiles
    ]
    texts: list[dict[str, Any]] = [
        {"tir": one.pop("tir"), "sources": one.pop("sources")} for one in contents
    ]
    texts[-1]["listings"] = [{k.kernel: k.listing for k in code.kernels} for code in codes]
    pairs = [] if before is None else [asdict(one) for one in pair(before, profile)]
    script = "".join(_asset(f"{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    style = _asset("style.css")
    shown = [code.to_json() for code in codes]
    content = _finite({"profiles": contents, "pairs": pairs, "codes": shown})
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page = Template(_asset("page.html")).substitute(
        # Names in a profile come from whoever made the network: no text becomes a script.
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        title=escape(_title(profiles)),
        style=style,
        # No element of HTML begins or ends in it.
        data=data.replace("<", "\\u003c"),
        texts=base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode(),
        script=script,
    )
    # Names of files may hold bytes that are no UTF-8; Python keeps them as what cannot be written.
    return page.encode("utf-8", "replace").decode("utf-8")


def _title(profiles: Sequence[Profile]) -> str:
    # Each once, in their order.
    names = " and ".join(dict.fromkeys(profile.module.name for profile in profiles))
    return f"Profile of {names}" if len(profiles) == 1 else f"Profiles of {names}, compared"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _finite(value: object) -> object:
    """The same with `None` for what is no number, or infinite: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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

    Fusion, storage and algorithms may differ: a layer of one profile may be a part of one, or
    several, in the other.  What ties them together are the ONNX nodes that kernels compute.

    They come in the order of the first launches of `after`, then those of `before` alone.
    """
    launches, count = [*after.kernels, *before.kernels], len(after.kernels)
    # Functions are not nodes.
    keys = [frozenset(k.nodes or [("function", k.function)]) for k in launches]
    pairs = []
    for group in sorted(connected(keys)):
        now = tuple(number for number in group if number < count)
        old = tuple(number - count for number in group if number >= count)
        # Each once, in their order.
        kernels = [launches[number] for number in now or group]
        names = dict.fromkeys(name for k in kernels for name in k.nodes or [k.function])
        pairs.append(Pair(tuple(names), old, now))
    return tuple(pairs)
