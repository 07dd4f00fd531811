"""A small standalone library, and the agent of this machine in a folder of its own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvmflow


@pytest.fixture(scope="session")
def network():
    """Return a convolution of 3 to 7 channels with an activation, as an ONNX model."""
    weights = np.random.default_rng(0).standard_normal((7, 3, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 17, 19])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 7, 17, 19])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="session")
def library(network, tmp_path_factory):
    """Return it as a standalone library for OpenCL and the CPU."""
    path = tmp_path_factory.mktemp("library") / "libsmall.so"
    options = {"target": "opencl", "format": "standalone", "fallback": "cpu"}
    with tvmflow.compile(network, **options) as module:
        return module.save(path)


@pytest.fixture
def image():
    """Return an input."""
    return np.random.default_rng(1).standard_normal((1, 3, 17, 19), np.float32)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Connect to an agent of this machine, which keeps its files in the test's folder."""
    from tvmflow.agent import executable
    from tvmflow.agent.transports import Local
    from tvmflow.devices.host import Host

    # Compiled once, in the cache of all tests.
    agent = executable.agent_executable(Host.native())
    monkeypatch.setattr("tvmflow.agent.transports.agent_executable", lambda host: agent)
    monkeypatch.setattr(Local, "folder", property(lambda self: tmp_path / "agent"), raising=False)
    monkeypatch.setattr(Local, "__init__", _begin)
    with tvmflow.connect("local") as device:
        yield device


def _begin(self, environment=None):
    self._environment = dict(environment or {})
