"""What a standalone library says of itself, as JSON, and where its weights are."""

from __future__ import annotations

import hashlib
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ArtifactError
from ..reader import SIDECAR_SUFFIX
from . import programs
from .format import DTYPES, WEIGHTS_HEADER, WEIGHTS_MAGIC, Kind, Section
from .read import EncodedPlan

_DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


@dataclass(frozen=True)
class FoundWeights:
    """Where the weights of a library are: in it, or in a file beside it."""

    path: Path
    offset: int
    #: With their header.
    size: int
    digest: bytes

    def check(self) -> None:
        """Compare every byte with the digest.

        Raises
        ------
        ArtifactError
            If one has changed.
        """
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            file.seek(self.offset + WEIGHTS_HEADER.itemsize)
            left = max(0, self.size - WEIGHTS_HEADER.itemsize)
            while left and (piece := file.read(min(left, 1 << 20))):
                digest.update(piece)
                left -= len(piece)
        if self.size and (left or digest.digest() != self.digest):
            raise ArtifactError(
                f"Checking {self.path} failed: the weights are not what was written.",
                remedy="Copy it again from where it was made, or compile the model again.",
            )


def find_weights(path: Path, plan: EncodedPlan) -> FoundWeights:
    """The weights that belong to a library's plan.

    Raises
    ------
    ArtifactError
        If they are neither in the library nor beside it, or were cut short.
    """
    size, digest = int(plan.header["weight_bytes"]), bytes(plan.header["weights_id"])
    if not len(plan[Section.WEIGHTS]):
        return FoundWeights(path, 0, 0, digest)
    beside = path.with_name(path.name + SIDECAR_SUFFIX)
    for candidate in (path, beside):
        if not candidate.is_file() or candidate.stat().st_size == 0:
            continue
        with (
            open(candidate, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as all_,
        ):
            position = all_.find(WEIGHTS_MAGIC)
            while position >= 0:
                text = all_[position : position + WEIGHTS_HEADER.itemsize]
                header = np.frombuffer(text.ljust(WEIGHTS_HEADER.itemsize, b"\0"), WEIGHTS_HEADER)
                if bytes(header[0]["id"]) == digest:
                    if position + size > len(all_):
                        raise ArtifactError(
                            f"Reading the module {path} failed: {candidate.name} was cut short.",
                            remedy="Copy it again, or compile again.",
                        )
                    return FoundWeights(candidate, position, size, digest)
                position = all_.find(WEIGHTS_MAGIC, position + 1)
    other = ", which is damaged or another library's" if beside.is_file() else ""
    raise ArtifactError(
        f"Reading the module {path} failed: its weights are neither inside nor in "
        f"{beside.name}{other}.",
        remedy="Copy the .weights file into the same folder as the library, or compile again.",
    )


def describe(path: Path, plan: EncodedPlan, weights: FoundWeights) -> dict[str, Any]:
    """All that a library says of itself."""
    test = plan[Section.TEST_OUTPUTS]
    compared = int(np.isfinite(plan[Section.TEST_VALUES]).sum())
    reference = plan.metadata.get("reference", "")
    return {
        **plan.metadata,
        "plan_version": int(plan.header["version"]),
        "inputs": interfaces(plan, Section.INPUTS),
        "outputs": interfaces(plan, Section.OUTPUTS),
        "extensions": [plan.text(int(offset)) for offset in plan[Section.EXTENSIONS]],
        "programs": len(plan[Section.PROGRAMS]),
        "launches": [
            {
                "name": plan.text(int(launch["kernel"])),
                "function": plan.text(int(launch["function"])),
                "program": int(launch["program"]),
                "global": launch["global"][: launch["dimensions"]].tolist(),
                "local": launch["local"][: launch["dimensions"]].tolist(),
            }
            for launch in plan[Section.LAUNCHES]
        ],
        "allocations": _allocations(plan),
        "weights": [
            {
                "name": plan.text(int(weight["name"])),
                "storage": _storage(plan[Section.ALLOCATIONS][weight["allocation"]]),
                "bytes": int(weight["bytes"]),
            }
            for weight in plan[Section.WEIGHTS]
        ],
        "precompiled": programs.summary(path, plan.source_digest),
        "weights_file": weights.path.name if weights.size and weights.path != path else None,
        "self_test": f"{compared} values by {reference}" if len(test) else "none",
        "sizes": {
            "file": path.stat().st_size,
            "plan": len(plan.content),
            "source": int(plan.header["source_bytes"]),
            "weights": weights.size,
        },
    }


def interfaces(plan: EncodedPlan, section: Section) -> list[dict[str, Any]]:
    """Inputs or outputs, as a module's metadata has them."""
    logical = plan.metadata.get("logical_shapes", {})
    open_dims = plan.metadata.get("open_dims", {})
    found = []
    for record in plan[section]:
        name = plan.text(int(record["name"]))
        allocation = plan[Section.ALLOCATIONS][record["allocation"]]
        entry: dict[str, Any] = {
            "name": name,
            "shape": record["shape"][: record["dimensions"]].tolist(),
            "dtype": _DTYPE_NAMES[int(record["dtype"])],
        }
        if name in logical:
            image = _storage(allocation) if allocation["kind"] == Kind.IMAGE else None
            entry |= {
                "layout": plan.text(int(record["layout"])),
                "logical_shape": logical[name],
                "image": image,
            }
        if section == Section.INPUTS and name in open_dims:
            entry["open_dims"] = open_dims[name]
        found.append(entry)
    return found


def _storage(allocation: np.void) -> str:
    if allocation["kind"] == Kind.BUFFER:
        return "buffer"
    width, height, layers = allocation["image_size"].tolist()
    return f"{width}x{height}" + (f"x{layers}" if layers > 1 else "")


def _allocations(plan: EncodedPlan) -> list[dict[str, Any]]:
    roles = dict.fromkeys(plan[Section.WEIGHTS]["allocation"].tolist(), "weight")
    roles |= dict.fromkeys(plan[Section.INPUTS]["allocation"].tolist(), "input")
    roles |= dict.fromkeys(plan[Section.OUTPUTS]["allocation"].tolist(), "output")
    return [
        {
            "number": number,
            "role": roles.get(number, "intermediate"),
            "storage": _storage(allocation),
            "bytes": int(allocation["bytes"]),
        }
        for number, allocation in enumerate(plan[Section.ALLOCATIONS])
    ]
