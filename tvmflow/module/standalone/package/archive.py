"""Reproducible archives, whose bytes depend only on the names and contents of their files."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from ....runtime.regular_files import open_file
from ...artifact import sha256_of

#: Contents of an archive by file name: bytes, or the path of a file.
Contents = Mapping[str, "bytes | Path"]

#: Name of the file with the checksums of all others, in the format of `sha256sum -c`.
SUMS = "SHA256SUMS"
#: Date of all files: the earliest that a ZIP archive can store, also in seconds since 1970.
_DATE, _TIME = (1980, 1, 1, 0, 0, 0), 315532800


def with_sums(contents: Contents) -> dict[str, bytes | Path]:
    """Return the contents with a file of the SHA-256 of each."""
    lines = [f"{_sha256(content)}  {name}\n" for name, content in sorted(contents.items())]
    return {**contents, SUMS: "".join(lines).encode()}


def write_zip(contents: Contents, output: Path | BinaryIO) -> None:
    """Write a ZIP archive."""
    with ZipFile(output, "w") as archive:
        for name, content in sorted(contents.items()):
            info = ZipInfo(name, _DATE)
            info.compress_type = ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.file_size = _size(content)
            with _opened(content) as source, archive.open(info, "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def write_tar(contents: Contents, output: Path) -> None:
    """Write a TAR archive, compressed by gzip."""
    with (
        open(output, "wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=_TIME) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, content in sorted(contents.items()):
            info = tarfile.TarInfo(name)
            info.mtime, info.size = _TIME, _size(content)
            with _opened(content) as source:
                archive.addfile(info, source)


def _opened(content: bytes | Path) -> BinaryIO:
    return BytesIO(content) if isinstance(content, bytes) else open_file(content)


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _sha256(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open_file(content) as file:
        return sha256_of(file, _size(content)).hex()
