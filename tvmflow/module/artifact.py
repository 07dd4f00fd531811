"""The module file: a shared library that describes itself.

``OUT.so`` is the library that TVM exports (host code, device code, the virtual
machine's program), followed by sections that are not loaded with the library:

``.tvmflow.weights``
    Weights in the safetensors format.  Absent when they exceed the embed limit;
    they are then in ``OUT.so.weights`` next to the module, in the same format.
``.tvmflow.meta``
    A JSON object: `FORMAT`, versions, target, inputs, outputs, kernels, options.
``.tvmflow.functions``
    The scheduled primary functions as TVM's JSON, compressed, for `tvmflow profile`.
``.tvmflow.digest``
    SHA-256 of the metadata, then SHA-256 of everything before the first added
    section in the finished file.  Digests of weights and functions are in the metadata.

Reading maps the weights and never loads the library: a module for another
machine can be inspected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import xxhash

from .. import _versions
from ..devices.choices import EMBED_LIMIT_BYTES
from ..devices.host import Host
from ..errors import ArtifactError, CompileError
from ..ir.tensors import TensorInfo
from ..runtime.json_types import JsonMapping, JsonObject
from ..runtime.regular_files import open_file
from ..runtime.shared_library import FileIdentity
from ..runtime.stage_times import StageTimes
from . import elf
from .elf import META
from .files import publish, require_space, staging
from .link import link_shared
from .metadata import check_module
from .schema import MOST_BYTES, SchemaError, anything, parse, record
from .standalone.format import WEIGHTS_MAGIC
from .weights import WeightsError, map_weights, pieces, plan_weights, write_weights

if TYPE_CHECKING:
    import tvm

#: Version of the layout of sections and metadata; modules of other versions are refused.
FORMAT = 1

WEIGHTS = ".tvmflow.weights"
FUNCTIONS = ".tvmflow.functions"
DIGEST = ".tvmflow.digest"
SIDECAR_SUFFIX = ".weights"

COPY_AGAIN = "Copy it again from where it was made, or compile the model again."


@dataclass(frozen=True)
class Artifact:
    """Content of a module file, read without loading its library."""

    path: Path
    metadata: JsonObject  #: The JSON object of the section ``.tvmflow.meta``.
    #: Read-only arrays mapped from the file, in the order of the entry function.
    weights: dict[str, np.ndarray] = field(repr=False)
    #: The file that has the weights: the module or its sidecar; ``None`` without weights.
    weights_path: Path | None
    file: FileIdentity  #: The file that was read.
    library_bytes: int  #: Size of the library without the added sections.
    architecture: str  #: Architecture that the library was linked for, as in a host triple.
    _library_digest: bytes = field(repr=False)
    _functions: elf.Section | None = field(default=None, repr=False)

    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Return the network's inputs, in order."""
        return tensor_infos(self.metadata["inputs"])

    @cached_property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Return the network's outputs, in order."""
        return tensor_infos(self.metadata["outputs"])

    @cached_property
    def variants(self) -> tuple[Artifact, ...]:
        """Return a view of the module for each of its shapes; itself if there is only one."""
        entries = self.metadata.get("variants")
        return (self,) if entries is None else tuple(map(self._variant, entries))

    @property
    def input_bytes(self) -> list[int]:
        """Return each input's size in bytes for the shape in which it is largest."""
        return [
            max(info.size_bytes for info in infos)
            for infos in zip(*(variant.inputs for variant in self.variants), strict=True)
        ]

    def _variant(self, own: JsonMapping) -> Artifact:
        names = own["weight_names"]
        records = {record["name"]: record for record in self.metadata["weights"]}
        common = {n: v for n, v in self.metadata.items() if n not in ("variants", "batch")}
        weights = {"weights": [records[name] for name in dict.fromkeys(names)]}
        return replace(
            self,
            metadata={**common, **own, **weights},
            weights={name: self.weights[name] for name in dict.fromkeys(names)},
        )

    @property
    def weights_bytes(self) -> int:
        """Return the total size of the weights outside the library."""
        return sum(array.nbytes for array in self.weights.values())

    @property
    def sidecar(self) -> Path | None:
        """Return the weights file next to the module, if there is one."""
        return None if self.weights_path == self.path else self.weights_path

    def check_library(self) -> None:
        """Raise `ArtifactError` if a byte of the library has changed: it must not be run then."""
        with open_file(self.path) as file:
            if sha256_of(file, self.library_bytes) != self._library_digest:
                raise _damaged(self.path, "the code is not what was written")

    def read_functions(self) -> bytes:
        """Return the scheduled primary functions, packed; `ArtifactError` if damaged."""
        section = self._functions
        content = b"" if section is None else elf.read_section(self.path, section)
        if hashlib.sha256(content).hexdigest() != self.metadata["functions_digest"]:
            raise _damaged(self.path, "its primary functions are not what was written")
        return content

    def check_weights(self) -> None:
        """Raise `ArtifactError` if the weights do not match their (quickly computed) checksum."""
        promised = self.metadata["weights_xxh64"]
        if promised is not None and self._hash_weights(xxhash.xxh64()) != promised:
            raise self._damaged_weights()

    def check(self) -> None:
        """Raise `ArtifactError` if library, functions or weights differ from their digests."""
        self.check_library()
        self.read_functions()
        digest = self.metadata["weights_digest"]
        if self.weights and self._hash_weights(hashlib.sha256()) != digest:
            raise self._damaged_weights()

    def _hash_weights(self, digest: hashlib._Hash | xxhash.xxh64) -> str:
        """Return the digest of all weights' bytes, in the order of the file."""
        for array in sorted(self.weights.values(), key=lambda array: array.ctypes.data):
            for piece in pieces(array):
                digest.update(piece)
        return str(digest.hexdigest())

    def _damaged_weights(self) -> ArtifactError:
        return _damaged(self.weights_path or self.path, "the weights are not what was written")


