"""Measuring a module: its first call, its calls, its kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...compiler.generate import kernel_texts
from ...devices.target import resolve
from ...errors import InputError
from ...module.bench import benchmark
from ...module.kernel_time import KernelTime
from ...module.module import Module, load
from ...module.samples import random_inputs
from ...module.standalone.loaded import StandaloneModule
from ...runtime.timing import Spread
from ..analysis.report import found_in, fusion_in
from .record import (
    Ceilings,
    DeviceFacts,
    Finding,
    FirstCall,
    KernelLaunch,
    MemoryStep,
    ModuleFacts,
    Profile,
)
from .roofline import above, rated

if TYPE_CHECKING:
    from ...runtime.devices import DeviceInfo
    from .counting import Count

#: Runs that are measured unless the caller says otherwise.
DEFAULT_RUNS = 20


def profile(
    module: Module | str | os.PathLike[str],
    inputs: Mapping[str, Any] | None = None,
    *,
    runs: int = DEFAULT_RUNS,
    seed: int = 0,
    device: int = 0,
    fresh_ceilings: bool = False,
    analyse: bool = True,
) -> Profile:
    """Measure where a network's time goes.

    Parameters
    ----------
    module
        A module that has not run yet (else its first call is none), or a module file.
    inputs
        Values by name, default random ones.
    runs
        How many calls are measured, as a whole and kernel by kernel.
    seed
        Seeds the random inputs.
    device
        Index of the device, for a module file.
    fresh_ceilings
        Whether the device's ceilings are measured although they are known.
    analyse
        Whether kernels are analysed, too (:mod:`tvmflow.explain.analysis`), which takes up to
        :data:`~tvmflow.explain.analysis.report.BUDGET_S` seconds or a little more.

    Returns
    -------
    Profile
        Times in µs and ms, rates in 10⁹ operations or bytes a second.

    Raises
    ------
    ArtifactError
        If the module is damaged, or for another machine.
    DeviceError
        If there is no device, or it does not report times.
    InputError
        If an input or the number of runs does not fit.

    Examples
    --------
    >>> profile = tvmflow.profile("mobilenet_v2.so")
    >>> max(profile.kernels, key=lambda kernel: kernel.median_us).nodes
    ('head/Conv', 'head/Clip')
    """
    from ...module.functions import tir_text

    if not isinstance(module, Module):
        closed = load(module, device=device)
        try:
            return profile(
                closed,
                inputs,
                runs=runs,
                seed=seed,
                fresh_ceilings=fresh_ceilings,
                analyse=analyse,
            )
        finally:
            closed.close()
    if runs < 1:
        raise InputError(f"Measuring {runs} runs is not possible.", remedy="Give at least one run.")
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    timing = benchmark(module, values, runs=runs, warmup=2)
    times = module.profile(values, runs=runs)
    upload_ms = module.upload_ms
    notes: list[str] = []
    device_facts, info = _device_of(module)
    ceilings = _ceilings(module.target, info, fresh_ceilings, notes)
    meta = module.metadata
    # A network may launch nothing, as one that reshapes its input.
    functions = _functions(module, notes) if times else {}
    counts = _counts(functions, module.target, notes)
    kernels = _kernels(times, meta, counts, ceilings)
    if ceilings is not None and above(kernels, ceilings) and not fresh_ceilings:
        # The device was busy when they were measured, and they were kept.
        ceilings = _ceilings(module.target, info, True, notes)
        kernels = _kernels(times, meta, counts, ceilings)
    if ceilings is not None and (fast := above(kernels, ceilings)):
        notes.append(
            f"{len(fast)} of {len(kernels)} launches compute faster than the device's ceiling: it "
            "was busy when that was measured. Measure it again, with `fresh_ceilings`."
        )
    found: tuple[Finding, ...] = ()
    if functions and not analyse:
        notes.append("Kernels were not analysed: findings were not asked for.")
    elif functions:
        target = resolve(module.target, str(meta["device"]))
        found = fusion_in(meta.get("fusion_left", ()), kernels, functions)
        found += found_in(functions, kernels, target, notes)
    made = Profile(
        module=ModuleFacts(
            path=str(module.path),
            name=str(meta.get("name", module.path.stem)),
            target=module.target,
            device=str(meta.get("device", "")),
            versions={k: str(meta[k]) for k in ("tvmflow", "tvm", "tvm_ffi") if k in meta},
        ),
        device=device_facts,
        ceilings=ceilings,
        first_call=FirstCall(
            load_ms=max(0.0, timing.load_ms - (upload_ms or 0.0)),
            build_ms=max(0.0, timing.first_ms - timing.median_ms),
            upload_ms=upload_ms,
            run_ms=timing.median_ms,
        ),
        runs=timing.runs,
        whole=Spread(timing.median_ms, timing.p10_ms, timing.p90_ms),
        weights_bytes=_weights_bytes(module),
        memory=_memory(meta),
        kernels=tuple(kernels),
        findings=found,
        tir={name: tir_text(function) for name, function in functions.items()},
        sources=kernel_texts(module.device_sources()),
    )
    if made.explained_ms > made.whole.p90_ms:
        notes.append(
            f"Runs whose kernels were measured took {made.explained_ms:.2f} ms, calls "
            f"{made.whole.median_ms:.2f} ms: the machine had something else to do, or its kernels "
            "are too short to be measured one by one. What is the host's is not known."
        )
    return replace(made, notes=tuple(notes))


def _kernels(
    times: Sequence[KernelTime],
    metadata: Mapping[str, Any],
    counts: Mapping[str, list[Count] | None],
    ceilings: Ceilings | None,
) -> list[KernelLaunch]:
    from .attribution import count_at, places

    schedules = metadata.get("schedules", {})
    kernels = []
    start_us = 0.0
    for time, place in zip(times, places([t.kernel for t in times], metadata), strict=True):
        count = count_at(place, time.kernel, counts.get(place.function))
        schedule = schedules.get(place.function, {})
        kernel = KernelLaunch(
            name=time.kernel,
            function=place.function,
            nodes=place.nodes,
            family=str(schedule.get("family", "")),
            knobs=dict(schedule.get("knobs", {})),
            global_size=time.global_size,
            local_size=time.local_size,
            clock=time.clock,
            start_us=start_us + time.gap_us,
            median_us=time.median_us,
            p10_us=time.p10_us,
            p90_us=time.p90_us,
            flops=None if count is None else sum(count.flops.values()),
            bytes_read=None if count is None else count.bytes_read,
            bytes_written=None if count is None else count.bytes_written,
            arithmetic="fp32" if count is None else count.arithmetic,
            memory="texture" if count is not None and count.reads_texture else "copy",
        )
        kernels.append(rated(kernel, ceilings))
        start_us = kernel.start_us + kernel.median_us
    return kernels


def _device_of(module: Module) -> tuple[DeviceFacts, DeviceInfo | None]:
    """The device, and what TVM's runtime knows of it."""
    from ...runtime.devices import cuda_devices, host_device, opencl_devices

    if isinstance(module, StandaloneModule):
        # It looks for devices by itself, and may count them otherwise.
        about = module.describe()["device"]
        facts = DeviceFacts(about["name"], about["driver"], about["version"])
        known = (i for i in opencl_devices() if (i.name, i.driver) == (facts.name, facts.driver))
        return facts, next(known, None)
    if module.target == "llvm":
        info = host_device()
    else:
        devices = opencl_devices() if module.target == "opencl" else cuda_devices()
        info = devices[module.device_index]
    return DeviceFacts(info.name, info.driver, info.version), info


