"""Stages of the compiler: lists of passes on the program, or functions on the compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import IRModule
from tvm.ir.transform import Pass

from ..devices.target import TargetSpec
from ..errors import CompileError, TvmflowError
from ..ir.passes import original_errors
from .compilation import Compilation

#: Callback before each stage, with its name, its index and the number of stages.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Stage:
    """A named list of passes on the program, or a function on the compilation."""

    name: str
    passes: Callable[[Compilation], list[Pass]] | None = None
    other: Callable[[Compilation], None] | None = None
    #: Translates a TVM error raised by one of the passes; it gets the program before them.
    translate_error: Callable[[IRModule, TargetSpec, Exception], CompileError] | None = None

    def __call__(self, job: Compilation) -> None:
        """Run the stage on a compilation."""
        if self.other is not None:
            self.other(job)
        if self.passes is None:
            return
        before = job.mod
        try:
            with original_errors(), job.target.tvm_target:
                job.mod = tvm.transform.Sequential(self.passes(job))(before)
        except TvmflowError:
            raise
        except Exception as error:
            if self.translate_error is None:
                raise
            raise self.translate_error(before, job.target, error) from error
