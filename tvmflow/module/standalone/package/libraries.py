"""Libraries of a package: reading them, and checking that they fit together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from ....devices.host import Host
from ....errors import ArtifactError
from ...artifact import SIDECAR_SUFFIX
from ...link import native_folder
from ..host_abi import Report, check_host_abi
from ..programs import sidecar_path
from ..read import EncodedPlan, find_plans, find_weights, is_standalone

#: Files about the license of the runtime and the Java classes, which every package contains.
_LICENSES = ("LICENSE", "NOTICE")
#: Headers of the C and C++ interfaces.
_HEADERS = ("tvmflow.h", "tvmflow_library.h", "tvmflow_check.h", "tvmflow.hpp")
#: Pattern of file names that a loader, CMake, pkg-config and Java all accept.
_FILE_NAME = re.compile(r"lib([A-Za-z0-9_][A-Za-z0-9_.+-]*)\.so")


@dataclass(frozen=True)
class Library:
    """A standalone library, read without loading it."""

    path: Path
    host: Host
    plans: tuple[EncodedPlan, ...]
    weights: Path | None  #: The sidecar with its weights, if they are not embedded.
    programs: Path | None  #: The sidecar with binaries of its kernels, if there is one.

    @property
    def name(self) -> str:
        """Return the short name, such as ``face`` for ``libface.so``."""
        return self.path.name.removeprefix("lib").removesuffix(".so")

    @property
    def abi(self) -> str:
        """Return Android's name of its ABI, or the triple of another host."""
        return self.host.android_abi or self.host.triple

    @property
    def uses_opencl(self) -> bool:
        """Return whether one of its plans is for OpenCL."""
        return any(plan.metadata["target"] == "opencl" for plan in self.plans)

    @property
    def weights_id(self) -> bytes:
        """Return the digest of its weights."""
        return bytes(self.plans[0].header["weights_id"])

    @cached_property
    def report(self) -> Report:
        """Return the checks of its file for the host in its plan."""
        return check_host_abi(self.path, self.host)


def read_libraries(paths: Sequence[Path], attempt: str) -> list[Library]:
    """Read the libraries of a package.

    Raises `ArtifactError`, begun by `attempt`, if a file is no intact standalone library, or its
    name does not suit a package.
    """
    return [_read(path, attempt) for path in paths]


def _read(path: Path, attempt: str) -> Library:
    # This comes first, because its errors say why a file cannot be read.
    plans = find_plans(path)
    if not plans or not is_standalone(path):
        raise ArtifactError(
            f"{attempt} failed: standalone libraries were expected, but {path} is none that this "
            "tvmflow reads.",
            remedy="Name what `tvmflow compile --standalone` wrote.",
        )
    if not _FILE_NAME.fullmatch(path.name):
        raise ArtifactError(
            f"{attempt} failed: a name such as libface.so was expected, but the library is "
            f"{path.name}.",
            remedy="Compile it to such a name: it is written into the library.",
        )
    weights, programs = find_weights(path, plans[0]).path, sidecar_path(path)
    library = Library(
        path,
        Host.parse(plans[0].metadata["host"]),
        tuple(plans),
        weights if weights != path else None,
        programs if programs.is_file() else None,
    )
    found = library.report.facts.soname
    if found != path.name:
        raise ArtifactError(
            f"{attempt} failed: programs that are linked to {path} look for the name that is "
            f"written into it, {found}.",
            remedy=f"Compile it to {path.name}, or name it {found} again.",
        )
    return library


def for_android(libraries: Sequence[Library], attempt: str) -> dict[str, list[Library]]:
    """Return libraries for Android by ABI, each with one library for every network, by name.

    Raises `ArtifactError` if Android would not load a library, or an ABI has a network twice or
    lacks one.
    """
    by_abi: defaultdict[str, dict[str, Library]] = defaultdict(dict)
    for library in libraries:
        _check_android(library, attempt)
        other = by_abi[library.abi].setdefault(library.name, library)
        if other is not library:
            raise ArtifactError(
                f"{attempt} failed: one {library.path.name} for each ABI was expected, but "
                f"{other.path} and {library.path} are both for {library.abi}.",
                remedy="Leave one out, or compile a second network to another name.",
            )
    names = {library.name for library in libraries}
    for abi, found in by_abi.items():
        for name in sorted(names - found.keys()):
            raise ArtifactError(
                f"{attempt} failed: the same libraries were expected for each ABI, but there is "
                f"no lib{name}.so for {abi}.",
                remedy="Compile each network for each ABI, always to the same file name.",
            )
    for name in sorted(names):
        if len({found[name].weights_id for found in by_abi.values() if found[name].weights}) > 1:
            raise ArtifactError(
                f"{attempt} failed: a package has one file of weights for all ABIs, but those "
                f"next to lib{name}.so differ.",
                remedy="Compile for all with the same options, or with "
                "`embed_limit_bytes=2000000000`: weights are then in the library.",
            )
    return {abi: [found[name] for name in sorted(found)] for abi, found in sorted(by_abi.items())}


def _check_android(library: Library, attempt: str) -> None:
    if not library.host.is_android:
        raise ArtifactError(
            f"{attempt} failed: libraries for Android were expected, but {library.path} is for "
            f"{library.host.triple}.",
            remedy="Compile it with `host=android-arm64`, or package it with `tar`.",
        )
    if library.host.android_abi is None or library.report.android_refuses:
        raise ArtifactError(
            f"{attempt} failed: Android would not load {library.path}.",
            remedy="Compile it again with this tvmflow.",
            details="\n".join(library.report.android_refuses) or library.host.triple,
        )
    if library.programs is not None:
        raise ArtifactError(
            f"{attempt} failed: an app's libraries have no folder in which {library.programs.name} "
            "would be found.",
            remedy="Move that file away: with a cache folder, kernels are compiled once.",
        )


def for_linux(libraries: Sequence[Library], attempt: str) -> Library:
    """Return the only library; `ArtifactError` if there are several, or it is for Android."""
    if len(libraries) != 1:
        raise ArtifactError(
            f"{attempt} failed: one library was expected, but there are {len(libraries)}.",
            remedy="Make an archive of each: all export the same functions.",
        )
    (library,) = libraries
    if library.host.is_android:
        raise ArtifactError(
            f"{attempt} failed: a library for Linux was expected, but {library.path} is for "
            f"{library.host.triple}.",
            remedy="Compile it with `host=linux-arm64` or `host=linux-x64`, or package it with "
            "`aar`.",
        )
    return library


def licenses() -> dict[str, bytes | Path]:
    """Return license and notice of the runtime, as files of a package.

    Raises `ArtifactError` if the installation lacks one.
    """
    # They are in the source tree, or in the metadata of an installed package.
    tree = native_folder("bindings").resolve().parents[1]
    found = {name: tree / name for name in _LICENSES if (tree / name).is_file()}
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.files("tvmflow") or ():
            if file.name in _LICENSES and file.parent.parent.suffix == ".dist-info":
                found.setdefault(file.name, Path(file.locate()))
    for name in _LICENSES:
        if name not in found:
            raise ArtifactError(
                f"Packaging failed: a package carries tvmflow's {name}, which this installation "
                "lacks.",
                remedy="Install tvmflow again.",
            )
    return {**found}


def weights_of(library: Library) -> str:
    """Return the name of the sidecar with a library's weights."""
    return library.path.name + SIDECAR_SUFFIX


def headers(folder: str) -> dict[str, bytes | Path]:
    """Return the headers of the C and C++ interfaces, as files in a package's folder."""
    bindings = native_folder("bindings")
    return {f"{folder}/{name}": bindings / name for name in _HEADERS}
