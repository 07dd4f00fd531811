"""A batch on several devices, here and on servers, gives what ONNX Runtime gives."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.drivers import INTEL, POCL, system_loader
from support.farms import Farm
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.errors import FarmError, InputError
from tvmflow.explain.scaling.data_parallel import DataParallel
from tvmflow.farm.modules import RemoteModule
from tvmflow.module import elf
from tvmflow.verify.tolerance import assert_close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batches")
    shapes = {"x/in": (2, 3, 8, 8)}
    with tvmflow.compile(tiny_model(), target="llvm", shapes=shapes) as module:
        module.save(folder / "2.so")
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


def check_against_onnxruntime(module, batch, rng):
    import onnxruntime

    reference = onnxruntime.InferenceSession(tiny_model().SerializeToString())
    for _ in range(2):
        inputs = values(batch, rng)
        found = module(inputs)
        assert found.names == ("y", "positive")
        for got, wanted in zip(found, reference.run(None, inputs), strict=True):
            assert_close(got, wanted)


@pytest.mark.onnxruntime
def test_results_are_those_of_the_whole_batch(parallel, rng):
    assert [info.shape for info in parallel.inputs] == [(6, 3, 8, 8), (4, 1, 1)]
    check_against_onnxruntime(parallel, 6, rng)


@pytest.mark.parametrize("batch", [2, 5, 12])
def test_a_batch_that_does_not_fit_is_refused(parallel, rng, batch):
    inputs = values(batch, rng)
    with pytest.raises(InputError, match="x/in"):
        parallel(inputs)


@pytest.mark.parametrize("batched", [[], ["x/in", "nothing"]])
def test_inputs_that_are_not_there_are_refused(compiled, batched):
    with pytest.raises(InputError, match=r"x/in, z were expected to be split, got (none|nothing)"):
        DataParallel([tvmflow.load(compiled / "2.so")], batched)


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
import sys
sys.path[:0] = sys.argv[1:]
import numpy as np
import tvmflow
from tvmflow.runtime.devices import opencl_devices
from tvmflow.explain.scaling.data_parallel import DataParallel
from support.tiny_model import tiny_model
from test_data_parallel import check_against_onnxruntime

shapes = {"x/in": (2, 3, 8, 8)}
tvmflow.compile(tiny_model(), target="opencl", device="cpu", shapes=shapes).save("two.so")
parallel = DataParallel([tvmflow.load("two.so", device=i) for i in range(2)], ["x/in"])
check_against_onnxruntime(parallel, 4, np.random.default_rng(0))
print(*(device.platform for device in opencl_devices()), sep="\\n")
parallel.close()
"""
_POCL, _INTEL = "Portable Computing Language", "Intel(R) OpenCL"


def two_opencl_devices(run_python, **env):
    folders = Path(__file__).parents[2], Path(__file__).parent
    process = run_python(_TWO_DEVICES, *folders, env={"TVMFLOW_OPENCL_DEVICE": "", **env})
    assert process.returncode == 0, process.stderr
    return sorted(process.stdout.splitlines())


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.skipif(not POCL.path, reason="Debian's PoCL is not installed")
def test_two_opencl_devices_of_a_driver(run_python):
    # It gives as many devices of the CPU as are named, which share their threads.
    env = POCL.variables(POCL.path)
    assert two_opencl_devices(run_python, **env, POCL_DEVICES="pthread pthread") == [_POCL, _POCL]


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.skipif(
    not (POCL.path and INTEL.path and system_loader()),
    reason="the loader of drivers, PoCL and Intel's runtime are not all installed",
)
def test_two_opencl_devices_of_two_drivers(run_python, tmp_path):
    for driver in (POCL, INTEL):
        (tmp_path / f"{driver.name}.icd").write_text(f"{driver.path}\n")
    env = {"TVMFLOW_OPENCL_LIBRARY": system_loader(), "OCL_ICD_VENDORS": f"{tmp_path}/"}
    assert two_opencl_devices(run_python, **env) == [_INTEL, _POCL]


# ---- A farm ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


