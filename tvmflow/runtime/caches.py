"""Cache folders; the plug-in uses the same ones (`native/opencl/settings.cc`)."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the user's cache folder, used unless ``TVMFLOW_CACHE_DIR`` names another."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "tvmflow"


def program_cache(kind: str) -> Path | None:
    """Return the folder for built programs of a kind, which may not exist; ``None`` for no cache.

    The plug-in has its own folder, with another limit of size.
    """
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache() / "programs", kind)
