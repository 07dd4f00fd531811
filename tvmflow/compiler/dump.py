"""Dumps of the program after each stage and each pass, as text (``--dump-ir``)."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm
from tvm import IRModule
from tvm.ir.transform import PassInfo

from ..errors import TvmflowError
from ..module.functions import modules_in
from ..runtime.regular_files import write_new
from .compilation import Compilation


class Dump:
    """Folder of dumps: ``3_fuse.py`` after a stage, ``3_fuse/007_FuseTIR.py`` after a pass.

    Only passes whose names match the regular expression ``wanted`` are dumped.

    Raises `TvmflowError` if the folder cannot be written, or the expression is invalid.
    """

    def __init__(self, folder: Path, wanted: str = ""):
        self.folder = folder
        try:
            self._wanted = re.compile(wanted)
        except re.error as error:
            raise TvmflowError(
                f"The names of passes to dump, {wanted!r}, are no regular expression: {error}.",
                remedy="Give a part of their names, such as Fuse.",
            ) from error
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def stage(self, job: Compilation, stem: str) -> Iterator[None]:
        """Dump the program after each pass that runs in this context, and at its end."""
        folder, wanted = self.folder / stem, self._wanted
        numbers, failed = itertools.count(), list[OSError]()

        @tvm.instrument.pass_instrument
        class AfterPass:
            def run_after_pass(self, mod: IRModule, info: PassInfo) -> None:
                number, name = next(numbers), str(info.name).removeprefix("tvmflow.")
                if name == "sequential" or not wanted.search(name) or failed:
                    return
                try:
                    _make_folder(folder)
                    path = folder / f"{number:03}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}.py"
                    write_new(path, mod.script(show_meta=False).encode())
                except OSError as error:
                    # TVM would wrap the error, so it is raised after the stage.
                    failed.append(error)

        context = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(
            opt_level=context.opt_level,
            required_pass=context.required_pass,
            disabled_pass=context.disabled_pass,
            instruments=[*(context.instruments or ()), AfterPass()],
            config=dict(context.config),
        ):
            yield
        with self._writing():
            if failed:
                raise failed[0]
            _write_stage(job, folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Translate an `OSError` into an error with a remedy."""
        try:
            yield
        except OSError as error:
            raise TvmflowError(
                f"Writing the IR to the folder {self.folder} failed: {error.strerror or error}.",
                remedy="Name a folder that can be written with `dump_ir`.",
            ) from error


def _make_folder(folder: Path) -> None:
    """Create a folder unless it exists; refuse a link, which may lead elsewhere."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, f"{folder.name} is a link", os.fspath(folder))
    folder.mkdir(exist_ok=True)


def _write_stage(job: Compilation, stem: Path) -> None:
    """Write the current program, and the kernels' source once it is generated."""
    if job.executable is None:
        write_new(stem.with_suffix(".py"), job.mod.script(show_meta=False).encode())
        if job.kernels is not None:
            source = "\n".join(job.kernels.sources.values())
            write_new(stem.with_suffix(".opencl"), source.encode())
        return
    write_new(stem.with_suffix(".vm.txt"), job.executable.as_text().encode())
    for number, module in enumerate(modules_in(job.executable.mod)):
        source = module.inspect_source()
        if source:
            write_new(stem.with_suffix(f".{number}.{module.kind}"), source.encode())