@pytest.fixture(scope="module")
def servers(farm):
    """Sessions with two servers."""
    for _ in range(2):
        farm.serve("pair")
    return [farm.session("pair") for _ in range(2)]


def remote(path, servers, device_index=0):
    return [
        RemoteModule(tvmflow.load(path), session, address, device_index)
        for address, session in servers
    ]


@pytest.mark.onnxruntime
def test_two_servers_share_a_batch(servers, compiled, tmp_path, rng):
    assert servers[0][0] != servers[1][0]
    with closing(DataParallel(remote(compiled / "2.so", servers), ["x/in"])) as parallel:
        check_against_onnxruntime(parallel, 4, rng)
    # The same servers, with weights in a sidecar.
    shapes = {"x/in": (3, 3, 8, 8)}
    with tvmflow.compile(tiny_model(), target="llvm", shapes=shapes, embed_limit_bytes=0) as module:
        path = module.save(tmp_path / "apart.so")
    with closing(DataParallel(remote(path, servers), ["x/in"])) as parallel:
        check_against_onnxruntime(parallel, 6, rng)


def test_a_server_tells_why_it_does_not_open_a_module(servers, compiled, tmp_path):
    with pytest.raises(FarmError, match="there is no llvm device 3") as caught:
        remote(compiled / "2.so", servers, device_index=3)[0].open()
    assert str(servers[0][0]) in caught.value.message
    assert "tvmflow devices" in caught.value.remedy
    # Only opening a module compares its code.
    damaged = tmp_path / "2.so"
    content = bytearray((compiled / "2.so").read_bytes())
    content[elf.read_library(compiled / "2.so").sections[".text"].offset] ^= 1
    damaged.write_bytes(content)
    (module, _) = remote(damaged, servers)
    with pytest.raises(FarmError, match=f"Opening {damaged} on the server at .* not what was"):
        module.open()


@pytest.mark.onnxruntime
def test_modules_of_one_name_do_not_mix_on_a_server(servers, tmp_path, rng):
    _, session = servers[0]
    folder = Path(session.get_function("tvm.rpc.server.workpath")("."))
    paths = []
    for batch in (2, 3):
        shapes = {"x/in": (batch, 3, 8, 8)}
        (tmp_path / str(batch)).mkdir()
        with tvmflow.compile(
            tiny_model(), target="llvm", shapes=shapes, embed_limit_bytes=0
        ) as module:
            paths.append(module.save(tmp_path / str(batch) / "net.so"))
    first, second = (remote(path, servers)[0] for path in paths)
    # The first is still open when the other file of its name comes.
    check_against_onnxruntime(first, 2, rng)
    check_against_onnxruntime(second, 3, rng)
    assert list(folder.iterdir()) == []
    second.close()


def test_a_server_without_room_is_told(servers, compiled):
    address, session = servers[0]

    class Full:
        """A server's disk that takes 5000 bytes of a file, which TVM does not notice."""

        def upload(self, path):
            session.upload(bytearray(Path(path).read_bytes()[:5000]), Path(path).name)

        def __getattr__(self, name):
            return getattr(session, name)

    module = RemoteModule(tvmflow.load(compiled / "2.so"), Full(), address, 0)
    with pytest.raises(FarmError, match=r"5000 of the \d+ bytes of 2.so were kept") as caught:
        module.open()
    assert "Free space" in caught.value.remedy


def test_inputs_are_checked_before_they_are_sent(servers, compiled, rng):
    with closing(remote(compiled / "2.so", servers)[0]) as module:
        with pytest.raises(InputError, match="x/in"):
            module(values(5, rng))
        with pytest.raises(FarmError, match="Profiling"):
            module.profile(values(2, rng))


def test_a_server_that_ends_is_an_error(farm, compiled, rng):
    address = farm.serve("lost")
    (module,) = remote(compiled / "2.so", [farm.session("lost")])
    module(values(2, rng))
    farm.send(address, signal.SIGKILL)
    with pytest.raises(FarmError, match=f"Running .* on the server at {address} failed"):
        module(values(2, rng))
    module.close()
