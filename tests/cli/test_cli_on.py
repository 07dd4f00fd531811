"""Commands with ``--on``, for an agent of this machine with a fake driver."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.fake_opencl import build_fake
from support.onnx_models import model_of
from support.small_plans import add_plan

from tvmflow.agent import executable
from tvmflow.devices.host import Host
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.link import link_library

COUNT = 64
ANDROID, OTHER = "android-x64", "linux-arm64"
if Host.native().architecture != "x86_64":
    ANDROID, OTHER = "android-arm64", "linux-x64"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Return libraries of ``y = 2 * x + w``, by what is special about them."""
    found = {}

    def link(name, host="native", embed=True, needs=()):
        plan, w = add_plan()
        plan.test([(3, 1.0, 1.0)], {0: 2 + w})
        plan.rows[Section.EXTENSIONS] += needs
        parsed = Host.native() if host == "native" else Host.parse(host)
        folder = tmp_path_factory.mktemp(name)
        (folder / "weights").write_bytes(plan.weights())
        found[name] = folder / "libadd.so"
        link_library(plan.encode(parsed), folder / "weights", parsed, found[name], embed=embed)

    link("usual")
    link("sidecar", embed=False)
    link("android", host=ANDROID)
    link("other", host=OTHER)
    link("fp64", needs=["cl_khr_fp64"])
    return found


@pytest.fixture(autouse=True)
def driver(tmp_path, monkeypatch):
    """Let agents use the fake driver, and a folder of the test."""
    native = executable.agent_executable(Host.native())
    monkeypatch.setattr("tvmflow.agent.transports.agent_executable", lambda host: native)
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", str(build_fake(tmp_path)))


@pytest.fixture
def library(libraries, tmp_path):
    """Return the usual library, in the test's folder."""
    return Path(shutil.copy(libraries["usual"], tmp_path))


@pytest.fixture
def twice(tmp_path):
    """Return a function that writes this network as an ONNX model, with an error in its weights."""

    def write(error=0.0):
        constants = {"k": np.float32(2), "w": add_plan()[1] + np.float32(error)}
        path = tmp_path / "twice.onnx"
        onnx.save(
            model_of("t = Mul(x, k) y = Add(t, w)", {"x": (COUNT,)}, constants=constants), path
        )
        return path

    return write


# -- what they do ----------------------------------------------------------------------------------


def test_devices_are_listed_and_cleaned(cli, tmp_path, monkeypatch):
    about = cli("devices", "--on", "local", "--json").succeeded().json
    assert [device["name"] for device in about["opencl"]] == ["Fake GPU"]
    assert about["sensors"]["time_ns"] > 0
    text = cli("devices", "--on", "local").succeeded().stdout
    assert "Fake GPU" in text
    assert "up to 16384×16384 texels" in text
    folder = tmp_path / "cache" / "agent"
    assert folder.is_dir()
    assert cli("devices", "--clean", "--on", "local", "--json").succeeded().json == {
        "removed": str(folder),
        "on": "local",
    }
    assert not folder.exists()
    monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", str(tmp_path / "none.so"))
    listed = cli("devices", "--on", "local").succeeded()
    assert "No OpenCL device was found there." in listed.stderr
    assert "none.so" in listed.stderr


def test_a_library_runs_there(cli, library, tmp_path):
    x = np.random.default_rng(4).normal(size=COUNT).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    cli("run", library, "--inputs", "in.npz", "--outputs", "out.npz", "--on", "local").succeeded()
    expected = 2 * x + add_plan()[1]
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], expected, rtol=1e-6)
    random = cli("run", library, "--random-seed", "0", "--on", "local", "--json").succeeded().json
    assert random["outputs"][0]["shape"] == [COUNT]


def test_results_are_compared(cli, library, twice, monkeypatch):
    right = cli("verify", twice(), library, "--on", "local", "--json").succeeded().json
    assert right["passed"]
    cli("verify", twice(0.1), library, "--on", "local").refused("'y'", status=1)
    # Launches of this driver do nothing.
    monkeypatch.setenv("FAKE_OPENCL_STUB", "1")
    cli("verify", twice(), library, "--on", "local").refused("'y'", status=1)


def test_calls_and_kernels_are_measured(cli, library):
    command = ("bench", library, "--on", "local", "--runs", "7")
    about = cli(*command, "--kernels", "--json").succeeded().json
    assert (about["runs"], about["backend"], about["device"]) == (7, "opencl", "Fake GPU")
    assert 0 < about["min_ms"] <= about["median_ms"] <= about["max_ms"]
    assert [kernel["kernel"] for kernel in about["kernels"]] == ["add"]
    assert about["conditions"]["before"]["time_ns"] < about["conditions"]["after"]["time_ns"]
    assert "7 runs after 5 that are not counted" in cli(*command).succeeded().stdout


def test_a_device_says_what_it_would_choose(cli, library, monkeypatch):
    about = cli("inspect", library, "--on", "local", "--json").succeeded().json
    chosen = about["on_device"]
    assert (chosen["backend"], chosen["device"]["name"]) == ("opencl", "Fake GPU")
    assert "On local" in cli("inspect", library, "--on", "local").succeeded().stdout


