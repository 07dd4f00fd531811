"""Profile a module: its first call, its calls and its kernels."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from tvm import tirx

from ...compiler.metadata import kernel_texts
from ...devices.device_file import DeviceFile
from ...devices.target import resolve
from ...errors import InputError
from ...ir.units import counted
from ...module.bench import TimesItself, benchmark
from ...module.functions import functions_of_shape, tir_text
from ...module.kernel_time import KernelTime
from ...module.load import OtherMachine, load
from ...module.module import Module
from ...module.samples import random_inputs
from ...module.setting import device_of
from ...module.standalone.loaded import StandaloneModule
from ...runtime.devices import DeviceInfo
from ...runtime.json_types import JsonMapping
from ...runtime.load import Watch, disturbance, is_disturbed
from ...runtime.timing import Spread
from ..analysis.report import launch_findings, missed_fusion_findings
from ..yardstick.measured import Operator, yardstick_of
from ..yardstick.operators import operators_of
from .ceilings import above, ceilings_above, rated
from .counting import Work, count_kernels
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

#: Default number of measured runs.
DEFAULT_RUNS = 20
#: Share of a call outside its kernels above which there is a finding.
_MOST_OUTSIDE = 0.5
#: Measured fields of a launch.
_TIMED = ("global_size", "local_size", "clock", "median_us", "p10_us", "p90_us")


def profile(
    module: Module | str | os.PathLike[str],
    inputs: JsonMapping | None = None,
    *,
    runs: int = DEFAULT_RUNS,
    seed: int = 0,
    device: int | OtherMachine = 0,
    fresh_ceilings: bool = False,
    analyse: bool = True,
    busy: bool = False,
    functions_of: Module | None = None,
    device_file: DeviceFile | None = None,
    yardstick: bool = False,
) -> Profile:
    """Measure where a network's time goes.

    Parameters
    ----------
    module
        A module that has not run yet (or its first call is not a first one), or a module file.
    inputs
        Values by name, default random ones.
    runs
        How many calls are measured, as a whole and kernel by kernel.
    seed
        Seeds the random inputs.
    device
        Device for a module file, as for `tvmflow.load`.
    fresh_ceilings
        Measure the device's ceilings even if they are known.
    busy
        Draw conclusions (findings, bounds of kernels) even if other programs took more than a
        tenth of the processors (:data:`~tvmflow.runtime.load.QUIET`) meanwhile.
    analyse
        Analyse kernels, too (:mod:`tvmflow.explain.analysis`), which takes up to
        :data:`~tvmflow.explain.analysis.report.BUDGET_S` seconds or a little more.
    functions_of
        A module for TVM's runtime of the same network and options as a standalone library, which
        carries no functions: operations, bytes and nodes are counted in this one.
    device_file
        Facts about the device of another machine, with the rates that its ceilings are.
    yardstick
        Add another engine's times for each layer, from :mod:`tvmflow.explain.yardstick`.

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
    if not isinstance(module, Module):
        options: dict[str, Any] = {"fresh_ceilings": fresh_ceilings, "analyse": analyse}
        options |= {"busy": busy, "functions_of": functions_of, "device_file": device_file}
        options["yardstick"] = yardstick
        with closing(load(module, device=device)) as opened:
            return profile(opened, inputs, runs=runs, seed=seed, **options)
    if runs < 1:
        raise InputError(f"Measuring {runs} runs is not possible.", remedy="Give at least one run.")
    values = dict(inputs) if inputs is not None else random_inputs(module, seed)
    watch = Watch()
    is_elsewhere = isinstance(module, TimesItself)
    if isinstance(module, TimesItself):
        timing = module.time_calls(values, runs=runs, warmup=2)
    else:
        timing = benchmark(module, values, runs=runs, warmup=2)
    times = module.profile(values, runs=runs)
    # Other programs of this machine do not disturb another one.
    share = None if is_elsewhere else watch.others_share()
    upload_ms = module.upload_ms
    notes: list[str] = []
    device_facts, info = _device_facts(module)
    if isinstance(module, TimesItself):
        notes += module.remarks()
    # Programs on the host's processors delay a GPU's calls, but not its kernels.
    hold_calls = is_disturbed(share) and not busy
    hold_kernels = hold_calls and (info is None or info.device_type == "cpu")
    source = functions_of or module
    meta = source.metadata
    # A network that only reshapes its input, for example, launches nothing.
    functions = _functions(source, notes) if times else {}
    if functions_of is not None:
        _check_same(times, functions_of)
    work = _work_of_functions(functions, module.target, notes)
    kernels = [rated(kernel, None) for kernel in _kernels(times, meta, work)]
    if yardstick:
        kernels = with_yardsticks(kernels, operators_of(meta, functions))
    ceilings: Ceilings | None = None
    if is_elsewhere:
        ceilings = None if device_file is None else Ceilings.of_device(device_file)
        kernels = [rated(kernel, ceilings) for kernel in kernels]
        if ceilings is None:
            notes.insert(
                0,
                "The device's ceilings are not known: measure them with `tvmflow probe`, and give "
                "its file as `device`.",
            )
    elif info is None:
        note = "The device's ceilings could not be measured: TVM's runtime does not find it."
        notes.insert(0, note)
    else:
        ceilings = ceilings_above(
            module.target,
            info,
            lambda found: bool(above(kernels, found)),
            fresh=fresh_ceilings,
            report=lambda note: notes.insert(0, note),
        )
        kernels = [rated(kernel, ceilings) for kernel in kernels]
    if ceilings is not None and (fast := above(kernels, ceilings)):
        again = "with `tvmflow probe`" if is_elsewhere else "with `fresh_ceilings`"
        notes.append(
            f"{len(fast)} of {len(kernels)} launches compute faster than the device's ceiling: it "
            f"was busy when that was measured. Measure it again, {again}."
        )
    found: tuple[Finding, ...] = ()
    if hold_kernels:
        kernels = [replace(kernel, bound=None) for kernel in kernels]
    elif functions and not analyse:
        notes.append("Kernels were not analysed: findings were not asked for.")
    elif functions:
        target = resolve(module.target, str(meta["device"]))
        found = missed_fusion_findings(meta.get("fusion_left", ()), kernels, functions)
        found += launch_findings(functions, kernels, target, notes)
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
        weights_bytes=weights_bytes(module),
        memory=_memory(meta),
        kernels=tuple(kernels),
        findings=found,
        tir={name: tir_text(function) for name, function in functions.items()},
        sources=kernel_texts(module.device_sources()),
        others_share=share,
    )
    if hold_calls:
        what = "Findings" if hold_kernels else "Findings about the host's part"
        notes.insert(0, f"{disturbance(share)} {what} are held back; `busy` gives them.")
    elif (said := disturbance(share)) is not None:
        notes.insert(0, said)
    if analyse and not hold_calls and (hosts := host_finding(made)) is not None:
        made = replace(made, findings=(hosts, *found))
    if made.explained_ms > made.whole.p90_ms:
        notes.append(
            f"Runs whose kernels were measured took {made.explained_ms:.2f} ms, calls "
            f"{made.whole.median_ms:.2f} ms: the machine had something else to do, or its kernels "
            "are too short to be measured one by one. The host's part is not known."
        )
    return replace(made, notes=tuple(notes))


