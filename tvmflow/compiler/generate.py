"""Code generation for scheduled functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import IRModule, relax, tirx

from ..codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from ..codegen.argument_checks import mark_checked
from ..codegen.kernels import generate_kernels, generate_machine_code
from ..codegen.tir_pipeline import TIR_PIPELINE
from ..devices.target import TargetSpec
from ..errors import CompileError
from ..ir.passes import original_errors
from .compilation import Compilation
from .scheduling import reason_of


def generate(job: Compilation) -> None:
    """Generate machine code and kernel source; a standalone library has no host code.

    Raises `CompileError`, with TVM's reason, if code generation fails.
    """
    with generating(job.target):
        if job.standalone:
            of_target = generate_machine_code if job.target.kind == "llvm" else generate_kernels
            job.kernels = of_target(job.mod, job.target)
        else:
            target = job.target.tvm_target
            job.executable = relax.build(
                *(mark_checked(job.mod), target), relax_pipeline=None, tir_pipeline=TIR_PIPELINE
            )


@contextmanager
def generating(target: TargetSpec) -> Iterator[None]:
    """Translate errors of TVM's code generation into `CompileError`."""
    try:
        with original_errors(), target.tvm_target:
            yield
    except CompileError:
        raise
    except Exception as error:
        raise CompileError(
            f"Code for the target {target.kind} could not be generated: {reason_of(error)}",
            details="\n".join(str(error).strip().splitlines()[:-1]) or None,
        ) from error


def without_code(mod: IRModule, target: TargetSpec) -> dict[str, str]:
    """Return TVM's reasons for each scheduled primary function whose code generation fails.

    Each function is built separately, because TVM's error for a module does not name the function.
    """
    found = {}
    for gv, function in mod.functions.items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        single = function.with_attr("global_symbol", gv.name_hint)
        try:
            with generating(target):
                tirx.build(single, target=target.tvm_target, pipeline=TIR_PIPELINE)
        except CompileError as error:
            found[gv.name_hint] = error.message.rpartition("could not be generated: ")[2]
    return found
