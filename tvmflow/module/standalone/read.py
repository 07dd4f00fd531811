"""Reading of a standalone library's plan and weights without loading it, for any machine.

A correct digest only proves that nothing changed, so the references within plans are checked, too.
The runtime in the library checks these and more before it uses a plan
(``native/standalone/plan.c``).
"""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import ArtifactError
from ...ir.pictures import FITS, IMAGE_FORMATS
from ...runtime.json_types import JsonObject
from ...runtime.regular_files import open_file
from .. import elf
from ..artifact import COPY_AGAIN, SIDECAR_SUFFIX, sha256_of, unreadable
from ..metadata import STANDALONE, check_interface
from ..schema import SchemaError, parse
from . import programs
from .format import (
    DTYPES,
    HEADER,
    INFLATE_RATIO,
    MAX_DIMENSIONS,
    PLAN_MAGIC,
    RECORDS,
    VERSION,
    WEIGHTS_HEADER,
    WEIGHTS_MAGIC,
    AlternativeKind,
    Kind,
    Section,
    digests_of,
)

#: Name of a function that only standalone libraries export.
_EXPORTED = b"\0tvmflow_create\0"
INTERFACES = (Section.INPUTS, Section.OUTPUTS)
_DTYPE_NAMES = {code: name for name, code in DTYPES.items()}


