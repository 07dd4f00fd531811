"""Candidates without host code: the kernels' source and their launches, for devices without TVM.

The form is that of execution plans of standalone libraries (:mod:`tvmflow.codegen.kernels`), for
one function.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tvm import IRModule, tirx

from ..codegen.kernels import Argument, generate_kernels, kernel_calls
from ..devices.target import TargetSpec
from ..ir.workspaces import with_workspaces
from ..module.files import publish, staging
from ..module.standalone.minify import minify
from ..module.standalone.plan import Allocation

SUFFIX = ".kernels"


@dataclass(frozen=True)
class CandidateLaunch:
    """A launch of a kernel."""

    kernel: str
    #: Number of the function's parameter, or of a workspace after them; or a scalar's bytes.
    arguments: tuple[int | bytes, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True)
class CandidateKernels:
    """Kernels of one candidate, and how they are launched."""

    source: str
    launches: tuple[CandidateLaunch, ...]
    workspaces: tuple[int, ...]  #: Bytes of buffers that kernels pass values in.

    @classmethod
    def generate(cls, function: tirx.PrimFunc, target: TargetSpec, entry: str) -> CandidateKernels:
        """Generate the kernels of a scheduled function.

        Raises `CompileError` if its host does more than launch kernels, and TVM's exceptions.
        """
        changed, workspaces = with_workspaces(function)
        named = changed.with_attrs(
            {"global_symbol": entry, "tirx.noalias": True, "tirx.is_scheduled": True}
        )
        kernels = generate_kernels(IRModule({entry: named}), target)
        launches = tuple(
            CandidateLaunch(
                call.kernel,
                tuple(a.source if isinstance(a, Argument) else a for a in call.arguments),
                call.global_size,
                call.local_size,
            )
            for call in kernel_calls(kernels, entry)
        )
        defined: set[str] = set()
        source = "".join(minify(text, defined) for text in kernels.sources.values())
        sizes = (
            Allocation.of(tuple(map(int, buffer.shape)), str(buffer.dtype)).bytes
            for buffer in workspaces
        )
        return cls(source, launches, tuple(sizes))

    @classmethod
    def read(cls, path: Path) -> CandidateKernels:
        """Read a file that `write` has written."""
        content = json.loads(path.read_text(encoding="utf-8"))
        launches = tuple(
            CandidateLaunch(
                launch["kernel"],
                tuple(bytes.fromhex(a) if isinstance(a, str) else a for a in launch["arguments"]),
                tuple(launch["global"]),
                tuple(launch["local"]),
            )
            for launch in content["launches"]
        )
        return cls(content["source"], launches, tuple(content["workspaces"]))

    def write(self, folder: Path) -> Path:
        """Write the kernels to a file that is named after their content, and return it."""
        launches = [
            {
                "kernel": launch.kernel,
                "arguments": [a.hex() if isinstance(a, bytes) else a for a in launch.arguments],
                "global": launch.global_size,
                "local": launch.local_size,
            }
            for launch in self.launches
        ]
        content = {"source": self.source, "launches": launches, "workspaces": self.workspaces}
        text = json.dumps(content)
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}{SUFFIX}"
        if not path.exists():
            # Two processes may write the same file: each a whole one.
            with staging(path) as work:
                (work / path.name).write_text(text, encoding="utf-8")
                publish({work / path.name: path})
        return path
