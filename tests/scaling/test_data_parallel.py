"""A batch on several devices gives what one device gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from drivers import DRIVERS
from tiny_model import tiny_model

import tvmflow
from tvmflow.errors import InputError
from tvmflow.scaling.data_parallel import DataParallel


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    for batch in (2, 6):
        with tvmflow.compile(
            tiny_model(), target="llvm", shapes={"x/in": (batch, 3, 8, 8)}
        ) as module:
            module.save(folder / f"{batch}.so")
    return folder


@pytest.fixture
def parallel(compiled):
    found = DataParallel([tvmflow.load(compiled / "2.so") for _ in range(3)], ["x/in"])
    yield found
    found.close()


def values(batch, rng):
    return {
        "x/in": rng.standard_normal((batch, 3, 8, 8), np.float32),
        "z": rng.standard_normal((4, 1, 1), np.float32),
    }


def test_results_are_those_of_one_module(parallel, compiled, rng):
    assert [info.shape for info in parallel.inputs] == [(6, 3, 8, 8), (4, 1, 1)]
    with tvmflow.load(compiled / "6.so") as whole:
        for _ in range(2):
            inputs = values(6, rng)
            found, wanted = parallel(inputs), whole(inputs)
            assert found.names == wanted.names
            for name in wanted.names:
                np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("batch", [2, 5, 12])
def test_a_batch_that_does_not_fit_is_refused(parallel, rng, batch):
    inputs = values(batch, rng)
    with pytest.raises(InputError, match="x/in"):
        parallel(inputs)


def test_a_network_that_joins_its_samples_is_refused(tmp_path):
    model = tiny_model()
    del model.graph.output[:]
    axes = onnx.helper.make_node("ReduceMean", ["y"], ["mean"], keepdims=0)
    model.graph.node.append(axes)
    model.graph.output.append(onnx.helper.make_tensor_value_info("mean", 1, []))
    with (
        tvmflow.compile(model, target="llvm", shapes={"x/in": (2, 3, 8, 8)}) as module,
        pytest.raises(InputError, match="no row for each"),
    ):
        DataParallel([module, module], ["x/in"])


_TWO_DEVICES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import tvmflow
from tvmflow.runtime.devices import opencl_devices
from tvmflow.scaling.data_parallel import DataParallel
from drivers import DRIVERS
from tiny_model import tiny_model

def compiled(batch):
    shapes = {"x/in": (batch, 3, 8, 8)}
    return tvmflow.compile(tiny_model(), target="opencl", device="cpu", shapes=shapes)

compiled(2).save("two.so")
parallel = DataParallel([tvmflow.load("two.so", device=i) for i in range(2)], ["x/in"])
x = np.random.default_rng(0).standard_normal((4, 3, 8, 8), np.float32)
inputs = {"x/in": x, "z": np.ones((4, 1, 1), np.float32)}
found, wanted = parallel(inputs), compiled(4)(inputs)
for name in wanted.names:
    np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)
print(len(opencl_devices()))
parallel.close()
"""


@pytest.mark.opencl
@pytest.mark.skipif(not DRIVERS[0].path, reason="PoCL is not installed")
def test_two_devices_of_opencl(run_python):
    # PoCL gives as many devices of the CPU as are named.
    env = {**DRIVERS[0].variables(DRIVERS[0].path), "POCL_DEVICES": "cpu cpu"}
    process = run_python(_TWO_DEVICES, Path(tiny_model.__code__.co_filename).parent, env=env)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["2"]
