"""Standalone libraries loaded by Python."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support.commands import run
from support.mock_library import BINDINGS, C_COMPILER, build_mock, foreign_library, mock_plan
from support.operators import build

import tvmflow
from tvmflow.errors import (
    ArtifactError,
    DeviceError,
    InputError,
    KernelBuildError,
    VerificationError,
)
from tvmflow.module import elf
from tvmflow.module.standalone import binding
from tvmflow.module.standalone.format import HEADER
from tvmflow.module.standalone.loaded import StandaloneModule
from tvmflow.module.standalone.read import is_standalone

A = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
B = np.array([[0.5, -2, 7], [1e6, 0, -6]], np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TVMFLOW_OPENCL_LIBRARY", raising=False)


@pytest.fixture
def failing(mock, monkeypatch):
    """Return a function that returns a module in which one function fails."""

    def fail(how):
        monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", how)
        return tvmflow.load(mock)

    return fail


def test_it_is_a_module_like_others(mock):
    with tvmflow.load(mock, device=2) as module:
        assert isinstance(module, StandaloneModule)
        assert isinstance(module, tvmflow.Module)
        assert [str(info) for info in module.inputs] == ["a: float32[2, 3]", "b/𝄞: float32[2, 3]"]
        assert [str(info) for info in module.outputs] == ["sum: float32[2, 3]"]
        assert (module.target, module.metadata["name"]) == ("opencl", "sum")
        assert (
            repr(module) == "<tvmflow.Module sum (opencl): a: float32[2, 3], b/𝄞: float32[2, 3] "
            "-> sum: float32[2, 3]>"
        )
        (found,) = module(A, B)
        np.testing.assert_array_equal(found, A + B)
        np.testing.assert_array_equal(module({"b/𝄞": A, "a": A})["sum"], A + A)
        np.testing.assert_array_equal(module.run([B, A])["sum"], A + B)
        np.testing.assert_array_equal(found, A + B)  # not overwritten


def test_two_libraries_in_one_process(mock, mock_tenfold):
    first, second = tvmflow.load(mock), tvmflow.load(mock_tenfold)
    np.testing.assert_array_equal(second(A, B)[0], 10 * (A + B))
    np.testing.assert_array_equal(first(A, B)[0], A + B)


def test_neither_tvm_nor_the_plugin_is_imported(mock, run_python):
    process = run_python(
        "import sys, tvmflow, numpy as np\n"
        "with tvmflow.load(sys.argv[1]) as module:\n"
        "    a = np.ones((2, 3), np.float32)\n"
        "    print(module(a, a)['sum'].sum(), module.self_test().compared)\n"
        "print(*(m for m in ('tvm', 'tvm_ffi', 'onnx') if m in sys.modules))\n"
        "print('libtvmflow_opencl' in open('/proc/self/maps').read())",
        mock,
    )
    assert process.stdout.split() == ["12.0", "6", "False"], process.stdout + process.stderr


@pytest.mark.parametrize(
    "change",
    [np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda a: a.astype(">f4")],
    ids=["transposed", "strided", "big-endian"],
)
def test_arrays_in_any_memory_layout(mock, change):
    np.testing.assert_array_equal(tvmflow.load(mock)(change(A), change(B))[0], A + B)


def test_dlpack_tensors_go_in(mock):
    class Tensor:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    module = tvmflow.load(mock)
    np.testing.assert_array_equal(module(Tensor(A), Tensor(B))[0], A + B)

    class Elsewhere(Tensor):
        def __init__(self, array):
            super().__init__(array)
            self.__dlpack__ = self.refuse

        def refuse(self, **_):
            raise BufferError("it is on a GPU")

    with pytest.raises(InputError, match="'a' cannot be shared through DLPack: it is on a GPU"):
        module(Elsewhere(A), B)
    with pytest.raises(InputError, match="copies its outputs"):
        module.run([A, B], output="dlpack")


def test_wrong_inputs(mock):
    module = tvmflow.load(mock)
    with pytest.raises(InputError, match=r"has shape \[3, 2\]"):
        module(A.T, B)
    with pytest.raises(InputError, match="has dtype float64"):
        module(A.astype(np.float64), B)
    with pytest.raises(InputError, match="1 of 2 inputs were not given"):
        module(A)
    with pytest.raises(InputError, match="no input 'c'"):
        module(A, c=B)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((1, InputError), (2, DeviceError), (3, DeviceError), (4, KernelBuildError)),
        *((5, DeviceError), (6, ArtifactError), (7, DeviceError), (99, DeviceError)),
    ],
)
def test_statuses_are_our_errors(failing, mock, status, kind):
    with pytest.raises(kind) as caught:
        failing(f"fail create {status}").open()
    error = caught.value
    assert type(error) is kind
    assert error.message == (
        f"Opening {mock} failed: Creating the model failed: status {status} was asked for; naïve 𝄞."
    )
    assert (error.remedy, error.details) == ("Ask for 0.", "line 1\nline 2")
    with pytest.raises(kind, match=f"Running {mock} failed: Running failed: status {status}"):
        failing(f"fail run {status}")(A, B)


def test_the_self_test(mock, failing):
    result = tvmflow.load(mock).self_test()
    assert (result.largest_error, result.tolerance_used, result.compared) == (0.25, 0.5, 6)
    with pytest.raises(VerificationError, match=r"Checking .* failed: The self-test failed"):
        failing("fail test 9").self_test()
    with pytest.raises(DeviceError):
        failing("fail test 7").self_test()


@pytest.mark.opencl
@pytest.mark.onnxruntime
def test_a_network_without_inputs_tests_itself(rng):
    k = rng.standard_normal((2, 3)).astype(np.float32)
    model = build([helper.make_node("Relu", ["k"], ["y"])], {}, ["y"], {"k": k})
    with tvmflow.compile(model, target="opencl", format="standalone") as module:
        np.testing.assert_array_equal(module()["y"], np.maximum(k, 0))
        assert module.self_test().compared == 6


def test_the_next_library_is_tried_where_one_has_no_device(mock, monkeypatch):
    tried = []

    def these(*libraries):
        def generate():
            for library in libraries:
                tried.append(library)
                yield library

        monkeypatch.setattr("tvmflow.module.standalone.binding.opencl_libraries", generate)

    these("fail create 2", "fail create 2 again", None, "never")
    with tvmflow.load(mock) as module:
        np.testing.assert_array_equal(module(A, B)[0], A + B)
    assert tried == ["fail create 2", "fail create 2 again", None]
    these("fail create 2", "fail create 4", None)
    with pytest.raises(KernelBuildError, match="status 4"):
        tvmflow.load(mock).open()
    these("fail create 2")
    with pytest.raises(DeviceError, match="status 2"):
        tvmflow.load(mock).open()


@pytest.mark.parametrize("index", [-1, 1 << 32, "cpu"])
def test_what_is_no_index_of_a_device(mock, index):
    with pytest.raises(DeviceError, match=f"there is no opencl device {index} on"):
        tvmflow.load(mock, device=index)(A, B)


def test_profile_gives_the_times_and_sizes_of_kernels(mock):
    times = tvmflow.load(mock).profile([A, B], runs=3)
    assert [(t.kernel, t.median_us, t.p90_us, t.clock) for t in times] == [
        ("add_kernel", 3.0, 3.0, "device"),
        ("scale_kernel", 1.5, 1.5, "device"),
    ]
    assert (times[0].global_size, times[0].local_size) == ((8, 2), (4, 1))


def test_closing_unloads_the_library(mock, tmp_path):
    path = tmp_path / "libclosed.so"
    shutil.copy(mock, path)

    def mapped():
        return str(path) in Path("/proc/self/maps").read_text()

    module = tvmflow.load(path)
    assert not mapped()  # loading does not open the library
    module(A, B)
    assert mapped()
    module.close()
    assert not mapped()
    module.close()
    np.testing.assert_array_equal(module(A, B)[0], A + B)


def test_saving_copies_the_weights_beside_it(mock, tmp_path):
    path = tmp_path / "libnet.so"
    shutil.copy(mock, path)
    path.with_name("libnet.so.weights").write_bytes(b"weights")
    saved = tvmflow.load(path).save(tmp_path / "other.so")
    assert (tmp_path / "other.so.weights").read_bytes() == b"weights"
    np.testing.assert_array_equal(tvmflow.load(saved)(A, B)[0], A + B)
    saved.unlink()
    gone = tvmflow.load(path)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"its file .* is gone"):
        gone(A, B)


def test_a_damaged_plan_is_not_taken(mock, tmp_path):
    content = bytearray(mock.read_bytes())
    content[content.index(mock_plan()) + HEADER.itemsize + 5] ^= 1
    damaged = tmp_path / "libdamaged.so"
    damaged.write_bytes(content)
    with pytest.raises(ArtifactError, match="cut short or damaged"):
        tvmflow.load(damaged)
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="cut short or damaged"):
        tvmflow.load(damaged)


def test_a_plan_of_another_format(mock, tmp_path):
    content = bytearray(mock.read_bytes())
    content[content.index(mock_plan()) + 8] = 77
    newer = tmp_path / "libnewer.so"
    newer.write_bytes(content)
    with pytest.raises(ArtifactError, match="no plan that this tvmflow reads"):
        tvmflow.load(newer)


def test_a_library_of_another_machine(mock, tmp_path):
    content = bytearray(mock.read_bytes())
    native = int.from_bytes(content[18:20], "little")
    content[18:20] = (next(m for m in elf.MACHINES if m != native)).to_bytes(2, "little")
    foreign = tmp_path / "libforeign.so"
    foreign.write_bytes(content)
    module = tvmflow.load(foreign)  # only to inspect it
    assert module.inputs[0].name == "a"
    with pytest.raises(ArtifactError, match="its host code is for") as caught, module:
        pass
    assert "call `save` without `with`" in caught.value.remedy
    assert module.save(tmp_path / "libsaved.so").read_bytes() == content


def test_only_what_exports_the_interface_is_one(mock, tmp_path):
    stripped = tmp_path / "libstripped.so"
    run("strip", "--strip-unneeded", "-o", stripped, mock)
    assert is_standalone(mock)
    assert is_standalone(stripped)
    np.testing.assert_array_equal(tvmflow.load(stripped)(A, B)[0], A + B)
    other = foreign_library(tmp_path / "libother.so")
    assert not is_standalone(other)
    assert not is_standalone(tmp_path / "none.so")
    assert not is_standalone(tmp_path)
    with pytest.raises(ArtifactError, match="without a description by tvmflow"):
        tvmflow.load(other)


def test_a_library_of_an_older_interface(tmp_path):
    older = build_mock(tmp_path / "libolder.so", flags=["-DVERSION=0"])
    with pytest.raises(ArtifactError, match="version 0 of the C interface"):
        tvmflow.load(older).open()


def test_ctypes_structures_have_the_layout_that_c_gives_them(tmp_path):
    kernel = binding.MeasuredKernel
    structures = {"options": binding.Options, "kernel": kernel, "test": binding.Test}
    structures |= {"image": binding.ImageData, "memory_info": binding.MemoryInfo}
    checks = []
    for name, structure in structures.items():
        values = {f"sizeof(tvmflow_{name})": ctypes.sizeof(structure)}
        values |= {
            f"offsetof(tvmflow_{name}, {field})": getattr(structure, field).offset
            for field, _ in structure._fields_
        }
        checks += [f'_Static_assert({c} == {value}, "{c}");' for c, value in values.items()]
    source = tmp_path / "layout.c"
    source.write_text('#include "tvmflow.h"\n' + "\n".join(checks) + "\n")
    run(*C_COMPILER, "-fsyntax-only", f"-I{BINDINGS}", source)
    header = (BINDINGS / "tvmflow.h").read_text(encoding="utf-8")
    assert f"TVMFLOW_API_VERSION {binding.API_VERSION}\n" in header
    assert f"TVMFLOW_ERROR_NO_OPENCL = {binding.NO_OPENCL}," in header
    assert re.search(rf"TVMFLOW_PROFILE = {binding.PROFILE},", header)


def test_pocl_is_asked_for_one_variant_of_each_kernel(monkeypatch):
    from tvmflow.module.standalone.binding import opencl_libraries

    name = "POCL_WORK_GROUP_SPECIALIZATION"
    monkeypatch.setenv(name, "1")
    next(opencl_libraries())
    assert os.environ[name] == "1"  # the user's choice
    monkeypatch.delenv(name)
    next(opencl_libraries())
    assert os.environ[name] == "0"


def test_built_programs_are_kept_in_a_folder_of_their_own(mock, tmp_path, monkeypatch):
    from tvmflow.module.standalone.binding import cache_folder

    assert cache_folder() == str(tmp_path / "cache" / "standalone")
    assert (tmp_path / "cache" / "standalone").is_dir()
    monkeypatch.delenv("TVMFLOW_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == str(tmp_path / "xdg" / "tvmflow" / "programs" / "standalone")
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    assert cache_folder() is None
