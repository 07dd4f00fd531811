"""``tvmflow precompile``: binaries for a library's first start, from this machine or a farm."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import runtime_build
from support.commands import output
from support.fake_opencl import build_fake
from support.farms import LOCAL, PATIENCE_S, STOCK, Farm, eventually, free_port
from support.forks import run_command
from support.mock_library import foreign_library
from support.operators import single
from support.small_plans import add_plan
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.errors import ArtifactError, DeviceError
from tvmflow.module.standalone import programs
from tvmflow.module.standalone.precompile import Source, start_here
from tvmflow.module.standalone.precompile import precompile as precompile_here
from tvmflow.runtime.tracker import Tracker

pytestmark = [pytest.mark.opencl, pytest.mark.slow]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return the tiny network as a library with a sidecar of weights."""
    folder = tmp_path_factory.mktemp("made")
    onnx.save(tiny_model(), folder / "tiny.onnx")
    options = "--device cpu --shape x/in=1,3,8,8 --standalone --embed-limit 0 -o libtiny.so"
    command = [sys.executable, "-m", "tvmflow", "compile", "tiny.onnx", *options.split()]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "libtiny.so"


@pytest.fixture
def library(made, tmp_path, monkeypatch) -> Path:
    """Return a copy of the library, and hide all other places with binaries."""
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    for path in made.parent.glob("libtiny.so*"):
        shutil.copy(path, tmp_path)
    return tmp_path / made.name


