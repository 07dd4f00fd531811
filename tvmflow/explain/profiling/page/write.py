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
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from ....module.files import write_file
from ..compare import pair
from ..record import Profile
from ..steps import step_starts

#: In this order: the first ones define what the others use.
_SCRIPTS = (
    "base",
    "model",
    "roofline",
    "layers",
    "timeline",
    "table",
    "findings",
    "kernel",
    "compare",
    "main",
)


def write_page(
    path: str | os.PathLike[str], profile: Profile, before: Profile | None = None
) -> None:
    """Write the page of a profile, or of two that are compared.

    Raises
    ------
    ArtifactError
        If it cannot be written.
    """
    write_file(path, page_text(profile, before))


def page_text(profile: Profile, before: Profile | None = None) -> str:
    """The page itself.

    Parameters
    ----------
    profile
        What is shown.
    before
        An earlier profile, or one on another device, that is shown beside it.
    """
    profiles = [profile] if before is None else [before, profile]
    contents = [{**one.to_json(), "step_starts": step_starts(one)} for one in profiles]
    texts = [{"tir": one.pop("tir"), "sources": one.pop("sources")} for one in contents]
    pairs = [] if before is None else [asdict(one) for one in pair(before, profile)]
    script = "".join(_asset(f"{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    style = _asset("style.css")
    page = Template(_asset("page.html")).substitute(
        # Names in a profile come from whoever made the network: no text becomes a script.
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}",
        title=escape(_title(profiles)),
        style=style,
        data=_json(_finite({"profiles": contents, "pairs": pairs})),
        texts=base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode(),
        script=script,
    )
    # Names of files may hold bytes that are no UTF-8; Python keeps them as what cannot be written.
    return page.encode("utf-8", "replace").decode("utf-8")


def _title(profiles: Sequence[Profile]) -> str:
    # Each once, in their order.
    names = list(dict.fromkeys(profile.module.name for profile in profiles))
    if len(profiles) == 1:
        return f"Profile of {names[0]}"
    return f"Profiles of {' and '.join(names)}, compared"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _json(content: Any) -> str:
    """JSON that no element of HTML begins or ends in."""
    compact = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return compact.replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    """The same with `None` for what is no number, or infinite: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
