"""How a model is compiled: every option of `compile`, checked once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..devices.choices import EMBED_LIMIT_BYTES, FORMATS, STANDALONE, TVM
from ..devices.precision import check_accumulate, check_dtype
from ..devices.target import TargetSpec, check_cuda_graph, resolve, with_dtype, with_storage
from ..errors import TargetError
from ..tuning_logs import find_journal
from .tables import CONVOLUTION_ALGORITHMS, KEPT_LAYOUTS, KNOBS, STORAGE_OVERRIDES

#: A table, or the file that has it.
Given = Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """How a model is compiled.

    Tables (`storage_overrides`, `algorithms`, `knobs`, `keep_layout`) may be files that hold them:
    JSON objects, or TOML tables in files ``*.toml``.

    Parameters
    ----------
    target
        ``opencl``, ``cuda`` or ``llvm``.
    device
        Preset of the device that the kernels are for: ``auto`` (the one of this
        machine), ``cpu``, ``adreno``, ``mali`` or ``nvidia``.
    host
        LLVM triple of the machine that will load the module, default this one.
    shapes
        Shapes of inputs whose dimensions the model leaves open, by input name.
    storage
        Where tensors between primary functions are kept: ``texture`` or ``buffer``, or
        ``auto``, which decides for each tensor by what the device gains.
    storage_overrides
        ``texture`` or ``buffer`` for single tensors, before everything else, by the names
        that ``tvmflow compile -v`` prints, or those of the ONNX model.
    dtype
        Precision in which tensors between primary functions and weights are stored:
        ``fp32``, or ``fp16``, which halves their memory.
    accumulate
        Precision of products and sums in convolutions, dense layers and average pooling:
        ``fp32``, or ``fp16`` for tensors that are stored so, on devices with ``cl_khr_fp16``.
    algorithms
        ``direct``, ``gemm`` (for ``cuda``), ``winograd2`` or ``winograd4`` for single
        convolutions, by the names of their nodes or of the tensors that these write, instead of
        what seems cheapest.
    knobs
        Knobs of schedules by the name of the primary function, as ``tvmflow inspect
        --schedules`` prints them.  Those that do not fit are warned of and not used.
    journals
        Tuning journals, or names of those that ship with tvmflow: what was measured for a
        primary function is used instead of the heuristic, and for a convolution's algorithm
        or the network's storage (``auto``) instead of the cost models.  Where two have
        something for it, the first one counts.
    keep_layout
        ``nchw4c`` or ``texture`` for inputs and outputs, by the ONNX model's names, that the
        application has in the blocked layout ``[N, C', H, W, 4]``: in a buffer or an image.
    cuda_graph
        Launch all kernels at once, as a CUDA graph that the first run captures; for ``cuda``.
    format
        ``tvm``, a module for TVM's runtime, or ``standalone``, a library with a C interface
        (`tvmflow.h`) that needs no other and opens the device's OpenCL; for ``opencl``.
    embed_limit_bytes
        Weights of more than this total travel in a file beside the module.

    Raises
    ------
    CompileError
        If a table cannot be read, or has a value that does not exist.
    """

    target: str = "opencl"
    device: str = "auto"
    host: str | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    storage: str = "auto"
    storage_overrides: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "fp32"
    accumulate: str = "fp32"
    algorithms: Mapping[str, Any] = field(default_factory=dict)
    knobs: Mapping[str, Any] = field(default_factory=dict)
    journals: Sequence[str | os.PathLike[str]] = ()
    keep_layout: Mapping[str, Any] = field(default_factory=dict)
    cuda_graph: bool = False
    format: str = TVM
    embed_limit_bytes: int = EMBED_LIMIT_BYTES

    def __post_init__(self) -> None:
        settled = {
            "shapes": {name: tuple(shape) for name, shape in (self.shapes or {}).items()},
            "storage_overrides": STORAGE_OVERRIDES.settled(self.storage_overrides),
            "algorithms": CONVOLUTION_ALGORITHMS.settled(self.algorithms),
            "knobs": KNOBS.settled(self.knobs),
            "keep_layout": KEPT_LAYOUTS.settled(self.keep_layout),
            "journals": tuple(find_journal(Path(path)) for path in self.journals or ()),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def resolve(self) -> TargetSpec:
        """What is compiled for: ``auto`` asks the devices of this machine.

        Raises
        ------
        TargetError
            If something is unknown, a combination impossible, or ``auto`` finds no device.
        """
        spec = resolve(self.target, self.device, self.host)
        spec = with_storage(spec, self.storage, self.storage_overrides, self.keep_layout)
        check_dtype(spec, self.dtype)
        check_accumulate(spec, self.accumulate, self.dtype, self.device)
        if self.cuda_graph:
            check_cuda_graph(spec)
        _check_format(spec, self.format)
        return with_dtype(spec, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults, and the precisions and the storage."""
        told = {}
        for item in fields(self):
            value = getattr(self, item.name)
            default = item.default if item.default_factory is MISSING else item.default_factory()
            if value != default or item.name in ("storage", "dtype", "accumulate"):
                told[item.name] = (
                    [str(path) for path in value] if item.name == "journals" else value
                )
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> CompileOptions:
        """Options from what `to_json` gave; names that this version does not know are left out."""
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in told.items() if name in known})


def _check_format(spec: TargetSpec, format: str) -> None:
    if format not in FORMATS:
        raise TargetError(
            f"The format {format!r} is not known; expected one of {', '.join(FORMATS)}.",
            remedy="Leave `format` out, or choose one of them.",
        )
    if format == STANDALONE and spec.kind != "opencl":
        raise TargetError(
            f"A standalone module was asked for the target {spec.kind}; its runtime is for opencl.",
            remedy="Use `target=opencl`, or `format=tvm`.",
        )
