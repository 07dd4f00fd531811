"""Writing a module file: linking, and the sections behind the library."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .. import _versions
from ..devices.choices import EMBED_LIMIT_BYTES
from ..devices.host import Host
from ..errors import CompileError
from ..ir.tensors import TensorInfo
from . import elf
from .elf import META
from .files import publish, require_space, staging
from .link import link_shared
from .reader import (
    DIGEST,
    FORMAT,
    FUNCTIONS,
    SIDECAR_SUFFIX,
    WEIGHTS,
    Artifact,
    read_artifact,
    sha256_of,
)
from .weights import (
    Digests,
    WeightLike,
    WeightsError,
    WeightsLayout,
    plan_weights,
    weight_bytes,
    write_weights,
)

if TYPE_CHECKING:
    import tvm


#: Room that there must be for objects, of host code and of kernels' sources, and the library.
CODE_BYTES = 8 << 20

#: Weights start on a page, so that the pages of their map hold nothing else.
_PAGE_BYTES = 4096


def write_artifact(
    executable: tvm.runtime.Executable,
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any],
    weights: Mapping[str, WeightLike] | None = None,
    functions: bytes = b"",
    host: str | None = None,
    embed_limit_bytes: int = EMBED_LIMIT_BYTES,
) -> Artifact:
    """Link a compiled program and write the module file, with its weights.

    The file (or the two files) appear complete or not at all.

    Parameters
    ----------
    executable
        What ``tvm.relax.build`` returned.
    path
        The file to write.
    metadata
        ``name``, ``target``, ``device``, ``inputs``, ``outputs`` (`TensorInfo` or
        mappings of name, shape, dtype), ``kernels``, ``options``, ``stage_ms`` and
        what else fits JSON.  Format, versions, host and the description of the
        weights are added here.
    weights
        Weights outside the library, in the order in which the entry function
        takes them after the inputs.  They are streamed: neither the file nor one
        weight has to fit in memory.
    functions
        The scheduled primary functions, for `tvmflow profile`.
    host
        Triple of the machine that will load the module; default this one.
    embed_limit_bytes
        Above this total the weights are written to ``PATH.weights``.

    Raises
    ------
    ArtifactError
        If a file cannot be written.
    TargetError
        If nothing that links for `host` is installed.
    CompileError
        If a weight cannot be stored.
    """
    final = Path(path)
    machine = Host.parse(host) if host else Host.native()
    weights = weights or {}
    try:
        layout = plan_weights(weights)
    except WeightsError as error:
        raise CompileError(f"Writing {final} failed: {error}.") from error
    beside = bool(weights) and layout.total_bytes > embed_limit_bytes
    with staging(final) as stage:
        library = stage / final.name
        sidecar = stage / (final.name + SIDECAR_SUFFIX)
        require_space(stage, CODE_BYTES)
        meta = {
            "format": FORMAT,
            "tvmflow": _versions.__version__,
            "tvm": _versions.REQUIRED_TVM["apache-tvm"],
            "tvm_ffi": _versions.REQUIRED_TVM["apache-tvm-ffi"],
            **metadata,
            "host": machine.triple,
            "linked_with": export_library(executable, library, machine, stage),
            "inputs": [_describe(tensor) for tensor in metadata["inputs"]],
            "outputs": [_describe(tensor) for tensor in metadata["outputs"]],
            "weights": [
                {
                    "name": name,
                    "shape": list(weight.shape),
                    "dtype": weight.dtype.name,
                    "bytes": weight_bytes(weight),
                }
                for name, weight in weights.items()
            ],
            "weights_file": sidecar.name if beside else None,
            "weights_digest": None,
            "weights_xxh64": None,
            "functions_digest": hashlib.sha256(functions).hexdigest(),
        }
        try:
            if beside:
                with open(sidecar, "wb") as file:
                    _note_digests(meta, write_weights(file, weights, layout))
            _append(library, meta, {} if beside else weights, layout, functions)
        except WeightsError as error:
            raise CompileError(f"Writing {final} failed: {error}.") from error
        outputs = {library: final}
        final_sidecar = final.with_name(sidecar.name)
        if beside:
            outputs = {sidecar: final_sidecar, **outputs}
        publish(outputs)
        if not beside:
            remove_stale_sidecar(final_sidecar)
    return read_artifact(final)


def remove_stale_sidecar(path: Path) -> None:
    """Remove the weights that a module of the same name had before, and only those."""
    try:
        with open(path, "rb") as file:
            is_ours = b'"tvmflow.sha256"' in file.read(256)
    except OSError:
        return
    if is_ours:
        path.unlink(missing_ok=True)


def export_library(
    executable: tvm.runtime.Executable, library: Path, host: Host, work: Path
) -> str:
    """Let TVM write the objects, and link them; return the linker's name."""

    class Link:
        object_format = "o"
        used = ""

        @staticmethod
        def get_target_triple() -> str:
            # Asked only where no host code says it (a network that computes nothing).
            return host.llvm_triple

        def __call__(self, output: str, objects: Iterable[str], **_: Any) -> None:
            self.used = link_shared(list(objects), Path(output), host, work)

    link = Link()
    executable.export_library(str(library), fcompile=link, workspace_dir=str(work))
    return link.used


def _append(
    library: Path,
    meta: dict[str, Any],
    weights: Mapping[str, WeightLike],
    layout: WeightsLayout,
    functions: bytes,
) -> None:
    """Add the sections behind the library, and their digests."""

    def put_weights(file: BinaryIO) -> None:
        _note_digests(meta, write_weights(file, weights, layout))

    text = b""

    def put_meta(file: BinaryIO) -> None:
        nonlocal text
        text = json.dumps(meta, indent=1, ensure_ascii=False, default=_plain).encode()
        file.write(text)

    def reserve_digests(file: BinaryIO) -> None:
        file.write(bytes(64))

    def put_functions(file: BinaryIO) -> None:
        file.write(functions)

    sections = [(META, 1, put_meta), (DIGEST, 1, reserve_digests)]
    if functions:
        sections.append((FUNCTIONS, 1, put_functions))
    if weights:
        sections.insert(0, (WEIGHTS, _PAGE_BYTES, put_weights))
    added = elf.append_sections(library, sections)
    with open(library, "r+b") as file:
        body = sha256_of(file, min(section.offset for section in added.values()))
        file.seek(added[DIGEST].offset)
        file.write(hashlib.sha256(text).digest() + body)


def _note_digests(meta: dict[str, Any], digests: Digests) -> None:
    meta |= {"weights_digest": digests.sha256, "weights_xxh64": digests.xxh64}


def _describe(tensor: TensorInfo | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tensor, TensorInfo):
        return dict(tensor)
    entry: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
    }
    if tensor.logical_shape is not None:
        entry |= {"layout": tensor.layout, "logical_shape": list(tensor.logical_shape)}
        entry |= {"scope": tensor.scope, "image": tensor.image}
    if tensor.open_dims:
        entry["open_dims"] = list(tensor.open_dims)
    return entry


def _plain(value: Any) -> Any:
    """Turn what options may hold into JSON."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