def _ceilings(
    target: str, info: DeviceInfo | None, fresh: bool, notes: list[str]
) -> Ceilings | None:
    from ...errors import DeviceError
    from .ceilings import ceilings

    if info is None:
        notes.append("The device's ceilings could not be measured: TVM's runtime does not find it.")
        return None
    try:
        return ceilings(target, info, fresh=fresh)
    except DeviceError as error:
        notes.append(f"The device's ceilings could not be measured: {error.message}")
        return None


def _functions(module: Module, notes: list[str]) -> dict[str, Any]:
    """The scheduled primary functions that a module carries, by name."""
    from ...module.functions import unpack_functions

    if isinstance(module, StandaloneModule):
        notes.append(
            "Operations, bytes and nodes are not known: a standalone library does not carry them. "
            "Profile the module that `tvmflow compile` writes without `format=standalone`; its "
            "kernels are the same. The library builds its kernels while it is loaded."
        )
        return {}
    content = module.read_functions()
    if content is None:
        notes.append(
            "Operations and bytes are not known: the module carries no scheduled functions, as "
            "modules of older versions do not."
        )
        return {}
    return unpack_functions(content)


def _counts(
    functions: Mapping[str, Any], target: str, notes: list[str]
) -> dict[str, list[Count] | None]:
    """What each primary function computes and moves, kernel by kernel."""
    from .counting import count_kernels

    on_gpu = target != "llvm"
    counts = {name: count_kernels(f, on_gpu=on_gpu) for name, f in functions.items()}
    if unknown := sorted(name for name, count in counts.items() if count is None):
        notes.append(
            f"Operations of {', '.join(unknown)} are not known: how often loops run depends on "
            "the values, or a library computes them."
        )
    return counts


def _weights_bytes(module: Module) -> int:
    if isinstance(module, StandaloneModule):
        return int(module.describe()["memory"]["weight_bytes"])
    weights = module.metadata.get("weights", ())
    return sum(int(weight.get("bytes", 0)) for weight in weights if isinstance(weight, Mapping))


def _memory(metadata: Mapping[str, Any]) -> tuple[MemoryStep, ...]:
    """What intermediate tensors occupy at each call."""
    plan = metadata.get("memory")
    if not isinstance(plan, Mapping) or "steps" not in plan:
        return ()
    return tuple(
        MemoryStep(
            step,
            function,
            sum(t["bytes"] for t in plan["tensors"] if t["first"] <= step <= t["last"]),
        )
        for step, function in enumerate(plan["steps"])
    )