def read_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read a module file without loading its library.

    Checks the structure, the metadata's digest, the sizes, and that a sidecar has the weights
    that were written with the module.  `Artifact.check` compares every byte.  Raises
    `ArtifactError` if there is no such file, it is no module of this format, or it or its
    sidecar is damaged.
    """
    file_path = Path(path)
    if file_path.is_dir():
        remedy = "Name the .so file that `tvmflow compile` wrote."
        raise unreadable(file_path, "a file was expected, but it is a folder", remedy)
    try:
        return _read(file_path)
    except FileNotFoundError:
        remedy = "Check the name, or write it with `tvmflow compile MODEL.onnx -o OUT.so`."
        raise unreadable(file_path, "there is no such file", remedy) from None
    except OSError as error:
        remedy = "Check the permissions of the file and its folder."
        raise unreadable(file_path, str(error.strerror or error), remedy) from error


def _read(path: Path) -> Artifact:
    file = FileIdentity.of(path)
    try:
        library = elf.read_library(path)
    except elf.ElfError as error:
        reason = str(error)
        other = "not an ELF file" in reason or "not a shared library" in reason
        raise (_not_a_module if other else _damaged)(path, reason) from None
    section, digest = library.sections.get(META), library.sections.get(DIGEST)
    if section is None:
        raise _not_a_module(path, "it is a shared library without a description by tvmflow")
    if section.bytes > MOST_BYTES:
        raise _damaged(path, f"its description is said to have {section.bytes} bytes")
    text = elf.read_section(path, section)
    meta = _parse_metadata(path, text)
    digests = elf.read_section(path, digest) if digest and digest.bytes == 64 else b""
    if hashlib.sha256(text).digest() != digests[:32]:
        raise _damaged(path, "its description is not what was written")
    try:
        check_module(meta)
    except SchemaError as error:
        raise _damaged(path, f"in its description {error}") from error
    embedded = library.sections.get(WEIGHTS)
    end = min(section.offset, embedded.offset if embedded else section.offset)
    weights_path, weights = _find_weights(path, meta, embedded)
    return Artifact(
        path=path,
        metadata=meta,
        weights=weights,
        weights_path=weights_path,
        file=file,
        library_bytes=end,
        architecture=library.architecture,
        _library_digest=digests[32:],
        _functions=library.sections.get(FUNCTIONS),
    )


def _parse_metadata(path: Path, text: bytes) -> JsonObject:
    try:
        meta: JsonObject = parse(text)
        record({"format": anything})(meta, "")
    except SchemaError as error:
        raise _damaged(path, f"its description is not readable: {error}") from error
    found = meta["format"]
    if found is True or found != FORMAT:
        raise unreadable(
            path,
            f"it has format {str(found)[:60]}, written by tvmflow "
            f"{str(meta.get('tvmflow', 'of an unknown version'))[:60]}, but this tvmflow "
            f"{_versions.__version__} reads format {FORMAT}",
            "Compile the model again, or use the version of tvmflow that wrote it.",
        )
    return meta


def _find_weights(
    path: Path, meta: JsonObject, embedded: elf.Section | None
) -> tuple[Path | None, dict[str, np.ndarray]]:
    """Map the weights that the metadata lists, from the module or from its sidecar."""
    if not meta["weights"]:
        return None, {}
    if meta["weights_file"] is not None:
        holder = _find_sidecar(path, meta["weights_file"])
        place = elf.Section(0, holder.stat().st_size)
    elif embedded is not None:
        holder, place = path, embedded
    else:
        raise _damaged(path, "its weights are missing")
    try:
        found, digest = map_weights(holder, *place)
    except WeightsError as error:
        raise _damaged(holder, str(error)) from error
    expected = {w["name"]: (tuple(w["shape"]), w["dtype"]) for w in meta["weights"]}
    got = {name: (array.shape, array.dtype.name) for name, array in found.items()}
    if digest != meta["weights_digest"] or got != expected:
        raise unreadable(
            path,
            f"{holder.name} holds the weights of another module",
            "Copy the module together with the .weights file that was written with it, or compile "
            "again.",
        )
    return holder, {name: found[name] for name in expected}


def _find_sidecar(path: Path, recorded_name: str) -> Path:
    """Find the sidecar by the module's current name, else by the name it was written under."""
    names = [path.name + SIDECAR_SUFFIX, recorded_name]
    for candidate in map(path.with_name, names):
        if candidate.is_file():
            return candidate
    remedy = "Copy the .weights file into the same folder as the module, or compile again."
    raise unreadable(path, f"its weights, {names[0]}, are not next to it", remedy)


