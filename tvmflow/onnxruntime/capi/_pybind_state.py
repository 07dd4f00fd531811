"""The older name of `onnxruntime_pybind11_state`."""

from __future__ import annotations

from tvmflow.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
