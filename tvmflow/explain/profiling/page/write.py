"""The HTML page of a profile: its records as JSON, and a script that draws them.

The texts of kernels are most of a profile and are looked at one at a time, so they are compressed,
and the browser unpacks them when the first one is opened.
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
from ...yardstick.measured import NOTE
from ..record import Profile

if TYPE_CHECKING:
    from ...isa.record import Report

#: Scripts in this order: the first ones define what the others use.
_SCRIPTS = (
    *("base", "model", "roofline", "layers", "timeline", "table"),
    *("yardstick", "findings", "kernel", "compare", "main"),
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
    """Return the page of a profile.

    It is compared with ``before``, an earlier profile or one on another device, and shows the
    kernels' machine code in ``codes``, for GPUs that need not have run it.
    """
    profiles = [profile] if before is None else [before, profile]
    contents = [_content(one) for one in profiles]
    texts: list[dict[str, Any]] = [
        {"tir": one.pop("tir"), "sources": one.pop("sources")} for one in contents
    ]
    texts[-1]["listings"] = [{k.kernel: k.listing for k in code.kernels} for code in codes]
    pairs = [] if before is None else [asdict(one) for one in pair(before, profile)]
    script = "".join(asset(f"{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    style = asset("style.css")
    shown = [code.to_json() for code in codes]
    content = _finite({"profiles": contents, "pairs": pairs, "codes": shown, "yardstickNote": NOTE})
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page = Template(asset("page.html")).substitute(
        # Names in a profile come from the network's author, so no text may become a script.
        policy=f"default-src 'none'; style-src {digest(style)}; script-src {digest(script)}",
        title=escape(_title(profiles)),
        style=style,
        # Without "<" no HTML element can begin or end in the data.
        data=data.replace("<", "\\u003c"),
        texts=base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode(),
        script=script,
    )
    # File names may contain bytes that are not UTF-8, which Python keeps as surrogates.
    return page.encode("utf-8", "replace").decode("utf-8")


def _content(profile: Profile) -> dict[str, Any]:
    """Return a profile's records, and what follows from them."""
    content = {
        **profile.to_json(),
        "step_starts": profile.step_starts(),
        "ceilings_measured": profile.ceilings and profile.ceilings.measured_text(),
    }
    for kernel, record in zip(content["kernels"], profile.kernels, strict=True):
        if (found := record.yardstick) is not None:
            kernel["yardstick"] |= {
                "text": str(found.operator),
                "nearest": found.measured_text,
                "own_gflops": found.own_gflops,
            }
    return content


def _title(profiles: Sequence[Profile]) -> str:
    # Each name once, in order.
    names = " and ".join(dict.fromkeys(profile.module.name for profile in profiles))
    return f"Profile of {names}" if len(profiles) == 1 else f"Profiles of {names}, compared"


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def digest(content: str) -> str:
    """Return the source of a script or style in a page's policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _finite(value: object) -> object:
    """Replace infinities and NaN, which JSON does not have, by `None`."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Pair:
    """Launches of two profiles that compute the same nodes, as indices of ``Profile.kernels``."""

    #: ONNX nodes; for kernels that belong to none, the function.
    nodes: tuple[str, ...]
    #: Launches of the earlier profile; empty if it has no such work.
    before: tuple[int, ...]
    after: tuple[int, ...]


def pair(before: Profile, after: Profile) -> tuple[Pair, ...]:
    """Find the smallest groups of launches that share no ONNX node with other launches.

    Fusion, storage and algorithms may differ, so that a kernel of one profile may correspond to a
    part of one, or to several, in the other.

    The groups are in the order of the first launches of `after`, then those of `before` alone.
    """
    launches, count = [*after.kernels, *before.kernels], len(after.kernels)
    # The marker keeps functions and nodes of the same name apart.
    keys = [frozenset(k.nodes or [("function", k.function)]) for k in launches]
    pairs = []
    for group in sorted(connected(keys)):
        now = tuple(number for number in group if number < count)
        old = tuple(number - count for number in group if number >= count)
        # Each name once, in order.
        kernels = [launches[number] for number in now or group]
        names = dict.fromkeys(name for k in kernels for name in k.nodes or [k.function])
        pairs.append(Pair(tuple(names), old, now))
    return tuple(pairs)
