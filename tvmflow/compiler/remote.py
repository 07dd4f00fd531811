"""Compile options for a device behind an agent, from the facts that it reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..agent.device import RemoteDevice
from ..devices.choices import STANDALONE
from ..devices.device_file import SUFFIX
from ..errors import TargetError
from ..module.files import TEXT, publish, staging
from ..runtime.caches import user_cache
from .options import CompileOptions, with_keywords


def options_for(
    remote: RemoteDevice,
    options: CompileOptions | None = None,
    *,
    device_index: int = 0,
    **given: Any,
) -> CompileOptions:
    """Return the options of a standalone library for a device.

    ``given`` are fields of `CompileOptions`.  What neither they nor ``options`` say follows the
    device: ``opencl`` if it has that, with the limits that its driver reports over the preset of
    its class, and ``fp16`` storage on GPUs with half precision; on processors of 64 bits with the
    CPU as fallback.

    Raises `TargetError` for ``cuda``, and `AgentError` if there is no OpenCL device.
    """
    target = given.get("target") or (options and options.target)
    if target == "cuda":
        raise TargetError(
            f"Compiling for {remote.name} with the target cuda is not possible: its agent runs "
            "standalone libraries.",
            remedy="Use `target=opencl`, or llvm.",
        )
    if target is None:
        target = "opencl" if remote.opencl_devices() else "llvm"
    chosen: dict[str, object] = {"format": STANDALONE, "host": remote.connection.host_name}
    chosen["target"] = target
    if target == "opencl":
        info = remote.require_opencl(device_index)
        if "device" not in given:
            chosen["device"] = str(device_file_of(remote, device_index))
        if options is None:
            is_gpu = info.device_type == "gpu"
            chosen["dtype"] = "fp16" if is_gpu and info.fp16 else "fp32"
            chosen["fallback"] = None if remote.host.is_32_bit else "cpu"
    return with_keywords(options, chosen | given)


def device_file_of(remote: RemoteDevice, device_index: int = 0) -> Path:
    """Write a device file with what the driver reports to the user's cache folder; return it."""
    described = remote.device_file(device_index)
    folder = Path(os.environ.get("TVMFLOW_CACHE_DIR") or user_cache()) / "devices"
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in described.name).strip("-") or "device"
    path = folder / f"{name}{SUFFIX}"
    content = json.dumps(described.to_json(), indent=1) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != content:
        with staging(path, TEXT) as stage:
            (stage / "file").write_text(content, encoding="utf-8")
            publish({stage / "file": path})
    return path