def sha256_of(file: BinaryIO, size: int, begin: int = 0) -> bytes:
    """Return the SHA-256 of `size` bytes of a file, or of fewer if the file ends earlier."""
    file.seek(begin)
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, 1 << 20))):
        digest.update(piece)
        size -= len(piece)
    return digest.digest()


def tensor_infos(entries: Iterable[JsonMapping]) -> tuple[TensorInfo, ...]:
    """Return inputs or outputs from their entries in a module's metadata."""
    names = {each.name for each in fields(TensorInfo)}
    # JSON has lists instead of tuples.
    known: Iterator[JsonObject] = (
        {n: tuple(v) if isinstance(v, list) else v for n, v in entry.items() if n in names}
        for entry in entries
    )
    return tuple(TensorInfo(**each) for each in known)


def unreadable(path: Path, reason: str, remedy: str = COPY_AGAIN) -> ArtifactError:
    """Return the error about a module that cannot be read."""
    return ArtifactError(f"Reading the module {path} failed: {reason}.", remedy=remedy)


def _damaged(path: Path, what: str) -> ArtifactError:
    return unreadable(path, f"the file is cut short or damaged ({what})")


def _not_a_module(path: Path, what: str) -> ArtifactError:
    reason = f"a module compiled by tvmflow was expected, but {what}"
    return unreadable(path, reason, "Name the .so file that `tvmflow compile` wrote.")


#: Free space that is required for the library and for objects of host code and kernels' sources.
CODE_BYTES = 8 << 20

#: Weights start on a page, so that the pages of their map hold nothing else.
_PAGE_BYTES = 4096