def host_finding(profile: Profile) -> Finding | None:
    """Return a finding if more than half of a call is outside its kernels, else ``None``.

    The finding is about the whole call (``kernel`` is empty).  Launches, gaps between kernels and
    copies of inputs and outputs are outside kernels.
    """
    call_ms, launches = profile.whole.median_ms, len(profile.kernels)
    outside_ms = call_ms - profile.kernels_ms
    if not launches or outside_ms <= _MOST_OUTSIDE * call_ms:
        return None
    share, outside_us = outside_ms / call_ms, 1e3 * outside_ms
    sentence = (
        f"{counted(launches, 'launch', 'launches')} compute for {1e3 * profile.kernels_ms:,.1f} µs "
        f"of a call of {1e3 * call_ms:,.1f} µs. The other {share:.0%} go to launching, to waiting "
        f"between kernels and to copies of inputs and outputs: {outside_us / launches:,.1f} µs a "
        "launch."
    )
    # A CUDA graph launches all kernels at once; no other target has graphs.
    graph = "compile with `cuda_graph`; " if profile.module.target == "cuda" else ""
    return Finding(
        kernel="",
        kind="host",
        access="",
        line=0,
        cost={"µs": outside_us},
        share=share,
        sentence=sentence,
        remedy=(
            f"Launch less for each sample: {graph}make the batch larger (`tvmflow bench --scaling` "
            "shows what that brings); fuse what findings of the kind fusion name."
        ),
    )


