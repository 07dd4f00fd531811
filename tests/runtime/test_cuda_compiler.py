"""Compilation of kernels when a CUDA module is loaded; a compiler suffices, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tvm_ffi

from tvmflow.errors import DeviceError, KernelBuildError
from tvmflow.runtime import cuda_compiler, plugin

CHIP = "sm_80"
KERNEL = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = tanhf(x[threadIdx.x]); }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path))
    return tmp_path / "cuda"


@pytest.fixture
def no_compiler(monkeypatch):
    """Return a function that hides the compiler."""

    def take():
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(cuda_compiler.sysconfig, "get_path", lambda _: "")

    return take


@pytest.mark.nvcc
def test_what_was_compiled_is_kept(cache, no_compiler):
    code = cuda_compiler.compile_for(KERNEL, CHIP)
    assert b"k" in code
    (kept,) = cache.iterdir()
    no_compiler()
    assert cuda_compiler.compile_for(KERNEL, CHIP) == code == kept.read_bytes()
    with pytest.raises(DeviceError, match="nvcc was expected"):
        cuda_compiler.compile_for(KERNEL, "sm_90")


@pytest.mark.nvcc
def test_nothing_is_kept_where_nothing_is_to_be(cache, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    assert cuda_compiler.compile_for(KERNEL, CHIP)
    assert not cache.exists()


@pytest.mark.nvcc
def test_a_folder_that_cannot_be_written_costs_only_time(cache):
    cache.parent.joinpath("cuda").write_text("a file")
    assert cuda_compiler.compile_for(KERNEL, CHIP)


@pytest.mark.nvcc
def test_functions_are_not_approximated():
    refuses = f"#ifdef __USE_FAST_MATH__\n#error approximated\n#endif\n{KERNEL}"
    assert cuda_compiler.compile_for(refuses, CHIP)


@pytest.fixture
def callback(monkeypatch):
    """Return the function that TVM calls to compile, on a machine with two GPUs."""
    plugin.load()
    gpus = [SimpleNamespace(compute_version=c) for c in ("9.0", "8.0")]
    monkeypatch.setattr(cuda_compiler, "cuda_gpus", lambda: gpus)
    return tvm_ffi.get_global_func("tvm_callback_cuda_compile")


@pytest.mark.nvcc
def test_there_is_code_for_every_gpu(callback):
    assert bytes(callback(KERNEL)) == cuda_compiler.compile_for(KERNEL, "sm_80", "sm_90")


@pytest.mark.nvcc
def test_a_refused_source_is_said(callback):
    with pytest.raises(KernelBuildError) as caught, plugin.translated("Running m.so", "cuda"):
        callback("nonsense")
    assert caught.value.message.startswith(
        "Running m.so failed: nvcc refused the kernels for sm_80"
    )
    assert "nonsense" in caught.value.details


def test_a_missing_compiler_is_said(callback, no_compiler):
    no_compiler()
    with pytest.raises(DeviceError) as caught, plugin.translated("Running m.so", "cuda"):
        callback(KERNEL)
    assert "nvcc was expected on the path" in caught.value.message
    assert caught.value.remedy == "python -m pip install nvidia-cuda-nvcc"