def write_artifact(
    executable: tvm.runtime.Executable,
    path: str | os.PathLike[str],
    *,
    metadata: JsonMapping,
    weights: Mapping[str, np.ndarray] | None = None,
    functions: bytes = b"",
    host: str | None = None,
    embed_limit_bytes: int = EMBED_LIMIT_BYTES,
    times: StageTimes | None = None,
) -> Artifact:
    """Link a compiled program and write the module file, with its weights.

    ``executable`` is the result of ``tvm.relax.build``.  To ``metadata``, with inputs and outputs
    as `TensorInfo`, this adds format, versions, host and the description of the weights.
    ``weights`` are in the order in which the entry function takes them after the inputs; they are
    streamed, and written to ``PATH.weights`` above ``embed_limit_bytes`` in total.  ``functions``
    are the scheduled primary functions, packed.  ``times`` counts linking as the stage "link", and
    gives ``stage_ms`` after the weights are written.

    The file (or the two files) appear complete or not at all.  Raises `ArtifactError` if a file
    cannot be written, `TargetError` if no linker for the triple `host` is installed, and
    `CompileError` if a weight cannot be stored.
    """
    timed = times.stage("link") if times is not None else nullcontext()
    final = Path(path)
    machine = Host.parse(host)
    weights = weights or {}
    try:
        layout = plan_weights(weights)
    except WeightsError as error:
        raise CompileError(f"Writing {final} failed: {error}.") from error
    has_sidecar = bool(weights) and layout.total_bytes > embed_limit_bytes
    with staging(final) as stage:
        library = stage / final.name
        sidecar = stage / (final.name + SIDECAR_SUFFIX)
        require_space(stage, CODE_BYTES)
        variants = [_interface(variant) for variant in metadata.get("variants", ())]
        with timed:
            linked_with = export_library(executable, library, machine, stage)
        meta = {
            "format": FORMAT,
            "tvmflow": _versions.__version__,
            "tvm": _versions.REQUIRED_TVM["apache-tvm"],
            "tvm_ffi": _versions.REQUIRED_TVM["apache-tvm-ffi"],
            **metadata,
            "host": machine.triple,
            "linked_with": linked_with,
            **_interface(metadata),
            **({"variants": variants} if variants else {}),
            "weights": [
                {"name": n, "shape": list(w.shape), "dtype": w.dtype.name, "bytes": w.nbytes}
                for n, w in weights.items()
            ],
            "weights_file": sidecar.name if has_sidecar else None,
            # Set by `put_weights`; they stay ``None`` without weights.
            "weights_digest": None,
            "weights_xxh64": None,
            "functions_digest": hashlib.sha256(functions).hexdigest(),
        }

        def put_weights(file: BinaryIO) -> None:
            meta.update(write_weights(file, weights, layout))

        def put_metadata(file: BinaryIO) -> None:
            if times is not None:
                meta["stage_ms"] = times.milliseconds()
            text = json.dumps(meta, indent=1, ensure_ascii=False, default=_plain)
            file.write(text.encode())

        sections: list[tuple[str, int, Callable[[BinaryIO], object]]] = []
        if has_sidecar:
            with open(sidecar, "wb") as file:
                put_weights(file)
        elif weights:
            # The metadata, which contains the digests of the weights, must come after them.
            sections.append((WEIGHTS, _PAGE_BYTES, put_weights))
        sections.append((META, 1, put_metadata))
        sections.append((DIGEST, 1, lambda file: file.write(bytes(64))))
        if functions:
            sections.append((FUNCTIONS, 1, lambda file: file.write(functions)))
        added = elf.append_sections(library, sections)
        with open(library, "r+b") as whole:
            digests = sha256_of(whole, added[META].bytes, added[META].offset)
            digests += sha256_of(whole, min(section.offset for section in added.values()))
            whole.seek(added[DIGEST].offset)
            whole.write(digests)
        final_sidecar = final.with_name(sidecar.name)
        publish({sidecar: final_sidecar, library: final} if has_sidecar else {library: final})
        if not has_sidecar:
            remove_stale_sidecar(final_sidecar)
    return read_artifact(final)


def remove_stale_sidecar(path: Path) -> None:
    """Remove a sidecar that an earlier module of the same name left; keep any other file."""
    with suppress(OSError):
        if is_sidecar(path):
            path.unlink(missing_ok=True)


def is_sidecar(path: Path) -> bool:
    """Return whether a file contains the weights of a module."""
    with open_file(path) as file:
        start = file.read(256)
    return start.startswith(WEIGHTS_MAGIC) or b'"tvmflow.sha256"' in start


def export_library(
    executable: tvm.runtime.Executable, library: Path, host: Host, work: Path
) -> str:
    """Have TVM write the objects, link them, and return the linker's name."""

    class Link:
        object_format = "o"
        # TVM asks for it only if no host code has a triple (a network that computes nothing).
        get_target_triple = staticmethod(lambda: host.llvm_triple)

        def __call__(self, output: str, objects: Iterable[str], **_: object) -> str:
            return link_shared(list(objects), Path(output), host, work)

    return str(executable.export_library(str(library), fcompile=Link(), workspace_dir=str(work)))


def _interface(about: JsonMapping) -> JsonObject:
    """Replace inputs and outputs in the description of a module or shape by their JSON."""
    sides = ("inputs", "outputs")
    return {**about, **{side: [_describe(tensor) for tensor in about[side]] for side in sides}}


def _describe(tensor: TensorInfo) -> JsonObject:
    entry: JsonObject = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
    if tensor.logical_shape is not None:
        entry |= {"layout": tensor.layout, "logical_shape": list(tensor.logical_shape)}
        entry |= {"scope": tensor.scope, "image": tensor.image}
    if tensor.open_dims:
        entry["open_dims"] = list(tensor.open_dims)
    if tensor.bounded_axis is not None:
        entry["bounded_axis"] = tensor.bounded_axis
    return entry


def _plain(value: object) -> object:
    """Convert a value of the options that JSON does not have."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
