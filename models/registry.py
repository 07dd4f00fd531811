"""The list of networks that can be built, with their parameters."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ._graph import EXTERNAL_LIMIT_BYTES, MODEL_LIMIT_BYTES, GraphBuilder
from .crnn import crnn
from .detector import face_detector
from .facebox import facebox_loss, facebox_net
from .mobilenet import mobilenet_v1, mobilenet_v2
from .resnet import resnet50
from .squeezenet import squeezenet
from .transformers import deit_tiny, mobilevit


@dataclass(frozen=True)
class Parameter:
    """A parameter of a builder."""

    #: Its keyword.
    name: str
    #: ``int`` or ``float``.
    type: type
    #: Its default value.
    default: int | float
    description: str

    def parse(self, value: Any) -> int | float:
        """Convert ``value`` (text or a number) to the parameter's type.

        Raises ``ValueError`` if it is not a number of that type, or not positive (a seed may be 0).
        """
        try:
            number = self.type(value)
            exact = number == float(value)
        except (TypeError, ValueError, OverflowError):
            exact = False
        if not exact:
            kind = "a whole number" if self.type is int else "a number"
            raise ValueError(f"{self.name} must be {kind}, got {value!r}.")
        if not (0 < number < float("inf")) and not (self.name == "seed" and number == 0):
            raise ValueError(f"{self.name} must be positive, got {value!r}.")
        return number


@dataclass(frozen=True)
class Builder:
    """A network that can be built."""

    #: Its name in ``BUILDERS`` and on the command line.
    name: str
    #: Function that takes the parameters as keywords and returns the graph.
    function: Callable[..., GraphBuilder]
    description: str
    parameters: tuple[Parameter, ...]

    def arguments(self, given: Mapping[str, Any]) -> dict[str, int | float]:
        """Convert parameters (text or numbers) to the function's keywords.

        Raises ``ValueError`` if a parameter is unknown or its value does not fit.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(
                f"{self.name} has no parameter {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(known)}."
            )
        return {name: known[name].parse(value) for name, value in given.items()}


#: Parameters of all builders.
_PARAMETERS = {
    "width": "Multiplies the number of channels of every layer.",
    "depth": "Number of layers.",
    "size": "Height and width of the input image in pixels.",
    "classes": "Length of the output.",
    "boxes": "Number of bounding boxes in the output.",
    "batch": "Number of images.",
    "seed": "Seeds the random weights.",
}


def _builder(function: Callable[..., GraphBuilder]) -> Builder:
    """Describe a builder function from its signature and the first line of its docstring."""
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = type(parameter.default)
        parameters.append(Parameter(name, kind, parameter.default, _PARAMETERS[name]))
    description = (function.__doc__ or "").partition("\n")[0]
    return Builder(function.__name__, function, description, tuple(parameters))


#: Every network by name.
BUILDERS: dict[str, Builder] = {
    function.__name__: _builder(function)
    for function in (
        *(mobilenet_v1, mobilenet_v2, resnet50, squeezenet, deit_tiny, mobilevit, crnn),
        *(facebox_net, facebox_loss, face_detector),
    )
}


def _graph(name: str, parameters: Mapping[str, Any]) -> GraphBuilder:
    if name not in BUILDERS:
        raise ValueError(f"There is no model {name!r}; there are {', '.join(BUILDERS)}.")
    return BUILDERS[name].function(**BUILDERS[name].arguments(parameters))


def make(name: str, **parameters: Any) -> onnx.ModelProto:
    """Build a network of ``BUILDERS`` in memory; its parameters are numbers or text.

    Raises ``ValueError`` if the name, a parameter or its value is unknown, or the weights exceed
    the 2 GB that an ONNX model in memory can hold.
    """
    graph = _graph(name, parameters)
    if graph.weight_bytes > MODEL_LIMIT_BYTES:
        raise ValueError(
            f"{name} has {graph.weight_bytes / 1e9:.1f} GB of weights here, more than a model "
            "in memory can hold (2 GB): write it with build(), which puts them next to the file."
        )
    return graph.model()


def build(
    name: str,
    path: str | os.PathLike[str],
    *,
    external_limit_bytes: int = EXTERNAL_LIMIT_BYTES,
    **parameters: Any,
) -> Path:
    """Build a network of ``BUILDERS`` and write it to ``path``; parameters are numbers or text.

    An existing file is replaced once the new one is complete.  Weights of more than
    ``external_limit_bytes`` in total are streamed to ``<path>.data``, which must stay next to it.

    Raises ``ValueError`` if the name, a parameter or its value is unknown; ``OSError`` if the files
    cannot be written.
    """
    return _graph(name, parameters).save(path, external_limit_bytes)