def precompile(library: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200"}
    return run_command(["precompile", str(library), *options], env, timeout=2 * PATIENCE_S)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    text = " ".join(done.stderr.split())
    assert done.returncode == 2, text
    assert "Traceback" not in text
    for word in words:
        assert word in text


def origins(library: Path) -> tuple[int, int]:
    """Return how many programs a start compiles and how many are shipped; check the results."""
    rng = np.random.default_rng(3)
    with tvmflow.load(library) as module:
        values = {i.name: rng.normal(size=i.shape).astype(i.dtype) for i in module.inputs}
        module(values)
        assert module.self_test().tolerance_used < 1
        about = module.describe()
    return about["programs_built"], about["programs_shipped"]


def test_the_next_start_takes_what_was_shipped(library):
    assert origins(library) == (1, 0)
    done = precompile(library, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (device,) = found["devices"]
    assert (found["added"], found["replaced"], found["failed"]) == (1, 0, [])
    assert device["programs"] == 1
    assert min(device["start_with_ms"], device["start_without_ms"]) > 0
    (program,) = programs.read(programs.sidecar_path(library))
    assert len(program.binary) == device["bytes"]
    assert {device[name] for name in programs.OWNER} < set(program.description.values())
    assert origins(library) == (0, 1)
    assert not list(library.parent.glob(".*.tmp"))

    # The second run adds nothing.  If the file is damaged, its intact part is kept.
    path = programs.sidecar_path(library)
    other = program._replace(key=b"k" * 32)
    programs.update(path, [other])
    path.write_bytes(path.read_bytes()[:-1])
    done = precompile(library)
    assert done.returncode == 0, done.stderr
    assert "The file was damaged" in done.stderr
    assert "1 replaced" in done.stderr
    for word in (device["device"], "start without", "this machine"):
        assert word in done.stdout
    assert [p.key for p in programs.read(path)] == [program.key]
    assert origins(library) == (0, 1)


def test_saving_copies_the_file_and_others_take_no_notice_of_it(library, made, tmp_path):
    assert precompile(library).returncode == 0
    saved = tvmflow.load(library).save(tmp_path / "libsaved.so")
    assert origins(saved) == (0, 1)
    # The sidecar of another network is found, but not used.
    other = _other_library(tmp_path)
    shutil.copy(programs.sidecar_path(library), programs.sidecar_path(other))
    assert origins(other)[1] == 0
    assert programs.summary(other, Source.open(other).plan.source_digest)["of_other_sources"] == 1
    # A module without such a file keeps that of the library that it replaces.
    tvmflow.load(made).save(saved)
    assert programs.sidecar_path(saved).exists()
    assert origins(saved) == (0, 1)


def _other_library(folder: Path) -> Path:
    options = {"device": "cpu", "format": "standalone", "file_name": "libother.so"}
    with tvmflow.compile(single("Sigmoid", [(1, 5, 3)]), **options) as module:
        return module.save(folder / "libother.so")


def test_inspect_tells_whose_binaries_there_are(library):
    source = Source.open(library).plan.source_digest
    assert programs.summary(library, source) is None
    owners = [dict.fromkeys(programs.OWNER, name) for name in ("a", "b")]
    written = [
        programs.Program(bytes([n]) * 32, {**owner, programs.SOURCE: s}, bytes(10 + n))
        for n, (owner, s) in enumerate([(owners[0], source), (owners[1], source)])
    ]
    programs.update(programs.sidecar_path(library), written)
    command = (sys.executable, "-m", "tvmflow", "inspect", library)
    assert "for 2 devices in libtiny.so.programs" in " ".join(output(*command).split())
    about = json.loads(output(*command, "--json"))["precompiled"]
    assert [(d["device"], d["bytes"]) for d in about["devices"]] == [("a", 10), ("b", 11)]


# ---- A farm ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def farm(tmp_path_factory):
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


def at(farm: Farm, key: str) -> tuple[str, ...]:
    return "--tracker", str(farm.address), "--key", key


@pytest.fixture(scope="module")
def three(farm) -> tuple[str, str, str]:
    """Return servers of the key ``three``, the last one a plain TVM server."""
    servers = farm.serve("three"), farm.serve("three"), farm.serve("three", "-m", STOCK)
    first, second, stock = map(str, servers)
    return first, second, stock


def test_every_free_server_of_a_key_gives_its_binaries(farm, three, library):
    *servers, stock = three
    done = precompile(library, *at(farm, "three"), "--json")
    refused(done, "returned the binaries of 2 of 3 devices", "is no server of tvmflow", stock)
    found = json.loads(done.stdout)
    assert {device["where"] for device in found["devices"]} == set(servers)
    assert [failure["where"] for failure in found["failed"]] == [stock]
    # Both have the same device and driver.
    assert (found["added"], found["replaced"]) == (1, 1)
    assert origins(library) == (0, 1)


def test_the_farm_s_secret_is_taken(farm, library, tmp_path):
    """A wrong secret is refused before any server is asked."""
    secret = tmp_path / "farm.secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o644)
    done = precompile(library, *at(farm, "three"), "--secret-file", str(secret))
    refused(done, "other users of this machine have access")


def test_a_server_that_others_use_is_told(farm, three, library):
    eventually(lambda: free(farm, "three") == len(three))
    address, session = farm.session("three")
    # Remove the server that could answer.
    while str(address) == three[-1]:
        address, session = farm.session("three")
    done = precompile(library, *at(farm, "three"), "--json")
    refused(done, "1 of 3 devices", f"{address}: It was busy.")
    del session
    (device,) = json.loads(done.stdout)["devices"]
    assert device["where"] in {*three[:2]} - {str(address)}
    assert origins(library) == (0, 1)


def free(farm: Farm, key: str) -> int:
    with Tracker(farm.address) as tracker:
        return tracker.summary().queues[key].free


def test_a_server_of_another_architecture_is_told(farm, library):
    from tvmflow.module import elf

    farm.serve("board")
    content = bytearray(library.read_bytes())
    native = int.from_bytes(content[18:20], "little")
    content[18:20] = next(m for m in elf.MACHINES if m != native).to_bytes(2, "little")
    library.write_bytes(content)
    done = precompile(library, *at(farm, "board"))
    refused(done, "0 of 1 devices", "but the library is for", "compile it with --host")
    assert not programs.sidecar_path(library).exists()
    refused(precompile(library), "its host code is for")


def test_keys_and_trackers_that_are_not_there(farm, library):
    refused(precompile(library, *at(farm, "nobody")), "Nobody serves the key 'nobody'")
    nowhere = f"{LOCAL}:{free_port()}"
    done = precompile(library, "--tracker", nowhere, "--key", "k")
    refused(done, f"The tracker at {nowhere} cannot be reached")
    refused(precompile(library, "--key", "k"), "go together")


# ---- What is refused before anything is started ------------------------------------------------


def test_only_whole_standalone_libraries_are_taken(library, tmp_path):
    other = foreign_library(tmp_path / "libother.so")
    with pytest.raises(ArtifactError, match="a standalone library was expected"):
        Source.open(other)
    refused(precompile(tmp_path / "none.so"), "No such file")
    library.with_name("libtiny.so.weights").unlink()
    with pytest.raises(ArtifactError, match="its weights are neither"):
        Source.open(library)


def test_a_folder_or_file_that_cannot_be_written(library):
    programs.sidecar_path(library).write_bytes(b"something else")
    with pytest.raises(ArtifactError, match="Reading the binaries in"):
        Source.open(library)
    programs.sidecar_path(library).unlink()
    programs.sidecar_path(library).mkdir()
    with pytest.raises(ArtifactError, match="it is a folder"):
        Source.open(library)


def test_a_folder_that_is_read_only(library, monkeypatch):
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    # Permissions would not do: they do not bind every user.
    monkeypatch.setattr("tvmflow.module.files.tempfile.mkdtemp", refuse)
    with pytest.raises(ArtifactError, match="Permission denied") as caught:
        Source.open(library)
    assert "permissions of the folder" in caught.value.remedy


def test_a_full_disk_is_no_fault_of_the_driver(library, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArtifactError, match=r"libtiny\.so\.programs failed: No space left"):
        Source.open(library)


def test_a_device_that_is_not_there(library):
    done = precompile(library, "--device-index", "99")
    refused(done, "libtiny.so failed", "device_index is 99, expected less than")
    assert ".tmp" not in done.stderr
    assert not programs.sidecar_path(library).exists()


# ---- Drivers -----------------------------------------------------------------------------------


@pytest.fixture
def faked(tmp_path, monkeypatch) -> Source:
    """Return a library of one kernel, and a driver that the environment controls."""
    monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", str(build_fake(tmp_path)))
    plan, _ = add_plan()
    library = runtime_build.link(tmp_path / "libadd.so", plan.encode(), plan.weights())
    return Source.open(library)


def test_drivers_that_compile_at_the_first_launch_have_had_one(faked, monkeypatch):
    monkeypatch.setenv("FAKE_OPENCL_BINARIES", "late")
    monkeypatch.setenv("FAKE_OPENCL_PLATFORM_NAME", "Portable Computing Language")
    monkeypatch.setenv("FAKE_OPENCL_DRIVER", "3.1")
    found = precompile_here(faked, start_here(0))
    assert len(found.programs) == 1
    assert found.binary_bytes == len(found.programs[0].binary)
    assert not programs.sidecar_path(faked.library).exists()


@pytest.mark.parametrize(
    ("binaries", "said"),
    [("none", "its driver gave none"), ("refuse", "took 0 of the 1 binaries")],
)
def test_drivers_without_binaries_of_use_are_told(faked, monkeypatch, binaries, said):
    monkeypatch.setenv("FAKE_OPENCL_BINARIES", binaries)
    with pytest.raises(DeviceError, match=said) as caught:
        precompile_here(faked, start_here(0))
    assert "Update the driver" in caught.value.remedy
    assert not list(faked.library.parent.glob(".*.tmp"))
