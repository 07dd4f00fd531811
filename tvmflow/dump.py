"""``--dump-ir``: the program after each stage, as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .compilation import Compilation
from .errors import TvmflowError


@contextmanager
def dumping(folder: Path) -> Iterator[None]:
    """Turn what the system says into an error that a user can act on."""
    try:
        yield
    except OSError as error:
        raise TvmflowError(
            f"Writing the IR to the folder {folder} failed: {error.strerror or error}.",
            remedy="Name a folder that can be written with --dump-ir.",
        ) from error


def dump(job: Compilation, stem: Path) -> None:
    """Write the IR as it stands, and the kernels' source once there is one."""
    if job.executable is None:
        assert job.mod is not None
        stem.with_suffix(".py").write_text(job.mod.script(show_meta=False), encoding="utf-8")
        if job.kernels is not None:
            source = "\n".join(job.kernels.sources.values())
            stem.with_suffix(".opencl").write_text(source, encoding="utf-8")
        return
    from .deploy.device_code import modules_in

    stem.with_suffix(".vm.txt").write_text(job.executable.as_text(), encoding="utf-8")
    for number, module in enumerate(modules_in(job.executable.mod)):
        source = module.inspect_source()
        if source:
            stem.with_suffix(f".{number}.{module.kind}").write_text(source, encoding="utf-8")
