"""The plan inside a library, read without loading it: libraries for other machines, too."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArtifactError
from ..schema import SchemaError, parse
from .format import HEADER, PLAN_MAGIC, RECORDS, VERSION, Section


@dataclass(frozen=True)
class EncodedPlan:
    """The bytes of a plan, section by section."""

    content: bytes
    header: np.void

    def __getitem__(self, section: Section) -> Any:
        """Records of a section, or its bytes."""
        offset, count = (int(value) for value in self.header["section"][section])
        if section not in RECORDS:
            return self.content[offset : offset + count]
        return np.frombuffer(self.content, RECORDS[section], count, offset)

    def text(self, offset: int) -> str:
        """The text at an offset of the strings."""
        strings: bytes = self[Section.STRINGS]
        return strings[offset : strings.index(b"\0", offset)].decode()

    @cached_property
    def source(self) -> str:
        """OpenCL C of all programs, one after the other.

        Raises
        ------
        ArtifactError
            If it is not what the header says.
        """
        size = int(self.header["source_bytes"])
        stream = zlib.decompressobj(-15)
        try:
            # No more than the header says: a few bytes can become gigabytes.
            content = stream.decompress(self[Section.SOURCES], size + 1)
            if len(content) != size or not stream.eof:
                raise ValueError("another size")
            return content.decode()
        except (zlib.error, ValueError) as error:
            raise ArtifactError(
                "Reading the kernels of the library failed: they are cut short or damaged.",
                remedy="Copy it again from where it was made, or compile the model again.",
            ) from error

    @property
    def source_digest(self) -> str:
        """SHA-256 of that source."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the library says of itself."""
        found: dict[str, Any] = parse(self[Section.METADATA].rstrip(b"\0"))
        return found


def read_plan(content: bytes) -> EncodedPlan | None:
    """The plan that ``content`` begins with; ``None`` if it is none, or damaged."""
    if len(content) < HEADER.itemsize or not content.startswith(PLAN_MAGIC):
        return None
    header = np.frombuffer(content, HEADER, 1)[0]
    size = int(header["bytes"])
    if (header["version"], header["sections"]) != (VERSION, len(Section)) or size > len(content):
        return None
    digest = hashlib.sha256(content[HEADER.itemsize : size]).digest()
    if digest != bytes(header["checksum"]):
        return None
    return EncodedPlan(bytes(content[:size]), header)


def find_plan(path: str | os.PathLike[str]) -> EncodedPlan | None:
    """The plan inside a standalone library; ``None`` if the file has none.

    Raises
    ------
    ArtifactError
        If the file cannot be read, or has the begin of a plan and not the whole.
    """
    file_path = Path(path)
    try:
        with open(file_path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _search(file_path, content)
    except OSError as error:
        raise ArtifactError(
            f"Reading the module {file_path} failed: {error.strerror or error}.",
            remedy="Check the name, and the permissions of the file and its folder.",
        ) from error


def _check(path: Path, plan: EncodedPlan) -> None:
    # Not at the top: what is checked is described with the readers of this plan.
    from .validity import check_interfaces, check_plan

    try:
        check_plan(plan)
        check_interfaces(plan)
    except SchemaError as error:
        raise ArtifactError(
            f"Reading the module {path} failed: its plan is damaged ({error}).",
            remedy="Copy it again from where it was made, or compile the model again.",
        ) from error


def _search(path: Path, content: mmap.mmap) -> EncodedPlan | None:
    begins = False
    position = content.find(PLAN_MAGIC)
    while position >= 0:
        # The runtime has the magic word, too, as text.
        header = np.frombuffer(
            content[position : position + HEADER.itemsize].ljust(HEADER.itemsize, b"\0"), HEADER, 1
        )[0]
        if header["version"] == VERSION and header["sections"] == len(Section):
            begins = True
            found = read_plan(content[position : position + int(header["bytes"])])
            if found is not None:
                _check(path, found)
                return found
        position = content.find(PLAN_MAGIC, position + 1)
    if begins:
        raise ArtifactError(
            f"Reading the module {path} failed: the file is cut short or damaged.",
            remedy="Copy it again from where it was made, or compile the model again.",
        )
    return None
