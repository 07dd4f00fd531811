"""Build an operator with open extents: its TE is scheduled and lowered as in a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import IRModule, te, tirx

from ..codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from ..codegen.tir_pipeline import TIR_PIPELINE
from ..devices.target import TargetSpec
from ..errors import CompileError
from ..ir.operator import Operator
from ..ir.passes import original_errors
from ..ir.signatures import with_parameters
from ..ir.tensors import TensorType, dtype_from_name
from ..ir.workspaces import with_workspaces
from ..schedules import Scheduled, schedule_function
from .memory import in_half, scope_of
from .signature import Extent, Signature, describe

#: Largest alignment of a tensor's first element that kernels use, in bytes.
_ALIGN_BYTES = 64


@dataclass(frozen=True)
class Program:
    """A compiled function.

    It takes the given inputs, the outputs, and workspaces in which kernels pass values to each
    other: TVM would take these from a pool of the thread, which ignores the streams of a library.
    """

    module: tvm.runtime.Module
    name: str
    scheduled: Scheduled
    workspaces: tuple[TensorType, ...]


def build(
    operator: Operator,
    signature: Signature,
    attributes: Mapping[str, Any],
    results: Sequence[int],
    target: TargetSpec,
    knobs: Mapping[str, Any] | None = None,
    storage: str = "buffer",
) -> Program:
    """Compile an operator for tensors of any open extents, with complete attributes.

    ``results`` are the positions of the wanted outputs; ``target``, ``knobs`` and ``storage`` are
    as for `.compiled.compile_operator`.  Raises `CompileError` if it has no schedule, or no code
    can be generated.
    """
    attempt = f"Compiling {operator.name}({describe(operator, signature)}) for {target.kind}"
    name = operator.name.lower()
    try:
        with original_errors(), target.tvm_target:
            function = _function_of(operator, signature, attributes, results, target, storage)
            scheduled = schedule_function(function, target, knobs, name)
            lowered = scheduled.schedule.mod["main"]
            own: list[Any] = []
            if target.is_gpu_kernel:
                lowered, own = with_workspaces(lowered)
            named = lowered.with_attrs(
                {"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True}
            )
            module = tvm.tirx.build(
                IRModule({name: named}), target=target.tvm_target, pipeline=TIR_PIPELINE
            )
    except CompileError as error:
        # Only uses of images that kernels cannot have raise this error.
        raise CompileError(
            f"{attempt} failed: {error.message}", remedy='Compile it with storage="buffer".'
        ) from error
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CompileError(
            f"{attempt} failed: {lines[-1]}",
            remedy="Give extents that do not change as numbers, such as the 4 in [N, 4]; "
            "`shapes` of an Operand declares them for all compilations.",
        ) from error
    workspaces = [TensorType(tuple(map(int, each.shape)), str(each.dtype)) for each in own]
    return Program(module, name, scheduled, tuple(workspaces))


def _function_of(
    operator: Operator,
    signature: Signature,
    attributes: Mapping[str, Any],
    results: Sequence[int],
    target: TargetSpec,
    storage: str,
) -> tirx.PrimFunc:
    """Return the operator's function of given inputs and wanted results, with memory scopes."""
    extents: dict[str, tirx.Var] = {}

    def number(extent: Extent) -> Any:
        if extent.name is None:
            return extent.number
        # GPUs count in 32 bits; calls refuse tensors of more elements.
        variable = extents.setdefault(extent.name, tirx.Var(extent.name, "int32"))
        return variable + extent.number if extent.number else variable

    def placeholders(narrow: bool) -> list[te.Tensor | None]:
        return [
            None if kind is None
            else te.placeholder(
                [number(e) for e in kind.shape],
                "float32" if narrow and in_half(kind.dtype, target) else kind.dtype,
                operand.name,
            )
            for operand, kind in zip(operator.inputs, signature, strict=True)
        ]  # fmt: skip

    plain, inputs = placeholders(False), placeholders(True)
    typed, computed = (operator.compute(tensors, attributes) for tensors in (plain, inputs))
    parameters = [(tensor, inputs[i]) for i, tensor in enumerate(plain) if tensor is not None]
    parameters += [(typed[i], computed[i]) for i in results]
    function = te.create_prim_func([tensor for _, tensor in parameters])
    stored = {}
    for param, (tensor, _) in zip(function.params, parameters, strict=True):
        shape, dtype = param.shape, str(param.dtype)
        row = int(shape[-1]) if len(shape) and isinstance(shape[-1], tirx.IntImm) else 1
        stored[param] = tirx.decl_buffer(
            shape, dtype, param.name,
            scope=scope_of(str(tensor.dtype), len(shape), row, target, storage),
            # TVM assumes 64 bytes, which arrays of other libraries, and parts of them, lack.
            data_alignment=alignment(dtype, row),
        )  # fmt: skip
    return with_parameters(function, stored)


def alignment(dtype: str, row: int) -> int:
    """Return the alignment of a tensor's address in bytes: rows of ``row`` numbers are vectors."""
    # ``row & -row`` is the largest power of two that divides the length of a row.
    return min(_ALIGN_BYTES, dtype_from_name(dtype).itemsize * (row & -row or 1))
