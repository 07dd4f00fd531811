"""ONNX's interface for backends: prepare a model on a device, and run it.

>>> from tvmflow import backend
>>> (y,) = backend.run_model(onnx.load("net.onnx"), [image])

Devices are ``CPU``, ``OPENCL`` and ``CUDA``.  Inputs whose value decides shapes are compiled in at
the first run, so that each new value is compiled.

Source: onnx.ai, "Implementing an ONNX backend".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from .errors import InputError
from .onnxruntime.providers import get_available_providers
from .onnxruntime.session import InferenceSession

#: Providers by device.
_PROVIDERS = {"CPU": "tvmflow-llvm", "OPENCL": "tvmflow-opencl", "CUDA": "tvmflow-cuda"}


class Prepared(BackendRep):
    """A model on its device."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **_: Any) -> tuple[np.ndarray, ...]:
        """Run the model on arrays in the order of its inputs; return the outputs by name, too."""
        names = [each.name for each in self._session.get_inputs()]
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        if len(values) != len(names):
            raise InputError(
                f"{len(values)} inputs were given, but the model has {len(names)}: "
                f"{', '.join(names)}.",
                remedy="Give all of them, in this order.",
            )
        feed = dict(zip(names, map(_array, values), strict=True))
        results = self._session.run(None, feed)
        outputs = [each.name for each in self._session.get_outputs()]
        made: tuple[np.ndarray, ...] = namedtupledict("Outputs", outputs)(*results)
        return made


class TvmflowBackend(Backend):
    """The backend, as ONNX's test runner takes it."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **options: Any) -> Prepared:
        """Return a model that is ready to run; ``options`` are those of `tvmflow.compile`.

        A model of open shapes is compiled at the first run of each shape.  Raises `InputError` for
        an unknown device, and as `InferenceSession`.
        """
        kind = device.partition(":")[0].upper()
        if kind not in _PROVIDERS:
            raise InputError(
                f"There is no device {device!r}.", remedy=f"Use one of {', '.join(_PROVIDERS)}."
            )
        return Prepared(_Session(model, providers=[(_PROVIDERS[kind], options)]))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **options: Any
    ) -> tuple[np.ndarray, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Any]] | None = None,
        **options: Any,
    ) -> tuple[np.ndarray, ...]:
        """Run a single node on arrays in the order of its inputs, without those left out.

        ``outputs_info`` has dtype and shape of each output, which need not be known.
        """
        opset = options.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        given = dict(zip(names, map(_array, values), strict=True))
        described = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in given.items()
        ]
        results = [name for name in node.output if name]
        known = outputs_info or [(None, None)] * len(results)
        outputs = [
            helper.make_empty_tensor_value_info(name)
            if dtype is None
            else helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for name, (dtype, shape) in zip(results, known, strict=True)
        ]
        graph = helper.make_graph([node], "node", described, outputs)
        domains = [helper.make_opsetid(node.domain, opset)]
        model = helper.make_model(graph, opset_imports=domains)
        model.ir_version = helper.find_min_ir_version_for(domains, ignore_unknown=True)
        return cls.run_model(model, list(given.values()), device, **options)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether a device is there."""
        return _PROVIDERS.get(device.partition(":")[0].upper()) in get_available_providers()


class _Session(InferenceSession):
    MOST_CONSTANT = 1024


def _array(value: Any) -> np.ndarray:
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


prepare = TvmflowBackend.prepare
run_model = TvmflowBackend.run_model
run_node = TvmflowBackend.run_node
supports_device = TvmflowBackend.supports_device