def is_standalone(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a standalone library, without running its code."""
    try:
        # Stripping a library, as Android's build does, keeps its exported names.
        names = elf.read_library(path).sections.get(".dynstr")
        return names is not None and _EXPORTED in elf.read_section(path, names)
    except (OSError, elf.ElfError):
        return False


# -- the plan ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedPlan:
    """An execution plan as bytes, with access to its sections."""

    content: bytes
    header: np.void

    def __getitem__(self, section: Section) -> np.ndarray:
        """Return the records of a section, or its bytes."""
        offset, count = self.header["section"][section].tolist()
        return np.frombuffer(self.content, RECORDS.get(section, np.uint8), count, offset)

    @property
    def shapes(self) -> int:
        """Return the number of its shapes."""
        return len(self[Section.SHAPES])

    @property
    def launches_of_shapes(self) -> np.ndarray:
        """Return the launches of all shapes, without those of alternatives."""
        return self[Section.LAUNCHES][: int(self[Section.SHAPES]["launches"].sum())]

    @property
    def launches_of_alternatives(self) -> np.ndarray:
        """Return the launches of alternatives, which follow those of all shapes."""
        return self[Section.LAUNCHES][len(self.launches_of_shapes) :]

    def of_shape(self, section: Section, number: int) -> np.ndarray:
        """Return inputs, outputs or launches of one shape."""
        if section == Section.LAUNCHES:
            first, count = self[Section.SHAPES][number].tolist()
            return self[section][first : first + count]
        found = self[section]
        each = len(found) // self.shapes
        return found[number * each : (number + 1) * each]

    def sizes_by_kernel(self, number: int) -> dict[str, deque[JsonObject]]:
        """Return the work sizes of each launch of one shape or its alternatives, by its kernel."""
        found: dict[str, deque[JsonObject]] = defaultdict(deque)
        own = self.of_shape(Section.LAUNCHES, number)
        for launch in (*own, *self.launches_of_alternatives):
            count = int(launch["dimensions"])
            sizes = {key: tuple(map(int, launch[key][:count])) for key in ("global", "local")}
            found[self.text(int(launch["kernel"]))].append(sizes)
        return found

    def text(self, offset: int) -> str:
        """Return the text at an offset of the strings."""
        strings = self[Section.STRINGS].tobytes()
        return strings[offset : strings.index(b"\0", offset)].decode()

    @cached_property
    def source(self) -> str:
        """Return OpenCL C of all programs; `ArtifactError` if its size or digest is wrong."""
        size = int(self.header["source_bytes"])
        packed = self[Section.SOURCES].tobytes()
        try:
            stream = zlib.decompressobj(-zlib.MAX_WBITS)
            # Limit the size to the header's: a few bytes could expand to gigabytes.
            content = stream.decompress(packed, size + 1)
            if len(content) != size or not stream.eof or stream.unused_data:
                raise ValueError("another size")
            digests = self[Section.DIGESTS].tobytes()
            if digests_of(self[Section.PROGRAMS], content) != digests:
                raise ValueError("another text")
            return content.decode()
        except (zlib.error, ValueError) as error:
            raise ArtifactError(
                "Reading the kernels of the library failed: they are cut short or damaged.",
                remedy=COPY_AGAIN,
            ) from error

    @property
    def source_digest(self) -> str:
        """Return a SHA-256 that identifies the source."""
        return hashlib.sha256(self[Section.DIGESTS].tobytes()).hexdigest()

    @cached_property
    def metadata(self) -> JsonObject:
        """Return the metadata: target, device, versions, options and more."""
        found: JsonObject = parse(self[Section.METADATA].tobytes().rstrip(b"\0"))
        return found


def read_plan(content: bytes) -> EncodedPlan | None:
    """Return the plan at the beginning of ``content``; ``None`` if there is no intact one."""
    if not content.startswith(PLAN_MAGIC):
        return None
    header = _padded(content, HEADER)
    size = int(header["bytes"])
    if not _is_known(header) or not HEADER.itemsize <= size <= len(content):
        return None
    digest = hashlib.sha256(content[HEADER.itemsize : size]).digest()
    if digest != bytes(header["checksum"]):
        return None
    return EncodedPlan(bytes(content[:size]), header)


def _is_known(header: np.void) -> bool:
    """Return whether a plan has the version that is read here."""
    return bool(header["version"] == VERSION and header["sections"] == len(Section))


def _padded(content: bytes, header: np.dtype) -> np.void:
    """Return a header, padded with zeros after the end of ``content``."""
    found: np.void = np.frombuffer(
        content[: header.itemsize].ljust(header.itemsize, b"\0"), header, 1
    )[0]
    return found


def find_plan(path: str | os.PathLike[str]) -> EncodedPlan | None:
    """Return the first plan in a standalone library; ``None`` without any.

    Raises as `find_plans` does.
    """
    return next(iter(find_plans(path)), None)


def find_plans(path: str | os.PathLike[str]) -> list[EncodedPlan]:
    """Return the plans in a standalone library: for OpenCL, the CPU, or both in this order.

    Raises `ArtifactError` if the file is unreadable, or has only incomplete plans.
    """
    file_path = Path(path)
    with readable(file_path), _mapped(file_path) as content:
        return _search(file_path, content)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Translate an `OSError` about a library into `ArtifactError`."""
    try:
        yield
    except OSError as error:
        remedy = "Check the name, and the permissions of the file and its folder."
        raise unreadable(path, str(error.strerror or error), remedy) from error


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def _search(path: Path, content: mmap.mmap | bytes) -> list[EncodedPlan]:
    begins, plans = False, []
    for position, header in _headers(content, PLAN_MAGIC, HEADER):
        # The runtime's code contains the magic word, too.
        if _is_known(header):
            begins = True
            found = read_plan(content[position : position + int(header["bytes"])])
            if found is not None:
                try:
                    check_plan(found)
                except SchemaError as error:
                    raise unreadable(path, f"its plan is damaged ({error})") from error
                plans.append(found)
    if begins and not plans:
        raise unreadable(path, "the file is cut short or damaged")
    return plans


def _headers(
    content: mmap.mmap | bytes, magic: bytes, header: np.dtype
) -> Iterator[tuple[int, np.void]]:
    """Yield positions and headers that begin with ``magic``, padded after the file's end."""
    position = content.find(magic)
    while position >= 0:
        yield position, _padded(content[position : position + header.itemsize], header)
        position = content.find(magic, position + 1)


# -- its records ------------------------------------------------------------------------------

#: Fields that are offsets of texts, by section.
_TEXTS = (
    (Section.WEIGHTS, "name"),
    (Section.PROGRAMS, "options"),
    (Section.LAUNCHES, "kernel"),
    (Section.LAUNCHES, "function"),
    (Section.TEST_TENSORS, "nodes"),
    *((side, field) for side in INTERFACES for field in ("name", "layout")),
)
#: Fields that are indices of another section's records.
_INDICES = (
    *(
        (section, "allocation", Section.ALLOCATIONS)
        for section in (Section.WEIGHTS, Section.TEST_TENSORS, *INTERFACES)
    ),
    (Section.TEST_TENSORS, "launch", Section.LAUNCHES),
    (Section.TEST_OUTPUTS, "output", Section.OUTPUTS),
    (Section.PICTURES, "input", Section.INPUTS),
    (Section.TRANSFORMED, "derived", Section.DERIVED),
)
#: Fields that are a first record of another section and how many there are.
_RANGES = (
    (Section.LAUNCHES, "first_argument", "arguments", Section.ARGUMENTS),
    *((side, "first_region", "regions", Section.REGIONS) for side in INTERFACES),
    (Section.TEST_OUTPUTS, "first_value", "count", Section.TEST_VALUES),
    (Section.TEST_TENSORS, "first_value", "count", Section.TENSOR_VALUES),
    (Section.ALTERNATIVES, "first", "count", Section.LAUNCHES),
    (Section.ALTERNATIVES, "other_first", "other_count", Section.LAUNCHES),
)


def check_plan(plan: EncodedPlan) -> None:
    """Check all parts of a plan that Python reads; raise `SchemaError` for a fault."""
    for section, (offset, count) in zip(Section, plan.header["section"].tolist(), strict=True):
        size = RECORDS[section].itemsize if section in RECORDS else 1
        if offset < HEADER.itemsize or offset + count * size > len(plan.content):
            raise SchemaError(f"the section {section.name.lower()} lies outside the plan")
    for wrong in _wrong_references(plan):
        raise SchemaError(f"a record of the section {wrong}")
    if int(plan.header["source_bytes"]) > INFLATE_RATIO * (len(plan[Section.SOURCES]) + 1):
        raise SchemaError("its source is said to be larger than it can be")
    STANDALONE(plan.metadata, "")
    _check_shapes(plan)
    for section in INTERFACES:
        for shape in range(plan.shapes):
            for index, tensor in enumerate(interfaces(plan, section, shape)):
                check_interface(tensor, f"{section.name.lower()}[{index}]")


def _check_shapes(plan: EncodedPlan) -> None:
    """Check that the shapes cover the launches, inputs and outputs."""
    shapes, entries = plan[Section.SHAPES], plan.metadata.get("variants", [plan.metadata])
    if not len(shapes):
        raise SchemaError("it has no shapes")
    ends = np.cumsum(shapes["launches"].astype(np.uint64))
    begins = np.concatenate([[0], ends[:-1]])
    others = int(plan[Section.ALTERNATIVES]["other_count"].sum())
    whole = ends[-1] + others == len(plan[Section.LAUNCHES])
    whole = whole and (shapes["first_launch"] == begins).all()
    if not whole or len(entries) != len(shapes):
        raise SchemaError("its shapes do not have its launches")
    for section in INTERFACES:
        if len(plan[section]) % len(shapes):
            raise SchemaError(f"its shapes do not have as many {section.name.lower()}")


def _wrong_references(plan: EncodedPlan) -> Iterator[str]:
    strings = plan[Section.STRINGS].tobytes()
    if strings and not strings.endswith(b"\0"):
        yield "strings has no end"
    try:
        strings.decode()
    except UnicodeError:
        yield "strings is not UTF-8"
    for section, field in _TEXTS:
        if (plan[section][field] >= len(strings)).any():
            yield f"{section.name.lower()} has a {field} that is no text"
    if (plan[Section.EXTENSIONS] >= len(strings)).any():
        yield "extensions is no text"
    for section, field, target in _INDICES:
        if (plan[section][field] >= len(plan[target])).any():
            yield f"{section.name.lower()} has the {field} of none"
    for section, first, count, target in _RANGES:
        ends = plan[section][first].astype(np.uint64) + plan[section][count]
        if (ends > len(plan[target])).any():
            yield f"{section.name.lower()} has {count} that are not there"
    for section in INTERFACES:
        records = plan[section]
        if (records["dtype"] >= len(DTYPES)).any() or (records["shape"] < 0).any():
            yield f"{section.name.lower()} has no dtype or shape"
        if (records["dimensions"] > MAX_DIMENSIONS).any():
            yield f"{section.name.lower()} has too many dimensions"
    if (plan[Section.PICTURES]["format"] >= len(IMAGE_FORMATS)).any():
        yield "pictures has no format"
    if (plan[Section.PICTURES]["fit"] >= len(FITS)).any():
        yield "pictures has no fit"
    dimensions = plan[Section.LAUNCHES]["dimensions"]
    if ((dimensions < 1) | (dimensions > 3)).any():
        yield "launches has no dimensions"


# -- the weights ------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundWeights:
    """Location of a library's weights, in the library or in its sidecar."""

    path: Path
    offset: int
    size: int  #: Size including the header.
    digest: bytes

    def check(self) -> None:
        """Raise `ArtifactError` if a byte of the weights has changed."""
        header = WEIGHTS_HEADER.itemsize
        with open_file(self.path) as file:
            found = sha256_of(file, self.size - header, self.offset + header)
        if self.size and found != self.digest:
            raise ArtifactError(
                f"Checking {self.path} failed: the weights are not what was written.",
                remedy=COPY_AGAIN,
            )


def find_weights(path: Path, plan: EncodedPlan) -> FoundWeights:
    """Return the location of the weights that belong to a library's plan.

    Raises `ArtifactError` if they are neither in the library nor in its sidecar, or cut short.
    """
    size, digest = int(plan.header["weight_bytes"]), bytes(plan.header["weights_id"])
    if not len(plan[Section.WEIGHTS]):
        return FoundWeights(path, 0, 0, digest)
    beside = path.with_name(path.name + SIDECAR_SUFFIX)
    for candidate in filter(Path.is_file, (path, beside)):
        with _mapped(candidate) as content:
            for position, header in _headers(content, WEIGHTS_MAGIC, WEIGHTS_HEADER):
                if bytes(header["id"]) != digest:
                    continue
                if position + size > len(content):
                    reason = f"{candidate.name} was cut short"
                    raise unreadable(path, reason, "Copy it again, or compile again.")
                return FoundWeights(candidate, position, size, digest)
    other = ", which is damaged or another library's" if beside.is_file() else ""
    raise unreadable(
        path,
        f"its weights are neither inside nor in {beside.name}{other}",
        "Copy the .weights file into the same folder as the library, or compile again.",
    )


# -- the description --------------------------------------------------------------------------


def _fallback(plan: EncodedPlan) -> JsonObject:
    """Return the description of a plan for the CPU, in addition to OpenCL's."""
    return {
        "target": plan.metadata["target"],
        "launches": len(plan[Section.LAUNCHES]),
        "extensions": [plan.text(int(offset)) for offset in plan[Section.EXTENSIONS]],
        "bytes": len(plan.content),
    }


def _alternatives(plan: EncodedPlan) -> JsonObject:
    """Return what plain kernels and choices a plan has, and the bytes that they add."""
    found, tensors = plan[Section.ALTERNATIVES], plan[Section.TEST_TENSORS]
    launches = plan.launches_of_alternatives
    programs = plan[Section.PROGRAMS][np.unique(launches["program"])]
    return {
        "calls": int((found["kind"] == AlternativeKind.PLAIN).sum()),
        "choices": int((found["kind"] == AlternativeKind.CHOICE).sum()),
        "tensors": len(tensors),
        "source": int(programs["bytes"].sum()),
        "values": plan[Section.TENSOR_VALUES].nbytes,
        "records": found.nbytes + tensors.nbytes + launches.nbytes,
    }


def pictures_of(plan: EncodedPlan) -> list[JsonObject]:
    """Return the inputs that take pictures, with the conversion of these."""
    inputs = plan[Section.INPUTS]
    return [
        {
            "input": plan.text(int(inputs[int(row["input"])]["name"])),
            "format": IMAGE_FORMATS[row["format"]],
            "size": [int(row["width"]), int(row["height"])] if row["width"] else None,
            "fit": FITS[row["fit"]],
            "rotate": int(row["rotation"]),
            "order": "bgr" if row["swapped"] else "rgb",
            "luma": "video" if row["video"] else "full",
            "scale": row["scale"][: row["channels"]].tolist(),
            "shift": row["shift"][: row["channels"]].tolist(),
        }
        for row in plan[Section.PICTURES]
    ]


def describe(path: Path, plans: Sequence[EncodedPlan], weights: FoundWeights) -> JsonObject:
    """Return the description of a library; of a second plan, only the differences."""
    plan, *others = plans
    compared = int(np.isfinite(plan[Section.TEST_VALUES]).sum())
    self_test = f"{compared} values by {plan.metadata.get('reference', '')}"
    if tensors := len(plan[Section.TEST_TENSORS]):
        self_test += f", {tensors} tensors between functions"
    sections = {Section.WEIGHTS: "weight", Section.INPUTS: "input", Section.OUTPUTS: "output"}
    roles = {n: role for s, role in sections.items() for n in plan[s]["allocation"].tolist()}
    variants = [
        {s.name.lower(): interfaces(plan, s, shape) for s in INTERFACES}
        for shape in range(plan.shapes)
    ]
    return {
        **plan.metadata,
        "plan_version": int(plan.header["version"]),
        **variants[0],
        **({"variants": variants} if len(variants) > 1 else {}),
        "pictures": pictures_of(plan),
        "extensions": [plan.text(int(offset)) for offset in plan[Section.EXTENSIONS]],
        "fallback": _fallback(others[0]) if others else None,
        "programs": len(plan[Section.PROGRAMS]),
        "launches": [
            {
                "name": plan.text(int(launch["kernel"])),
                "function": plan.text(int(launch["function"])),
                "program": int(launch["program"]),
                "global": launch["global"][: launch["dimensions"]].tolist(),
                "local": launch["local"][: launch["dimensions"]].tolist(),
            }
            for launch in plan.launches_of_shapes
        ],
        "alternatives": _alternatives(plan),
        "allocations": [
            {
                "number": number,
                "role": roles.get(number, "intermediate"),
                "storage": _storage(allocation),
                "bytes": int(allocation["bytes"]),
            }
            for number, allocation in enumerate(plan[Section.ALLOCATIONS])
        ],
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
        "self_test": self_test if len(plan[Section.TEST_OUTPUTS]) else "none",
        "sizes": {
            "file": path.stat().st_size,
            "plan": len(plan.content),
            "source": int(plan.header["source_bytes"]),
            "weights": weights.size,
        },
    }


def interfaces(plan: EncodedPlan, section: Section, shape: int = 0) -> list[JsonObject]:
    """Return inputs or outputs of one shape, as entries of a module's metadata."""
    own = plan.metadata.get("variants", [plan.metadata])[shape]
    logical = own.get("logical_shapes", {})
    open_dims = plan.metadata.get("open_dims", {})
    bounded = plan.metadata.get("bounded_axes", {})
    # The library itself packs inputs that take pictures, if its kernels need the blocked layout.
    plain = {int(p["input"]) for p in plan[Section.PICTURES]} if section == Section.INPUTS else ()
    found = []
    for index, record in enumerate(plan.of_shape(section, shape)):
        name = plan.text(int(record["name"]))
        allocation = plan[Section.ALLOCATIONS][record["allocation"]]
        entry: JsonObject = {
            "name": name,
            "shape": record["shape"][: record["dimensions"]].tolist(),
            "dtype": _DTYPE_NAMES[int(record["dtype"])],
        }
        if name in logical and index in plain:
            entry["shape"] = logical[name]
        elif name in logical:
            entry |= {
                "layout": plan.text(int(record["layout"])),
                "logical_shape": logical[name],
                "image": _storage(allocation) if allocation["kind"] == Kind.IMAGE else None,
            }
        if section == Section.INPUTS and name in open_dims:
            entry["open_dims"] = open_dims[name]
        if section == Section.OUTPUTS and name in bounded:
            entry["bounded_axis"] = bounded[name]
        found.append(entry)
    return found


def _storage(allocation: np.void) -> str:
    if allocation["kind"] == Kind.BUFFER:
        return "buffer"
    width, height, layers = allocation["image_size"].tolist()
    return f"{width}x{height}" + (f"x{layers}" if layers > 1 else "")
