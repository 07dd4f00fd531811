"""Kinds of errors that programs written for ONNX Runtime catch, by its names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import InputError, ModelError, ShapeError, TvmflowError, UnsupportedModelError

#: The kind of all errors, also of those that have no kind of their own in ONNX Runtime.
Fail = TvmflowError


class InvalidArgument(InputError, ValueError):
    """A feed has the wrong name, rank, shape or type, or an output does not exist."""


class NoSuchFile(ModelError, FileNotFoundError):
    """The model's file does not exist."""


class InvalidProtobuf(ModelError):
    """The file is no ONNX model, or is damaged."""


class InvalidGraph(ModelError):
    """The model contradicts itself or the shapes that it was given."""


class NotImplemented(UnsupportedModelError):
    """The model uses what cannot be compiled."""


def converted(error: TvmflowError, of_model: type[TvmflowError]) -> TvmflowError:
    """Return an error of tvmflow as the kind that ONNX Runtime would raise, with the same text."""
    kind: type[TvmflowError] = type(error)
    if kind is InputError:
        kind = InvalidArgument
    elif kind is UnsupportedModelError:
        kind = NotImplemented
    elif kind is ShapeError:
        kind = InvalidGraph
    elif kind is ModelError:
        kind = NoSuchFile if isinstance(error.__cause__, FileNotFoundError) else of_model
    else:
        return error
    return kind(error.message, remedy=error.remedy, details=error.details)


@contextmanager
def conversion(of_model: type[TvmflowError] = InvalidGraph) -> Iterator[None]:
    """Raise errors of tvmflow as the kinds of ONNX Runtime; ``of_model`` is a `ModelError`'s."""
    try:
        yield
    except TvmflowError as error:
        found = converted(error, of_model)
        if found is error:
            raise
        raise found from error
