"""The versions this package is built for, and the check of what is installed.

``apache-tvm`` and ``apache-tvm-ffi`` share C++ structures whose layout changes
between releases: a pair that does not match crashes the process instead of
failing with an error.  The metadata of ``apache-tvm`` does not exclude such
pairs, so the exact pair is checked here, from the installed metadata and
without importing TVM.
"""

from __future__ import annotations

import os
import sys

from .errors import EnvironmentMismatchError

__version__ = "0.1.0"

#: The one pair of TVM wheels whose binary interfaces fit together.
REQUIRED_TVM = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


def installed_tvm() -> dict[str, str | None]:
    """Return the installed version of each TVM wheel, ``None`` where it is missing."""
    return {name: _recorded_version(name) for name in REQUIRED_TVM}


def _recorded_version(name: str) -> str | None:
    """Return the version of a distribution as pip recorded it, the first on ``sys.path``.

    ``importlib.metadata`` answers the same but takes a quarter of the time of
    ``tvmflow --help`` to import; the name of the folder holds the version
    ("Recording installed projects" of the Python packaging specifications).
    """
    prefix, suffix = name.replace("-", "_") + "-", ".dist-info"
    for folder in sys.path:
        try:
            entries = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(prefix) and entry.endswith(suffix):
                return entry[len(prefix) : -len(suffix)]
    return None


def check_tvm() -> None:
    """Refuse a pair of TVM wheels that would crash the process.

    Raises
    ------
    EnvironmentMismatchError
        If a wheel is missing or has another version than the one required.
    """
    found = installed_tvm()
    if found == REQUIRED_TVM:
        return
    expected = " with ".join(f"{name} {version}" for name, version in REQUIRED_TVM.items())
    got = " with ".join(f"{name} {version or '(missing)'}" for name, version in found.items())
    pins = " ".join(f"{name}=={version}" for name, version in REQUIRED_TVM.items())
    raise EnvironmentMismatchError(
        f"tvmflow needs {expected}, whose binary interfaces fit together, but found {got}.",
        remedy=f"python -m pip install {pins}",
    )


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package from where it was installed.

    That is a copy of the repository, a wheel, or (where pip does not say) a package index.
    """
    import json
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    url, about = "", {}
    with suppress(PackageNotFoundError, ValueError):
        about = json.loads(distribution("tvmflow").read_text("direct_url.json") or "{}")
        url = about.get("url", "")
    if about.get("dir_info", {}).get("editable"):
        tree = unquote(urlsplit(url).path)
        return f"python -m pip install --no-build-isolation --editable '{tree}[{extra}]'"
    return f"python -m pip install 'tvmflow[{extra}]{f' @ {url}' if url else ''}'"
