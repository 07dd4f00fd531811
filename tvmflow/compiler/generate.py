"""Code for scheduled functions, and the module file around it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from tvm import IRModule, relax, tirx

from ..codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from ..codegen.argument_checks import mark_checked
from ..codegen.kernels import generate_kernels, generate_machine_code
from ..codegen.tir_pipeline import TIR_PIPELINE
from ..devices.target import TargetSpec
from ..errors import CompileError
from ..graph.memory import together
from ..graph.missed_fusion import fusion_left
from ..ir.passes import original_errors
from ..module.artifact import write_artifact
from ..module.functions import pack_functions, sources_in
from ..runtime.devices import FP16_EXTENSION, FP64_EXTENSION
from ..runtime.json_types import JsonObject
from ..schedules import Scheduled, fallback
from .compilation import Attempt, Compilation
from .loops import weight_names, with_bodies
from .scheduling import described, reason_of
from .shapes import nodes_by_function, parts

logger = logging.getLogger(__name__)


def generate(job: Compilation) -> None:
    """Machine code and kernel source; a standalone library has no code for the host.

    Raises `CompileError` if code generation fails; the message names the reason TVM gave.
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


def export(job: Compilation) -> None:
    """The module file, and the weights beside it when they are large."""
    if job.standalone:
        from .standalone.export import write_library

        write_library(job)
        return
    write_artifact(
        job.executable,
        job.output,
        metadata=_metadata(job),
        weights=job.weights,
        functions=pack_functions(job.scheduled),
        host=job.target.host,
        embed_limit_bytes=job.options.embed_limit_bytes,
        times=job.times,
    )


@contextmanager
def generating(target: TargetSpec) -> Iterator[None]:
    """Say in an error of ours what TVM's code generation refused."""
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
    """Scheduled primary functions for which no code can be generated, with TVM's reasons.

    Each is built by itself: in a whole module TVM does not say which function it is at.
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


def next_attempt(job: Compilation, error: CompileError) -> Attempt:
    """Say how functions are scheduled where code generation has failed.

    Knobs may meet all constraints and still lead to code that TVM cannot generate: the heuristics
    come next.  Then the fallback schedules the functions that have no code.

    Raises `CompileError` if there is nothing left to try; names the primary function and its nodes.
    """
    if job.attempt.knobs or job.attempt.journals:
        logger.warning(
            "No code could be generated with the knobs given or looked up. The heuristics are "
            "used for all functions. (%s)",
            error.message,
        )
        return Attempt()
    nodes = nodes_by_function(job)
    failed = without_code(job.scheduled, job.target)
    if not failed:
        raise error
    families = {name: job.schedules[name].family for name in failed if name in job.schedules}
    others = any(family != fallback.NAME for family in families.values())
    if others and not job.attempt.last_resort:
        for name, reason in failed.items():
            logger.warning(
                "%s has no code by its schedule family %s: the fallback is used. (%s)",
                described(name, nodes),
                families.get(name, "(none)"),
                reason,
            )
        return Attempt(last_resort=sorted(failed))
    name, reason = next(iter(failed.items()))
    raise CompileError(
        f"{described(name, nodes)} could not be compiled for {job.target.kind}: {reason}",
        remedy=error.remedy
        or "Compile with `storage=buffer` or `target=llvm`, and report the model.",
        details=error.details,
    ) from error


# -- what was built ------------------------------------------------------------------------


def common_metadata(job: Compilation) -> JsonObject:
    """What modules of every format tell."""
    return {
        "name": job.model.name,
        "target": job.target.kind,
        "device": job.target.device.name,
        "half_sums": job.half_sums,
        "options": job.options.to_json(),
        "stage_ms": job.times.milliseconds(),
        **({"limits": list(map(asdict, job.model.limits))} if job.model.limits else {}),
    }


def _metadata(job: Compilation) -> JsonObject:
    sources = sources_in(job.executable.mod)
    about = {
        **common_metadata(job),
        **_of_shape(parts(job)[0], sources),
        "extensions": extensions(sources),
        "weight_scopes": job.weight_scopes,
        "initializers": {
            each.weight_names.get(weight, weight): names
            for each in parts(job)
            for weight, names in each.initializers.items()
        },
        "cpu": job.target.cpu,
    }
    if len(job.variants) == 1:
        about["weight_names"] = weight_names(job.variants[0])
    elif job.variants:
        about["variants"] = [variant_metadata(each, sources) for each in job.variants]
        about["shared_memory_bytes"] = job.shared_bytes
        about["batch"] = None if job.batch is None else job.batch.report()
    return about


def _of_shape(job: Compilation, sources: Sequence[str]) -> JsonObject:
    """What one shape of a module is made of, the bodies of loops included."""
    all_parts = list(with_bodies(job))
    schedules = {n: choice for each in all_parts for n, choice in each.schedules.items()}
    return {
        "inputs": job.model.inputs,
        "outputs": job.model.outputs,
        "call_checks": list(map(asdict, job.model.call_checks)),
        "kernels": [
            kernel
            for kernel in kernel_names(sources, schedules)
            if not job.is_part or kernel["function"] in schedules
        ],
        "schedules": {name: choice.report() for name, choice in schedules.items()},
        "nodes": {name: nodes for each in all_parts for name, nodes in each.nodes.items()},
        "fusion_left": [left for each in all_parts for left in fusion_left(each.unscheduled)],
        "algorithms": [choice.report() for each in all_parts for choice in each.choices],
        "settled_storage": job.storage_origin,
        "placements": [place.report() for each in all_parts for place in each.placements],
        "memory": together([each.memory for each in all_parts]).report(),
        **({"loops": [each.loop for each in all_parts[1:]]} if job.bodies else {}),
    }


def variant_metadata(job: Compilation, sources: Sequence[str]) -> JsonObject:
    """What one of several shapes says instead of the whole module."""
    return {
        "entry": job.entry,
        "weight_names": weight_names(job),
        "half_sums": job.half_sums,
        **_of_shape(job, sources),
    }


def extensions(sources: Iterable[str]) -> list[str]:
    """OpenCL extensions that the kernels need of the device.

    TVM asks for ``cl_khr_fp16`` in the source of kernels that compute with ``half``, and for
    ``cl_khr_fp64`` where they have ``double``.
    """
    text = "".join(sources)
    return [name for name in (FP16_EXTENSION, FP64_EXTENSION) if name in text]


#: Definitions (not declarations) of kernels in OpenCL C, with their attributes, and CUDA C++.
_KERNEL = re.compile(
    r"(?:(?:__attribute__\(\(.*\)\)\n)?__kernel void|__global__ void(?: __\w+\([^)]*\))?)"
    r" (\w+)\([^;{]*\{"
)


def kernel_texts(sources: Iterable[str]) -> dict[str, str]:
    """Kernels in generated source by name, each from its attributes or head to its last brace."""
    found = {}
    for source in sources:
        for head in _KERNEL.finditer(source):
            end = source.find("\n}", head.end())
            found[head[1]] = source[head.start() : end + 2 if end >= 0 else None]
    return found


def kernel_names(sources: Iterable[str], choices: Mapping[str, Scheduled]) -> list[dict[str, str]]:
    """Kernels in generated source with the primary function and schedule family of each.

    TVM names the kernels of a function ``f_kernel``, ``f_kernel_1`` and so on; on
    a CPU a primary function is one "kernel" of its own name.
    """
    names = [name for source in sources for name in _KERNEL.findall(source)]
    kernels = []
    for name in names or choices:
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        family = choices[function].family if function in choices else ""
        kernels.append({"name": name, "function": function, "family": family})
    return kernels
