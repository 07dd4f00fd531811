"""What a device reaches at most, measured with :mod:`.microkernels` and kept for the next time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ...codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from ...codegen.tir_pipeline import TIR_PIPELINE
from ...devices.target import TargetSpec, preset_of, resolve
from ...errors import TvmflowError
from ...module.files import user_cache
from ...runtime.devices import FP16_EXTENSION, DeviceInfo
from ...runtime.timing import elapsed_ms, repeat
from . import microkernels
from .counting import count_kernels
from .reading import typed
from .record import Ceilings

logger = logging.getLogger(__name__)

#: Of the kernels that measure; what other ones found is measured again.
_VERSION = 2
#: A kernel runs so often, again and again for so long; the best time counts, as others only
#: disturb.  A process that holds a core keeps it for longer than some runs of a kernel.
_REPEATS = 7
_SECONDS = 0.5
#: Launches in a queue.
_LAUNCHES = 500
#: Instructions of each sum.
_STEPS = 2000


def ceilings(target: str, info: DeviceInfo, *, fresh: bool = False) -> Ceilings:
    """The ceilings of a device: from the cache folder, else measured, which takes seconds.

    Parameters
    ----------
    target
        ``opencl``, ``cuda`` or ``llvm``.
    info
        The device.
    fresh
        Whether they are measured again although they are known.

    Raises
    ------
    DeviceError
        If the device refuses a kernel.
    """
    path = _kept_at(info)
    if path is not None and not fresh:
        with suppress(OSError, ValueError):
            known: Ceilings = typed(Ceilings, json.loads(path.read_text(encoding="utf-8")))
            return known
    found = _Device(target, info).measure()
    if path is not None:
        # Without a place to keep them, they are measured every time.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stage = path.with_suffix(f".{os.getpid()}")
            stage.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
            stage.replace(path)
    return found


def _kept_at(info: DeviceInfo) -> Path | None:
    """Where a device's ceilings are kept; with another driver, or other threads, it is another."""
    if os.environ.get("TVMFLOW_CACHE") == "0":
        return None
    # Not the host's cores: TVM's threads may be fewer, and leave this one a single core.
    units = tvm.runtime.num_threads() if info.kind == "llvm" else info.compute_units
    facts = (info.kind, info.platform, info.name, info.driver, info.version, units)
    digest = hashlib.sha256(repr((_VERSION, *facts)).encode()).hexdigest()[:24]
    return Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache(), "ceilings", f"{digest}.json")


def target_of(kind: str, info: DeviceInfo) -> TargetSpec:
    """The target whose preset is the running device."""
    return TargetSpec("opencl", preset_of(info), None) if kind == "opencl" else resolve(kind)


class _Device:
    """A device that kernels are run on."""

    def __init__(self, kind: str, info: DeviceInfo):
        self.kind = kind
        self.info = info
        self.target = target_of(kind, info)
        self.device = tvm.device("cpu" if kind == "llvm" else kind, info.index)

    def measure(self) -> Ceilings:
        """Run all microkernels."""
        return Ceilings(
            copy_gbps=self._bytes_a_ns(microkernels.copy(self.target)),
            fp32_gflops=self._arithmetic("float32"),
            launch_us=self._launch_us(),
            texture_gbps=self._textures() if self.info.images else None,
            fp16_gflops=self._arithmetic("float16") if self._has_fp16 else None,
            int8_gops=self._arithmetic("int32"),
        )

    @property
    def _has_fp16(self) -> bool:
        return self.kind == "cuda" or FP16_EXTENSION in self.info.extensions

    def _arithmetic(self, dtype: str) -> float:
        """10⁹ operations a second."""
        groups = self.info.compute_units * (64 if self.target.device.is_cpu else 32)
        items = max(1, groups) * self.target.device.group_size
        function = microkernels.arithmetic(self.target, dtype, items, _STEPS)
        counts = count_kernels(function, on_gpu=self.target.is_gpu_kernel)
        assert counts is not None
        return sum(counts[0].flops.values()) / self._best_ns(function)

    def _textures(self) -> float | None:
        try:
            return self._bytes_a_ns(microkernels.texels(self.target), microkernels.TEXTURE)
        except TvmflowError as error:
            # Images as large as this are more than some devices take.
            logger.info("The rate of textures could not be measured: %s", error.message)
            return None

    def _bytes_a_ns(self, function: Any, scope: str | None = None) -> float:
        counts = count_kernels(function, on_gpu=self.target.is_gpu_kernel)
        assert counts is not None
        total = counts[0].bytes_read + (0 if scope else counts[0].bytes_written)
        return total / self._best_ns(function, scope)

    def _launch_us(self) -> float:
        """From the call of an empty kernel to its end, in a queue of such."""
        module, arguments = self._prepare(microkernels.nothing(self.target))
        call = module["main"]

        def launch() -> None:
            for _ in range(_LAUNCHES):
                call(*arguments)
            self.device.sync()

        self.device.sync()
        return min(_times(lambda: elapsed_ms(launch))) / _LAUNCHES * 1e3

    def _best_ns(self, function: Any, scope: str | None = None) -> float:
        module, arguments = self._prepare(function, scope)
        timer = module.time_evaluator("main", self.device, number=1, repeat=1)
        return min(_times(lambda: float(timer(*arguments).results[0]))) * 1e9

    def _prepare(self, function: Any, scope: str | None = None) -> tuple[Any, list[Any]]:
        """A kernel, and values to call it with."""
        module = build(function, self.target)
        arguments = []
        for index, parameter in enumerate(function.params):
            shape = [int(extent) for extent in parameter.ty.shape]
            dtype = str(parameter.ty.dtype)
            tensor = tvm.runtime.empty(
                shape, dtype, self.device, mem_scope=scope if index == 0 else None
            )
            # Factors below 1, so that nothing overflows; memory that was never written may be none.
            tensor.copyfrom(np.full(shape, 3 if dtype == "int32" else 0.5, dtype))
            arguments.append(tensor)
        return module, arguments


def _times(measure: Callable[[], float]) -> list[float]:
    return repeat(measure, least=_REPEATS, seconds=_SECONDS)


def build(function: Any, target: TargetSpec) -> Any:
    """A module of one scheduled function, ``main``."""
    named = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    with target.tvm_target:
        return tvm.tirx.build(named, target=target.tvm_target, pipeline=TIR_PIPELINE)