@dataclass(frozen=True)
class LaunchOrigin:
    """Call of a primary function that a launch belongs to."""

    function: str
    #: Number of the kernel within the function; ``None`` if all are measured as one.
    number: int | None
    #: Names of ONNX nodes.
    nodes: tuple[str, ...]


def launch_origins(names: Sequence[str], metadata: JsonMapping) -> list[LaunchOrigin]:
    """Find the call that each launch of a run belongs to, using a module's metadata.

    The names are those of kernels, or of primary functions on targets that measure whole functions.
    With loops the call of a function is unknown, so each launch gets the nodes of all calls.
    """
    kernels = {k["name"]: k["function"] for k in metadata.get("kernels", ())}
    functions = [kernels.get(name, name) for name in names]
    memory, nodes_of = metadata.get("memory", {}), metadata.get("nodes", {})
    calls = Counter(memory.get("steps", ()))
    # Nodes of the tensors that each function writes, in the order of its calls.
    written: defaultdict[str, list[list[str]]] = defaultdict(list)
    for tensor in memory.get("tensors", ()):
        written[tensor["producer"]].append(nodes_of.get(tensor["name"], []))
    launches = Counter(functions)
    seen: Counter[str] = Counter()
    found = []
    for name, function in zip(names, functions, strict=True):
        # Each call of a function launches the same kernels and writes the same tensors.
        call = calls[function] * seen[function] // launches[function]
        own = written[function]
        tensors = len(own) // calls[function] if calls[function] else 0
        mine = own if metadata.get("loops") else own[call * tensors : (call + 1) * tensors]
        nodes = [n for names in mine for n in names]
        seen[function] += 1
        # `f_kernel` is a function's first kernel, `f_kernel_1` its second.
        later = re.search(r"_kernel_(\d+)$", name)
        number = (int(later[1]) if later else 0) if name in kernels else None
        found.append(LaunchOrigin(function, number, tuple(dict.fromkeys(nodes))))
    return found


def work_of(origin: LaunchOrigin, name: str, counts: Sequence[Work] | None) -> Work | None:
    """Return the work of a launch, given the work of its function's kernels."""
    if counts is None:
        return None
    if origin.number is not None and name != origin.function:
        return counts[origin.number] if origin.number < len(counts) else None
    flops = sum((count.flops for count in counts), Counter[str]())
    read, written = sum(c.bytes_read for c in counts), sum(c.bytes_written for c in counts)
    return Work(flops, read, written, any(count.reads_texture for count in counts))


def _kernels(
    times: Sequence[KernelTime], metadata: JsonMapping, counts: Mapping[str, list[Work] | None]
) -> list[KernelLaunch]:
    schedules = metadata.get("schedules", {})
    kernels = []
    start_us = 0.0
    origins = launch_origins([time.kernel for time in times], metadata)
    for time, origin in zip(times, origins, strict=True):
        work = work_of(origin, time.kernel, counts.get(origin.function))
        schedule = schedules.get(origin.function, {})
        kernel = KernelLaunch(
            name=time.kernel,
            function=origin.function,
            nodes=origin.nodes,
            family=str(schedule.get("family", "")),
            knobs=dict(schedule.get("knobs", {})),
            start_us=start_us + time.gap_us,
            **{name: getattr(time, name) for name in _TIMED},
            flops=None if work is None else sum(work.flops.values()),
            bytes_read=None if work is None else work.bytes_read,
            bytes_written=None if work is None else work.bytes_written,
            arithmetic="fp32" if work is None else work.arithmetic,
            memory="texture" if work is not None and work.reads_texture else "copy",
        )
        kernels.append(kernel)
        start_us = kernel.start_us + kernel.median_us
    return kernels