def test_programs_of_a_device_are_shipped(cli, library):
    about = cli("precompile", library, "--on", "local", "--json").succeeded().json
    (device,) = about["devices"]
    assert (device["where"], device["device"], device["programs"]) == ("local", "Fake GPU", 1)
    assert about["added"] == 1
    shipped = cli("inspect", library, "--on", "local", "--json").succeeded().json["on_device"]
    assert (shipped["programs_built"], shipped["programs_shipped"]) == (0, 1)
    assert "1 replaced" in cli("precompile", library, "--on", "local").succeeded().stderr


def test_weights_are_checked_unless_that_is_switched_off(cli, libraries, tmp_path):
    library = shutil.copy(libraries["sidecar"], tmp_path)
    (weights,) = libraries["sidecar"].parent.glob("libadd.so.*")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    (tmp_path / weights.name).write_bytes(content)
    for command in (("run", library, "--random-seed", "0"), ("bench", library, "--runs", "3")):
        cli(*command, "--on", "local").refused("weights")
        cli(*command, "--on", "local", "--no-check-weights").succeeded()


# -- refusals --------------------------------------------------------------------------------------

LIBRARY_COMMANDS = [
    ("run", "FILE", "--random-seed", "0"),
    ("verify", "twice.onnx", "FILE"),
    ("bench", "FILE"),
    ("inspect", "FILE"),
    ("precompile", "FILE"),
]


def of(command, library):
    return [library if word == "FILE" else word for word in command]


@pytest.mark.parametrize("command", LIBRARY_COMMANDS, ids=lambda command: command[0])
def test_libraries_that_a_device_cannot_run(cli, libraries, twice, tmp_path, command):
    twice()

    def refused(name, *words, more=()):
        result = cli(*of(command, libraries[name]), "--on", "local", *more)
        result.refused(*words)

    not_sent = "libadd.so was not sent to Fake GPU: "
    fits = f"--host {executable.host_name(Host.native())}"
    refused("android", not_sent + "it is for Android, and the device has Linux.", fits)
    architectures = [Host.parse(OTHER).architecture, Host.native().architecture]
    refused("other", not_sent + "it is for {}, and the device is {}.".format(*architectures), fits)
    lacks = "it needs cl_khr_fp64, which Fake GPU lacks."
    refused("fp64", not_sent + lacks, "--device FILE.json")
    refused("usual", "has no OpenCL device 1", more=("--device-index", "1"))
    assert not list((tmp_path / "cache" / "agent" / "blobs").iterdir())


@pytest.mark.parametrize("command", LIBRARY_COMMANDS, ids=lambda command: command[0])
def test_modules_that_need_tvm(cli, twice, compiled, command):
    twice()
    cli(*of(command, compiled), "--on", "local").refused("--standalone")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("phone", ["The place 'phone' is not known; local, adb,", "--on adb"]),
        ("ssh:", ["The place 'ssh:' is not known"]),
        ("ssh:-oProxyCommand=x", ["is not known"]),
        ("tcp:", ["The place 'tcp:' is not known"]),
        ("tcp:127.0.0.1", ["The address '127.0.0.1' was not understood: HOST:PORT"]),
        ("tcp:127.0.0.1:0", ["was not understood"]),
    ],
)
def test_places_that_are_none(cli, library, place, words):
    for command in (["devices"], ["bench", library], ["tune", "x.onnx", "--journal", "j"]):
        cli(*command, "--on", place).refused(*words)


def test_an_address_where_nobody_listens(cli):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    place = f"tcp:127.0.0.1:{port}"
    error = cli("devices", "--on", place, "--json")
    assert error.status == 2
    assert json.loads(error.stdout)["error"]["type"] == "AgentError"
    cli("devices", "--on", place).refused("cannot be reached: Connection refused")
    cli("devices", "--on", place, "--secret-file", "none").refused("none")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["bench", "twice.onnx", "--target", "cuda"], ["the target cuda is not possible"]),
        (["bench", "FILE", "--dtype", "fp16"], ["are for ONNX models"]),
        (["bench", "FILE", "--threads", "1"], ["--threads", "do not go with --on"]),
        (["bench", "FILE", "FILE"], ["2 modules are measured with --scaling only"]),
        (["tune", "twice.onnx", "--journal", "j", "--target", "llvm"], ["llvm"]),
        (["inspect", "FILE", "--host-abi"], ["--host-abi does not go with --on"]),
        (["precompile", "FILE", "--key", "a"], ["do not go with --on"]),
        (["devices", "--show", "a.json"], ["--show goes without --on"]),
    ],
)
def test_options_that_do_not_go_together(cli, library, twice, command, words):
    twice()
    cli(*of(command, library), "--on", "local").refused(*words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 99}, ["has version 99; this tvmflow reads 1", "tvmflow probe"]),
        (
            {"facts": {"max_group_size": {"value": 0, "origin": "reported"}}},
            ["max_group_size is 0"],
        ),
        ({"preset": "abacus"}, ["its preset is 'abacus'"]),
    ],
)
def test_device_files_that_are_impossible(cli, twice, tmp_path, changes, words):
    about = {"format": "tvmflow device", "version": 1, "name": "a", "preset": "mali", **changes}
    (tmp_path / "a.json").write_text(json.dumps(about))
    for command in (["bench", twice()], ["tune", twice(), "--journal", "j"]):
        cli(*command, "--device", "a.json", "--on", "local").refused("a.json", *words)
