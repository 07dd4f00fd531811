"""A compiled network as a program for TVM's virtual machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _versions
from ..devices.host import Host
from ..errors import ArtifactError
from ..ir.tensors import TensorInfo
from .module import Module
from .reader import Artifact

if TYPE_CHECKING:
    from typing_extensions import Self

    from .session import Session


class RelaxModule(Module):
    """A network in a library that TVM's runtime runs.

    Parameters
    ----------
    artifact
        The module file.
    device_index
        Which of the target's devices runs it.
    check_weights
        Whether opening it compares the weights with their checksum.

    Raises
    ------
    ArtifactError
        If it was compiled with another version of TVM.
    """

    def __init__(self, artifact: Artifact, *, device_index: int = 0, check_weights: bool = True):
        _check_versions(artifact)
        super().__init__(device_index)
        self._artifact = artifact
        self._check_weights = check_weights

    @property
    def path(self) -> Path:
        """The module file."""
        return self._artifact.path

    @property
    def weights_path(self) -> Path | None:
        """The weights beside the module file, if they are not inside."""
        return self._artifact.sidecar

    @property
    def artifact(self) -> Artifact:
        """The module file's content, without the library."""
        return self._artifact

    @property
    def metadata(self) -> dict[str, Any]:
        """Target, device, versions, kernels, options: what the file says of itself."""
        return self._artifact.metadata

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of every input, in order."""
        return self._artifact.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of every output, in order."""
        return self._artifact.outputs

    def prepare(self) -> Self:
        """Import TVM."""
        import tvm  # noqa: F401

        return self

    def read_functions(self) -> bytes | None:
        """The scheduled primary functions that the file carries, packed; ``None`` without any."""
        return self._artifact.read_functions()

    def device_sources(self) -> list[str]:
        """Source of the kernels; none on ``llvm``."""
        from .device_code import sources_in
        from .session import Session

        with self._lock:
            session = self._opened()
            assert isinstance(session, Session)
            return sources_in(session.library)

    def _open(self) -> Session:
        from .session import Session

        self._require_host(self._artifact.architecture)
        _check_cpu(self._artifact)
        self._artifact.check_library()
        if self._check_weights:
            self._artifact.check_weights()
        return Session(self._artifact, self.device_index)


def _check_versions(artifact: Artifact) -> None:
    """The virtual machine's program is only understood by the TVM that wrote it."""
    required = _versions.REQUIRED_TVM
    for key, package in (("tvm", "apache-tvm"), ("tvm_ffi", "apache-tvm-ffi")):
        found = artifact.metadata.get(key)
        if found != required[package]:
            raise ArtifactError(
                f"Loading the module {artifact.path} failed: it was compiled with {package} "
                f"{found}, but {required[package]} is installed.",
                remedy="Compile the model again with this tvmflow.",
            )


def _check_cpu(artifact: Artifact) -> None:
    """Code for a newer CPU would end the process at its first unknown instruction."""
    cpu = artifact.metadata.get("cpu")
    if not cpu:
        return
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu

    here = str(llvm_get_system_cpu())
    if cpu == here:
        return
    needed, present = (
        set(llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": name}))) for name in (cpu, here)
    )
    if needed <= present:
        return
    raise ArtifactError(
        f"Running the module {artifact.path} failed: it was compiled for the CPU {cpu}, and this "
        f"one ({here}) lacks {', '.join(sorted(map(str, needed - present)))}.",
        remedy=f"Compile on this machine, or with `host={Host.native().triple}` for any such CPU.",
    )