def with_yardsticks(
    kernels: Sequence[KernelLaunch], operators: Mapping[str, Operator]
) -> list[KernelLaunch]:
    """Add another engine's times to the launches whose functions have a known operator.

    A function's further launches belong to the same layer, as do neighbours that compute a part of
    the same ONNX node, such as Winograd's transforms.
    """
    found = list(kernels)
    for index, kernel in enumerate(kernels):
        operator = operators.get(kernel.function)
        call = kernel.function, kernel.nodes
        is_first = index == 0 or (kernels[index - 1].function, kernels[index - 1].nodes) != call
        if operator is not None and is_first and (known := yardstick_of(operator)) is not None:
            known = replace(known, own_us=_layer_us(kernels, index))
            found[index] = replace(kernel, yardstick=known)
    return found


def _layer_us(kernels: Sequence[KernelLaunch], index: int) -> float:
    """Return the time of a launch and the neighbours that share ONNX nodes with it."""
    nodes = set(kernels[index].nodes)
    total = kernels[index].median_us
    for neighbours in (kernels[index + 1 :], kernels[:index][::-1]):
        for kernel in takewhile(lambda each: nodes & set(each.nodes), neighbours):
            total += kernel.median_us
    return total


def _device_facts(module: Module) -> tuple[DeviceFacts, DeviceInfo | None]:
    """Return the device's facts, and its entry in TVM's runtime if there is one."""
    info = None if isinstance(module, TimesItself) else device_of(module)
    if isinstance(module, StandaloneModule):
        about = module.describe()["device"]
        return DeviceFacts(about["name"], about["driver"], about["version"]), info
    assert info is not None
    return DeviceFacts(info.name, info.driver, info.version), info


def _check_same(times: Sequence[KernelTime], functions_of: Module) -> None:
    """Raise `InputError` if launches are not those of a module's functions."""
    known = {kernel["name"] for kernel in functions_of.metadata.get("kernels", ())}
    known |= {kernel["function"] for kernel in functions_of.metadata.get("kernels", ())}
    if missing := sorted({time.kernel for time in times} - known):
        raise InputError(
            f"Profiling failed: {functions_of.path} has no kernel {missing[0]!r}, which was "
            "measured.",
            remedy="Give the module of the same network, compiled with the same options.",
        )


def _functions(module: Module, notes: list[str]) -> dict[str, tirx.PrimFunc]:
    """Return the scheduled primary functions that a module carries, by name."""
    if isinstance(module, StandaloneModule):
        notes.append(
            "Operations, bytes and nodes are not known: a standalone library does not carry them. "
            "Profile the module that `tvmflow compile` writes without `format=standalone`; its "
            "kernels are the same. The library builds its kernels while it is loaded."
        )
    return functions_of_shape(module.read_functions(), module.metadata)


def _work_of_functions(
    functions: Mapping[str, tirx.PrimFunc], target: str, notes: list[str]
) -> dict[str, list[Work] | None]:
    """Count the work of each primary function, kernel by kernel."""
    on_gpu = target != "llvm"
    counts = {name: count_kernels(f, on_gpu=on_gpu) for name, f in functions.items()}
    if unknown := sorted(name for name, count in counts.items() if count is None):
        notes.append(
            f"Operations of {', '.join(unknown)} are not known: how often loops run depends on "
            "the values, or a library computes them."
        )
    return counts


def weights_bytes(module: Module) -> int:
    """Return the bytes of a module's weights on the device."""
    if isinstance(module, StandaloneModule):
        return int(module.describe()["memory"]["weight_bytes"])
    return sum(int(weight["bytes"]) for weight in module.metadata["weights"])


def _memory(metadata: JsonMapping) -> tuple[MemoryStep, ...]:
    """Return the memory of intermediate tensors at each call."""
    plan = metadata.get("memory")
    if plan is None:
        return ()
    steps = []
    for step, name in enumerate(plan["steps"]):
        live = (t["bytes"] for t in plan["tensors"] if t["first"] <= step <= t["last"])
        steps.append(MemoryStep(step, name, sum(live)))
    return tuple(steps)
