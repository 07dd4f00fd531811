"""Execution providers: names of targets, and the options of their compilation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..compiler.options import CompileOptions, with_keywords
from ..errors import DeviceError, TargetError, nearest

logger = logging.getLogger(__name__)

#: Providers of this package, with their targets.
TARGETS = {"tvmflow-llvm": "llvm", "tvmflow-opencl": "opencl", "tvmflow-cuda": "cuda"}
#: Providers of ONNX Runtime that have a counterpart, with its options.
_counterparts: dict[str, tuple[str, Mapping[str, Any]]] = {
    "CPUExecutionProvider": ("tvmflow-llvm", {}),
    "CUDAExecutionProvider": ("tvmflow-cuda", {}),
}
#: Those that have none: they are skipped, as ONNX Runtime skips what a build lacks.
_FOREIGN = (
    "ACLExecutionProvider", "ArmNNExecutionProvider", "AzureExecutionProvider",
    "CANNExecutionProvider", "CoreMLExecutionProvider", "DmlExecutionProvider",
    "DnnlExecutionProvider", "MIGraphXExecutionProvider", "NnapiExecutionProvider",
    "NvTensorRTRTXExecutionProvider", "OpenVINOExecutionProvider", "QNNExecutionProvider",
    "ROCMExecutionProvider", "TensorrtExecutionProvider", "VitisAIExecutionProvider",
    "WebGpuExecutionProvider", "XnnpackExecutionProvider",
)  # fmt: skip
#: Options of a compilation that the session sets itself.
_OF_THE_SESSION = ("target", "shapes", "at", "inputs", "host")

#: A provider's name, or its name and options.
Given = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Provider:
    """A provider that a session may use."""

    name: str
    options: CompileOptions
    #: The options as they were given.
    given: Mapping[str, Any] = field(default_factory=dict)


def choose(
    providers: Sequence[Given] | None, options: Sequence[Mapping[str, Any]] | None
) -> Provider:
    """Return the first provider whose device is there; the default one if none is named.

    Raises `TargetError` if a name is unknown, or no provider's device is there, and
    `UnknownOptionError` if an option is unknown.
    """
    found = [*map(_parsed, _pairs(providers, options))]
    wanted = [provider for provider in found if provider is not None]
    if not wanted:
        default = _parsed(("CPUExecutionProvider", {}))
        assert default is not None
        wanted = [default]
        if found:
            logger.warning("None of the providers has a counterpart: %s is used.", default.name)
    for provider in wanted[:-1]:
        try:
            provider.options.resolve()
        except (TargetError, DeviceError) as error:
            logger.warning("The provider %s is skipped: %s", provider.name, error.message)
        else:
            return provider
    wanted[-1].options.resolve()
    return wanted[-1]


def set_default_provider(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Choose the provider of sessions that name none, or ``CPUExecutionProvider``.

    For programs whose code names that one: ``set_default_provider("tvmflow-opencl")`` runs them on
    OpenCL.  Raises `TargetError` or `UnknownOptionError` if the name or an option is unknown.
    """
    provider = _parsed((name, options or {}))
    if provider is not None:
        _counterparts["CPUExecutionProvider"] = provider.name, provider.given


def get_available_providers() -> list[str]:
    """Return the providers whose device is there, and ONNX Runtime's name of the CPU's."""
    found = []
    for name, target in TARGETS.items():
        try:
            CompileOptions(target=target).resolve()
        except (TargetError, DeviceError):
            continue
        found.append(name)
    return [*found, "CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    """Return the names of all providers of this package."""
    return [*TARGETS]


def get_device() -> str:
    """Return ``CPU``: the device that sessions use unless a provider is named."""
    return "CPU"


def _pairs(
    providers: Sequence[Given] | None, options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    named = [(each, {}) if isinstance(each, str) else each for each in providers or ()]
    if options is None:
        return named
    if len(options) != len(named):
        raise TargetError(
            f"{len(named)} providers were given, and options of {len(options)}.",
            remedy="Give as many options as providers, or pairs of a name and options.",
        )
    return [(name, {**own, **more}) for (name, own), more in zip(named, options, strict=True)]


def _parsed(given: tuple[str, Mapping[str, Any]]) -> Provider | None:
    """Return a provider; ``None`` for one of ONNX Runtime without a counterpart."""
    name, options = given
    known = (*TARGETS, *_counterparts, *_FOREIGN)
    if name in _FOREIGN:
        logger.warning("The provider %s has no counterpart, and is skipped.", name)
        return None
    if name not in known:
        raise TargetError(
            f"There is no provider {name!r}{nearest(name, known, {})}.",
            remedy=f"Use one of {', '.join(TARGETS)}.",
        )
    if name in _counterparts:
        # Options given with it are about that provider's arenas and streams.
        name, options = _counterparts[name]
    for option in _OF_THE_SESSION:
        if option in options:
            raise TargetError(
                f"The option {option!r} was given to the provider {name}, but the session sets it.",
                remedy="Leave it out; `precompile` of the session takes shapes.",
            )
    plain = CompileOptions(target=TARGETS[name])
    return Provider(name, with_keywords(plain, dict(options)), options)
