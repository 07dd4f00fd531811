"""Metadata of a compiled module: its interface, options, kernels, schedules and memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from ..graph.memory import merged_plan
from ..graph.missed_fusion import fusion_left
from ..module.functions import sources_in
from ..runtime.devices import FP16_EXTENSION, FP64_EXTENSION
from ..runtime.json_types import JsonObject
from ..schedules import Scheduled
from .compilation import Compilation
from .loops import weight_names, with_bodies
from .shapes import parts


def common_metadata(job: Compilation) -> JsonObject:
    """Return the metadata that modules of all formats have."""
    return {
        "name": job.model.name,
        "target": job.target.kind,
        "device": job.target.device.name,
        "half_sums": job.half_sums,
        "options": job.options.to_json(),
        "stage_ms": job.times.milliseconds(),
        **({"limits": list(map(asdict, job.model.limits))} if job.model.limits else {}),
    }


def module_metadata(job: Compilation) -> JsonObject:
    """Return the metadata of a module for TVM's virtual machine."""
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
        about["variants"] = [_of_variant(each, sources) for each in job.variants]
        about["shared_memory_bytes"] = job.shared_bytes
        about["batch"] = None if job.batch is None else job.batch.report()
    return about


def _of_shape(job: Compilation, sources: Sequence[str]) -> JsonObject:
    """Return the metadata of one shape of a module, including its loops' bodies."""
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
        "memory": merged_plan([each.memory for each in all_parts]).report(),
        **({"loops": [each.loop for each in all_parts[1:]]} if job.bodies else {}),
    }


def _of_variant(job: Compilation, sources: Sequence[str]) -> JsonObject:
    """Return the metadata of one of several shapes of a module."""
    return {
        "entry": job.entry,
        "weight_names": weight_names(job),
        "half_sums": job.half_sums,
        **_of_shape(job, sources),
    }


def extensions(sources: Iterable[str]) -> list[str]:
    """Return the OpenCL extensions that kernels need.

    TVM enables ``cl_khr_fp16`` in the source of kernels that compute with ``half``, and
    ``cl_khr_fp64`` in those with ``double``.
    """
    text = "".join(sources)
    return [name for name in (FP16_EXTENSION, FP64_EXTENSION) if name in text]


#: Pattern of kernel definitions (not declarations) in OpenCL C, with attributes, and CUDA C++.
_KERNEL = re.compile(
    r"(?:(?:__attribute__\(\(.*\)\)\n)?__kernel void|__global__ void(?: __\w+\([^)]*\))?)"
    r" (\w+)\([^;{]*\{"
)


def kernel_texts(sources: Iterable[str]) -> dict[str, str]:
    """Return the text of each kernel in generated source, by the kernel's name."""
    found = {}
    for source in sources:
        for head in _KERNEL.finditer(source):
            end = source.find("\n}", head.end())
            found[head[1]] = source[head.start() : end + 2 if end >= 0 else None]
    return found


def kernel_names(sources: Iterable[str], choices: Mapping[str, Scheduled]) -> list[dict[str, str]]:
    """Return the kernels in generated source, with the function and schedule family of each.

    TVM names the kernels of a function ``f_kernel``, ``f_kernel_1`` and so on; on
    a CPU a primary function is one "kernel" with the function's name.
    """
    names = [name for source in sources for name in _KERNEL.findall(source)]
    kernels = []
    for name in names or choices:
        function = re.sub(r"_kernel(_\d+)?$", "", name)
        family = choices[function].family if function in choices else ""
        kernels.append({"name": name, "function": function, "family": family})
    return kernels
