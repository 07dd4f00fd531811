"""Folders for what can be made again; the plug-in has the same (`native/opencl/settings.cc`)."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The user's folder for what can be made again, where ``TVMFLOW_CACHE_DIR`` names none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "tvmflow"


def program_cache(kind: str) -> Path | None:
    """The folder for built programs of a kind, which need not be there; ``None`` keeps none.

    It is not the plug-in's own: that keeps more programs before the oldest go.
    """
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache() / "programs", kind)
