"""Ceilings of a device, measured once and cached, and the roofline of its kernels.

They are measured with kernels that do one thing only: copy, read texels, multiply and add, or
nothing.  Each kernel uses wide vectors, enough independent sums to hide an instruction's latency,
and enough work-items for all units of the device.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from ...codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from ...codegen.tir_pipeline import TIR_PIPELINE
from ...devices.target import TargetSpec, preset_of, resolve
from ...errors import DeviceError, TvmflowError
from ...ir.dot_products import dot
from ...ir.scope import CHANNELS, PREFIX
from ...ir.signatures import with_scopes
from ...module.files import write_file
from ...runtime.caches import user_cache
from ...runtime.devices import FP16_EXTENSION, DeviceInfo
from ...runtime.load import Watch, others_now
from ...runtime.regular_files import read_text
from ...runtime.timing import elapsed_ms, repeat
from .caches import Cache, cpu_caches
from .counting import Work, count_kernels
from .reading import typed
from .record import CacheCeiling, Ceilings, KernelLaunch

logger = logging.getLogger(__name__)

#: Version of the measuring kernels; ceilings that another version found are measured again.
_VERSION = 1
#: Best of at least seven runs and half a second: other programs only slow a kernel down, and a
#: process that holds a core keeps it for longer than a few runs.
_times = partial(repeat, least=7, seconds=0.5)
#: Launches in a queue.
_LAUNCHES = 500
#: Instructions of each sum.
_STEPS = 2000
#: Elements of a copied buffer: 64 MiB in fp32, more than caches hold.
COPIED = 1 << 24
#: Bytes that a kernel moves in a cache: enough to make the launch negligible.
_CACHED_BYTES = 1 << 28
#: Work-groups for each compute unit of a GPU, which hide the latency of reads from its cache.
_GROUPS = 4
#: Memory scope of the image whose texels are read.
TEXTURE = f"{PREFIX}:1.2"
#: Independent vectors of a work-item: enough for a latency of four cycles on two units.
CHAINS = 12
#: A kernel that takes less time than this many empty launches is bound by launching.
LAUNCHES = 2.0
#: A kernel that reaches this share of a ceiling is bound by that ceiling.
BUSY = 0.4
#: Names of the ceilings for which higher is better.
_RATES = ("copy_gbps", "texture_gbps", "fp32_gflops", "fp16_gflops", "int8_gops")
#: A rate that exceeds a ceiling by less than this factor counts as at the ceiling.
_NOISE = 1.1


def ceilings(target: str, info: DeviceInfo, *, fresh: bool = False) -> Ceilings:
    """Return a device's ceilings from the cache folder, or measure them, which takes seconds.

    The target is ``opencl``, ``cuda`` or ``llvm``; ``fresh`` measures even if the cache has some.
    Ceilings that other programs disturbed (`Ceilings.were_disturbed`) are measured again once the
    machine is quieter, and the better of both values is kept.  `DeviceError` if the device refuses
    a kernel.
    """
    path = _cache_path(info)
    kept: Ceilings | None = None
    if path is not None and not fresh:
        with suppress(OSError, ValueError):
            kept = typed(Ceilings, json.loads(read_text(path)))
    if kept is not None and not (kept.were_disturbed and _is_quieter_than(kept)):
        return kept
    found = _Device(target, info).measure()
    if kept is not None:
        found = better(found, kept)
    if path is not None:
        # If the cache cannot be written, the ceilings are measured every time.
        with suppress(OSError, TvmflowError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, json.dumps(dataclasses.asdict(found)))
    return found


def _is_quieter_than(kept: Ceilings) -> bool:
    """Return whether other programs use less than half of what they used at the measurement."""
    share = others_now()
    return share is not None and kept.others_share is not None and share < kept.others_share / 2


def better(new: Ceilings, old: Ceilings) -> Ceilings:
    """Return the better value of each ceiling, with the date and the load of the new ones.

    Other programs can only make a ceiling look worse than it is.
    """

    def best(name: str) -> float | None:
        known = [rate for rate in (getattr(new, name), getattr(old, name)) if rate is not None]
        return max(known, default=None)

    rates: dict[str, Any] = {name: best(name) for name in _RATES}
    known = {cache.name: cache.gbps for cache in old.caches}
    rates["caches"] = tuple(
        replace(cache, gbps=max(cache.gbps, known.get(cache.name, 0.0))) for cache in new.caches
    )
    return replace(new, launch_us=min(new.launch_us, old.launch_us), **rates)


def _cache_path(info: DeviceInfo) -> Path | None:
    """Return the cache file for a device, driver and number of threads; ``None`` without cache."""
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    facts = (info.kind, info.platform, info.name, info.driver, info.version, _threads(info))
    digest = hashlib.sha256(repr((_VERSION, *facts)).encode()).hexdigest()[:24]
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache(), "ceilings", f"{digest}.json")


def _threads(info: DeviceInfo) -> int:
    """Return the device's compute units; for ``llvm`` the number of TVM's threads."""
    return tvm.runtime.num_threads() if info.kind == "llvm" else max(1, info.compute_units)


def ceilings_above(
    target: str,
    info: DeviceInfo,
    exceeds: Callable[[Ceilings], bool],
    *,
    fresh: bool,
    report: Callable[[str], object],
) -> Ceilings | None:
    """Return a device's ceilings; measure them again if ``exceeds`` is true for the cached ones.

    In that case the device was busy when they were measured.  ``None`` if the device refuses a
    kernel; ``report`` gets the reason.
    """
    try:
        found = ceilings(target, info, fresh=fresh)
        return ceilings(target, info, fresh=True) if not fresh and exceeds(found) else found
    except DeviceError as error:
        report(f"The device's ceilings could not be measured: {error.message}")
        return None


def target_of(kind: str, info: DeviceInfo) -> TargetSpec:
    """Return the target with the preset of the running device."""
    return TargetSpec("opencl", preset_of(info), None) if kind == "opencl" else resolve(kind)


class _Device:
    """A device to be measured."""

    def __init__(self, kind: str, info: DeviceInfo):
        self.kind = kind
        self.info = info
        self.target = target_of(kind, info)
        self.device = tvm.device("cpu" if kind == "llvm" else kind, info.index)

    def measure(self) -> Ceilings:
        """Measure all ceilings."""
        has_fp16 = self.kind == "cuda" or FP16_EXTENSION in self.info.extensions
        watch = Watch()
        found = Ceilings(
            copy_gbps=self._bytes_a_ns(copy(self.target, self._copied())),
            fp32_gflops=self._gflops("float32"),
            launch_us=self._launch_us(),
            texture_gbps=self._textures() if self.info.images else None,
            fp16_gflops=self._gflops("float16") if has_fp16 else None,
            int8_gops=self._gflops("int32"),
            caches=self._cache_ceilings(),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        return replace(found, others_share=watch.others_share())

    def _caches(self) -> list[Cache]:
        """Return the known caches: all of a CPU, the largest of a GPU."""
        sharing, size = self._sharing(), self.info.global_cache_bytes
        if self.info.device_type == "cpu":
            return cpu_caches(sharing)
        name = "L2" if self.kind == "cuda" else "cache"
        return [Cache(name, size // sharing, size)] if size else []

    def _sharing(self) -> int:
        """Return the number of threads, or work-groups of a GPU, that share the caches."""
        return _threads(self.info) * (1 if self.info.device_type == "cpu" else _GROUPS)

    def _copied(self) -> int:
        """Return the elements of a copy that exceeds the caches, up to an eighth of the memory."""
        largest = max((cache.capacity_bytes for cache in self._caches()), default=0)
        # Both buffers together are twice as large as the largest cache.
        allowed = min(self.info.global_memory_bytes // 8, self.info.max_allocation_bytes) // 4
        return max(COPIED, min(largest // 4, allowed))

    def _cache_ceilings(self) -> tuple[CacheCeiling, ...]:
        """Measure the rate of copies that stay in each cache.

        A cache is left out if a work-item's share is less than two vectors, which stay in
        registers, or if it is faster than the next smaller cache even after that one was measured
        again: then the measurement is not the rate of a cache.
        """
        sharing, device = self._sharing(), self.target.device
        found: list[CacheCeiling] = []
        below = smaller = 0
        for cache in self._caches():
            # More than the level below holds, but not all: other programs use the cache, too.
            size = min(cache.thread_bytes // 2, 4 * below or cache.thread_bytes)
            elements = size * sharing // (2 * 4)
            if elements < 2 * sharing * device.group_size * device.channel_block:
                continue
            gbps = self._cached_gbps(elements)
            if found and gbps > _NOISE * found[-1].gbps:
                # Other programs may have disturbed the measurement of the smaller cache.
                again = max(found[-1].gbps, self._cached_gbps(smaller))
                found[-1] = replace(found[-1], gbps=again)
                if gbps > _NOISE * again:
                    logger.info("The rate of %s is left out: it is above its limit.", cache.name)
                    continue
            found.append(CacheCeiling(cache.name, cache.capacity_bytes, gbps))
            below, smaller = cache.thread_bytes, elements
        return tuple(found)

    def _cached_gbps(self, elements: int) -> float:
        """Measure copies back and forth between two buffers of so many elements, in GB/s."""
        turns = max(1, _CACHED_BYTES // (2 * 2 * 4 * elements))
        function = shuttle(self.target, elements, self._sharing(), turns)
        # The count is of one turn: each turn reads and writes both buffers.
        return turns * self._bytes_a_ns(function)

    def _gflops(self, dtype: str) -> float:
        groups = self.info.compute_units * (64 if self.target.device.is_cpu else 32)
        items = max(1, groups) * self.target.device.group_size
        function = arithmetic(self.target, dtype, items, _STEPS)
        return sum(self._count(function).flops.values()) / self._best_ns(function)

    def _textures(self) -> float | None:
        try:
            return self._bytes_a_ns(texels(self.target), TEXTURE)
        except TvmflowError as error:
            # Some devices do not take images of this size.
            logger.info("The rate of textures could not be measured: %s", error.message)
            return None

    def _bytes_a_ns(self, function: tirx.PrimFunc, scope: str | None = None) -> float:
        count = self._count(function)
        total = count.bytes_read + (0 if scope else count.bytes_written)
        return total / self._best_ns(function, scope)

    def _count(self, function: tirx.PrimFunc) -> Work:
        counts = count_kernels(function, on_gpu=self.target.is_gpu_kernel)
        assert counts is not None
        return counts[0]

    def _launch_us(self) -> float:
        """Measure the time of an empty kernel in a queue of many."""
        module, arguments = self._prepare(nothing(self.target))
        call = module["main"]

        def launch() -> None:
            for _ in range(_LAUNCHES):
                call(*arguments)
            self.device.sync()

        self.device.sync()
        return min(_times(lambda: elapsed_ms(launch))) / _LAUNCHES * 1e3

    def _best_ns(self, function: tirx.PrimFunc, scope: str | None = None) -> float:
        module, arguments = self._prepare(function, scope)
        timer = module.time_evaluator("main", self.device, number=1, repeat=1)
        return min(_times(lambda: float(timer(*arguments).results[0]))) * 1e9

    def _prepare(
        self, function: tirx.PrimFunc, scope: str | None = None
    ) -> tuple[tvm.runtime.Module, list[tvm.runtime.Tensor]]:
        """Build a kernel and the arguments to call it with."""
        module = build(function, self.target)
        arguments = []
        for index, parameter in enumerate(function.params):
            shape = [int(extent) for extent in parameter.ty.shape]
            dtype = str(parameter.ty.dtype)
            where = scope if index == 0 else None
            tensor = tvm.runtime.empty(shape, dtype, self.device, mem_scope=where)
            # Factors below 1 prevent overflow; unwritten memory might not be backed by pages.
            tensor.copyfrom(np.full(shape, 3 if dtype == "int32" else 0.5, dtype))
            arguments.append(tensor)
        return module, arguments


def build(function: tirx.PrimFunc, target: TargetSpec) -> tvm.runtime.Module:
    """Build a module of one scheduled function, ``main``."""
    named = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    with target.tvm_target:
        return tvm.tirx.build(named, target=target.tvm_target, pipeline=TIR_PIPELINE)


# -- measuring kernels --------------------------------------------------------------------------


def copy(target: TargetSpec, elements: int = COPIED) -> tirx.PrimFunc:
    """Define a copy of a buffer of about so many elements."""
    lanes = target.device.channel_block
    items = target.device.group_size
    chunk = 64 if items == 1 else 4
    shape = (elements // (items * chunk * lanes), chunk, items, lanes)

    @T.prim_func(s_tir=True)
    def function(
        source: T.Buffer(shape, "float32"),  # type: ignore[valid-type]
        result: T.Buffer(shape, "float32"),  # type: ignore[valid-type]
    ) -> None:
        for group, item, step, lane in T.grid(shape[0], items, chunk, lanes):
            with T.sblock("result"):
                g, i, s, v = T.axis.remap("SSSS", [group, item, step, lane])
                result[g, s, i, v] = source[g, s, i, v]

    sch = s_tir.Schedule(function)
    group, item, _step, lane = sch.get_loops(sch.get_sblock("result"))
    sch.vectorize(lane)
    _spread(sch, target, group, item)
    return sch.mod["main"]


def shuttle(target: TargetSpec, elements: int, groups: int, turns: int) -> tirx.PrimFunc:
    """Define repeated copies of a buffer of about so many elements to another one and back.

    Each work-group, or thread, copies a part, which is in the smallest cache that holds it after
    the first turn.  Each copy reverses the order of vectors and reads what the previous one wrote,
    so that a compiler cannot remove copies that would all write the same.
    """
    lanes = target.device.channel_block
    items = target.device.group_size
    chunk = max(1, elements // (groups * items * lanes))
    shape, last = (groups, chunk, items, lanes), chunk - 1

    @T.prim_func(s_tir=True)
    def function(
        first: T.Buffer(shape, "float32"),  # type: ignore[valid-type]
        second: T.Buffer(shape, "float32"),  # type: ignore[valid-type]
    ) -> None:
        for group, item, turn in T.grid(groups, items, turns):
            for step, lane in T.grid(chunk, lanes):
                with T.sblock("to"):
                    g, i, _turn, s, v = T.axis.remap("SSSSS", [group, item, turn, step, lane])
                    second[g, s, i, v] = first[g, last - s, i, v]
            for step, lane in T.grid(chunk, lanes):
                with T.sblock("fro"):
                    g, i, _turn, s, v = T.axis.remap("SSSSS", [group, item, turn, step, lane])
                    first[g, s, i, v] = second[g, last - s, i, v]

    sch = s_tir.Schedule(function)
    for name in ("to", "fro"):
        sch.vectorize(sch.get_loops(sch.get_sblock(name))[-1])
    group, item, *_ = sch.get_loops(sch.get_sblock("to"))
    _spread(sch, target, group, item)
    return sch.mod["main"]


def texels(target: TargetSpec) -> tirx.PrimFunc:
    """Define the sum over the layers of an image array.

    The image has 64 MiB; on CPUs, which read images texel by texel, a tenth of that.
    """
    layers, rows, columns = 16, 48 if target.device.is_cpu else 512, 512
    source = te.placeholder((layers, rows, columns, CHANNELS), "float32", "image")
    layer = te.reduce_axis((0, layers), "layer")
    result = te.compute(
        (rows, columns, CHANNELS),
        lambda y, x, c: te.sum(source[layer, y, x, c], axis=layer),
        "result",
    )
    function = with_scopes(te.create_prim_func([source, result]), [TEXTURE, None])
    sch = s_tir.Schedule(function)
    block = sch.get_sblock("result")
    sums = sch.cache_write(block, 0, "local")
    y, x, c, step = sch.get_loops(block)
    sch.reorder(y, x, step, c)
    columns_outer, item = sch.split(x, [None, max(8, target.device.group_size)])
    group = sch.fuse(y, columns_outer)
    sch.reverse_compute_at(sums, item)
    sch.vectorize(c)
    sch.vectorize(sch.get_loops(sums)[-1])
    _spread(sch, target, group, item)
    sch.decompose_reduction(block, step)
    return sch.mod["main"]


def arithmetic(target: TargetSpec, dtype: str, items: int, steps: int) -> tirx.PrimFunc:
    """Define chains of multiply-adds, each of which needs the previous result.

    The type is ``float32``, ``float16``, or ``int32`` for dot products of 8-bit integers.  Each
    work-item has :data:`CHAINS` sums of ``steps`` instructions.
    """
    lanes = target.device.channel_block

    def next_of(value: tirx.Expr, x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
        # The bytes of a sum are factors, too, so that nothing can be hoisted out of the loop.
        return dot(value, value, x) if dtype == "int32" else value * x + y

    chains = CHAINS

    @T.prim_func(s_tir=True)
    def function(
        factors: T.Buffer((2, lanes), dtype),  # type: ignore[valid-type]
        sums: T.Buffer((items, chains, lanes), dtype),  # type: ignore[valid-type]
    ) -> None:
        for item, step, chain, lane in T.grid(items, steps, chains, lanes):
            with T.sblock("sums"):
                i, _step, c, v = T.axis.remap("SRSS", [item, step, chain, lane])
                with T.init():
                    sums[i, c, v] = factors[1, v]
                sums[i, c, v] = next_of(sums[i, c, v], factors[0, v], factors[1, v])

    sch = s_tir.Schedule(function)
    block = sch.get_sblock("sums")
    result = sch.cache_write(block, 0, "local")
    item, step, chain, lane = sch.get_loops(block)
    group, inner = sch.split(item, [None, target.device.group_size])
    sch.reverse_compute_at(result, inner)
    for loop in (chain, sch.get_loops(result)[-2]):
        sch.unroll(loop)
    for loop in (lane, sch.get_loops(result)[-1]):
        sch.vectorize(loop)
    _spread(sch, target, group, inner)
    sch.decompose_reduction(block, step)
    return sch.mod["main"]


def nothing(target: TargetSpec) -> tirx.PrimFunc:
    """Define a kernel of one work-item that writes one element."""
    result = te.compute((1, 1), lambda *_: tirx.const(1.0, "float32"), "result")
    sch = s_tir.Schedule(te.create_prim_func([result]))
    _spread(sch, target, *sch.get_loops(sch.get_sblock("result")))
    return sch.mod["main"]


def _spread(sch: s_tir.Schedule, target: TargetSpec, *loops: s_tir.schedule.LoopRV) -> None:
    """Bind loops to work-groups and work-items, or the first one to the threads of a CPU."""
    if not target.is_gpu_kernel:
        sch.parallel(loops[0])
        return
    for loop, axis in zip(loops, ("blockIdx.x", "threadIdx.x"), strict=True):
        sch.bind(loop, axis)


# -- the roofline -------------------------------------------------------------------------------


def rated(kernel: KernelLaunch, ceilings: Ceilings | None) -> KernelLaunch:
    """Add rates, share of the roofline and bound to a kernel with its time and its counts.

    Rates need known counts; the roofline and the bound also need ceilings.
    """
    computing = moving = 0.0
    flops, read, written = kernel.flops, kernel.bytes_read, kernel.bytes_written
    if flops is not None and read is not None and written is not None:
        moved = read + written
        kernel = replace(
            kernel,
            intensity=flops / moved if moved else None,
            memory=kernel.memory if kernel.memory == "texture" else memory_of(moved, ceilings),
        )
        # The clocks of some devices are so coarse that the shortest kernels take no time.
        ns = kernel.median_us * 1e3
        gflops, gbps = (flops / ns, moved / ns) if ns else (None, None)
        kernel = replace(kernel, gflops=gflops, gbps=gbps)
        if ceilings is not None and gflops is not None and gbps is not None:
            computing = gflops / peak_gflops(kernel.arithmetic, ceilings)
            moving = gbps / peak_gbps(kernel.memory, ceilings)
            kernel = replace(kernel, roofline_share=roofline_share(computing, moving))
    bound = None
    if ceilings is not None and kernel.median_us < LAUNCHES * ceilings.launch_us:
        bound = "launch"
    elif ceilings is not None and flops is not None:
        bound = "arithmetic" if computing > moving else "bandwidth"
        bound = "latency" if max(computing, moving) < BUSY else bound
    return replace(kernel, bound=bound)


def above(kernels: Sequence[KernelLaunch], ceilings: Ceilings) -> list[KernelLaunch]:
    """Return the kernels that compute faster than their ceiling, measured on a busy machine.

    Kernels that move data faster than a copy do not count: caches explain them.
    """
    return [k for k in kernels if is_above(k.gflops or 0.0, k.arithmetic, ceilings)]


def is_above(gflops: float, arithmetic: str, ceilings: Ceilings) -> bool:
    """Return whether a rate exceeds its ceiling by more than noise."""
    return gflops > _NOISE * peak_gflops(arithmetic, ceilings)


def roofline_share(computing: float, moving: float) -> float:
    """Return the share of the lower ceiling, given the shares of both."""
    # Data in a cache can be faster than the memory's ceiling; a share is at most 1.
    return min(1.0, max(computing, moving))


def peak_gflops(arithmetic: str, ceilings: Ceilings) -> float:
    """Return the ceiling of a kind of arithmetic; fp32's if the device has no other."""
    known = {"fp16": ceilings.fp16_gflops, "int8": ceilings.int8_gops}
    return known.get(arithmetic) or ceilings.fp32_gflops


def memory_of(working_set_bytes: float, ceilings: Ceilings | None) -> str:
    """Return the name of the smallest cache that holds a kernel's buffers, or ``copy``."""
    caches = () if ceilings is None else ceilings.caches
    fitting = (cache.name for cache in caches if working_set_bytes <= cache.capacity_bytes)
    return next(fitting, "copy")


def peak_gbps(memory: str, ceilings: Ceilings) -> float:
    """Return the ceiling of a kind of memory; that of copies if it was not measured."""
    known = {cache.name: cache.gbps for cache in ceilings.caches}
    if ceilings.texture_gbps is not None:
        known["texture"] = ceilings.texture_gbps
    return known.get(memory) or ceilings.copy_gbps
