"""Bindings of inputs and outputs, with the interface of ONNX Runtime's ``IOBinding``.

Values stay where they are: arrays and tensors of other libraries on the host (DLPack) are bound
without a copy, and results are written into bound arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..module.values import put
from .errors import InvalidArgument
from .interface import NodeArg


class Session(Protocol):
    """A session, as far as a binding uses it."""

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[np.ndarray]:
        """Run the network."""


class OrtValue:
    """A tensor in the host's memory."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value that shares the array's memory."""
        _check_device(device_type)
        return OrtValue(np.asarray(numpy_obj))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any = np.float32,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return a value of zeros."""
        _check_device(device_type)
        return OrtValue(np.zeros(shape, element_type))

    def numpy(self) -> np.ndarray:
        """Return the value as an array that shares its memory."""
        return self._array

    def shape(self) -> list[int]:
        """Return the extents."""
        return list(self._array.shape)

    def element_type(self) -> type[np.generic]:
        """Return the NumPy type of an element."""
        return self._array.dtype.type

    def device_name(self) -> str:
        """Return ``cpu``."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Return that it is a tensor."""
        return True

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class IOBinding:
    """Inputs and outputs of the next runs of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        #: Arrays that results are written to; ``None`` for new ones.
        self._wanted: dict[str, np.ndarray | None] = {}
        self._results: dict[str, np.ndarray] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array, or a tensor that supports DLPack, as an input."""
        self._inputs[name] = _on_host(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value as an input."""
        self._inputs[name] = ortvalue.numpy()

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        """Ask for an output in a new array."""
        _check_device(device_type)
        self._wanted[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output in the memory of a value."""
        self._wanted[name] = ortvalue.numpy()

    def clear_binding_inputs(self) -> None:
        """Unbind the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Unbind the outputs."""
        self._wanted.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are on the host."""

    def synchronize_outputs(self) -> None:
        """Do nothing: outputs are on the host."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the results of the last run, in the order in which they were bound."""
        return [OrtValue(array) for array in self._results.values()]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the results of the last run as arrays."""
        return [*self._results.values()]

    def run(self) -> None:
        """Run the session; raises as `InferenceSession.run`, or if a result does not fit."""
        names = list(self._wanted) or [output.name for output in self._session.get_outputs()]
        results = self._session.run(names, self._inputs)
        self._results = {
            name: put(name, array, self._wanted.get(name))
            for name, array in zip(names, results, strict=True)
        }


def _on_host(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"A {type(value).__name__} cannot be bound: {error}.",
            remedy="Copy it to the host first.",
        ) from error


def _check_device(device_type: str) -> None:
    if device_type != "cpu":
        raise InvalidArgument(
            f"Memory on the device {device_type!r} was asked for; bindings are on the host.",
            remedy="Leave the device out.",
        )
