"""Precisions: in which tensors are stored, and in which products and sums are taken."""

from __future__ import annotations

from ..errors import TargetError
from .choices import PRECISIONS
from .target import TargetSpec


def check_dtype(spec: TargetSpec, dtype: str) -> None:
    """Check the precision in which tensors are to be stored.

    Raises
    ------
    TargetError
        If it is unknown, or the target only computes with what it stores.
    """
    if dtype not in PRECISIONS:
        raise TargetError(
            f"The dtype {dtype!r} is not known; expected one of {', '.join(PRECISIONS)}.",
            remedy="Leave `dtype` out, or choose one of them.",
        )
    if dtype != "fp32" and spec.kind == "llvm":
        raise TargetError(
            f"Storage in {dtype} was asked for the target {spec.kind}; only opencl and cuda have "
            "it.",
            remedy="Use `target=opencl` or cuda, or `dtype=fp32`.",
        )


def check_accumulate(spec: TargetSpec, accumulate: str, dtype: str, device: str) -> None:
    """Check the precision of products and sums; ``device`` is what the user asked for.

    Raises
    ------
    TargetError
        If it is unknown, tensors are stored in another, or the device cannot compute in it.
    """
    if accumulate not in PRECISIONS:
        raise TargetError(
            f"The accumulation {accumulate!r} is not known; expected one of "
            f"{', '.join(PRECISIONS)}.",
            remedy="Leave `accumulate` out, or choose one of them.",
        )
    if accumulate == "fp32":
        return
    if dtype != accumulate:
        raise TargetError(
            f"Sums in {accumulate} were asked for tensors stored in {dtype}; they are for tensors "
            f"stored in {accumulate}.",
            remedy="Add `dtype=fp16`, or leave `accumulate` out.",
        )
    if spec.kind != "opencl":
        raise TargetError(
            f"Sums in {accumulate} were asked for the target {spec.kind}; only opencl has them.",
            remedy="Leave `accumulate=fp16` out, or use `target=opencl`.",
        )
    if spec.device.fp16 is False:
        name = _running_name() if device == "auto" else device
        raise TargetError(
            f"Sums in {accumulate} were asked for the device {name}, whose OpenCL lacks "
            "cl_khr_fp16.",
            remedy="Leave `accumulate=fp16` out, or name another device with `device`.",
        )


def _running_name() -> str:
    from ..runtime.devices import opencl_devices

    return opencl_devices()[0].name
