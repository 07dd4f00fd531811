"""A module in use: calls, inputs, outputs, saving, closing."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.threads import in_threads
from support.tiny_network import OUTPUTS, SHIFT, X, expected, metadata, values, write

from tvmflow.errors import ArtifactError, DeviceError, InputError, KernelBuildError
from tvmflow.module import link
from tvmflow.module.artifact import read_artifact
from tvmflow.module.load import load
from tvmflow.module.module import Module
from tvmflow.module.values import Outputs, is_shareable
from tvmflow.runtime import plugin
from tvmflow.verify.tolerance import assert_close


@pytest.fixture
def module(module_file: Path):
    with load(module_file) as loaded:
        yield loaded


def check(outputs: Outputs, inputs: dict[str, np.ndarray] | None = None) -> None:
    reference = expected(inputs or values()).astype(np.float32)
    assert_close(outputs["sum"], reference)
    np.testing.assert_array_equal(outputs["mask"], outputs["sum"] > 0)


def test_called_by_name_by_position_and_with_a_mapping(module: Module):
    v = values()
    check(module(v))
    check(module(v["x/in"], v["shift"]))
    check(module(v["x/in"], shift=v["shift"]))
    check(module(**v))
    check(module.run(list(v.values())))


def test_outputs_are_a_tuple_and_a_mapping(module: Module):
    outputs = module(values())
    total, mask = outputs
    assert outputs["sum"] is total
    assert outputs[1] is mask
    assert outputs[-1] is mask
    assert outputs.keys() == ("sum", "mask")
    assert dict(outputs).keys() == {"sum", "mask"}
    assert "sum" in outputs
    assert "w" not in outputs
    assert (total.dtype, mask.dtype, total.shape) == (np.float32, np.bool_, OUTPUTS[0].shape)
    with pytest.raises(KeyError, match="the outputs are sum, mask"):
        outputs["sums"]


def test_html_representation(module: Module):
    text = module._repr_html_()
    for info in (*module.inputs, *module.outputs):
        assert f"<td>{info.name}</td><td>{info.dtype}</td>" in text
    # This network's memory plan is empty, unlike one from `compile`.
    plan = {
        "peak_bytes": 64, "lower_bound_bytes": 64, "blocks": [{"image": None, "bytes": 64}],
        "tensors": [{
            "name": "a<b", "storage": "buffer", "shape": [16], "bytes": 64, "block": 0, "first": 0,
            "last": 1, "producer": "f", "readers": ["g"],
        }],
    }  # fmt: skip
    module.metadata["memory"] = plan
    drawn = module._repr_html_()
    assert "<svg" in drawn
    assert "a&lt;b" in drawn


def test_names_that_are_completed_are_those_for_users(module: Module):
    names = dir(module)
    assert {"run", "save", "close", "inputs", "outputs", "metadata", "profile"} <= {*names}
    assert not [name for name in names if name[0] == "_" and name[:2] != "__"]
    assert not {"run_network", "call_at_end", "artifact"} & {*names}
    assert all(hasattr(module, name) for name in names)


def test_a_module_is_not_pickled(module: Module):
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ArtifactError, match="Pickling or copying") as caught:
            attempt(module)
        assert "tvmflow.load" in caught.value.remedy


def test_weights_beside_the_module(with_sidecar: Path):
    with load(with_sidecar) as module:
        check(module(values()))


def test_results_do_not_change_with_the_next_call(module: Module):
    first = module(values())
    kept = first["sum"].copy()
    module({"x/in": np.zeros(X.shape, np.float32), "shift": np.zeros((4, 1, 1), np.float32)})
    np.testing.assert_array_equal(first["sum"], kept)


def aligned(array: np.ndarray, offset: int) -> np.ndarray:
    """Return a copy that starts `offset` bytes after a 64-byte boundary."""
    memory = np.zeros(array.nbytes + 128, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64 + offset
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda a: aligned(a, 0),
        lambda a: aligned(a, 4),
        lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
        lambda a: np.repeat(a, 2, axis=3)[..., ::2],
        lambda a: a.astype(">f4"),
        lambda a: a.tolist(),
    ],
    ids=["aligned", "misaligned", "transposed", "strided", "big-endian", "list"],
)
def test_arrays_in_any_memory_layout(module: Module, change: Any):
    v = values()
    image = change(v["x/in"])
    check(module(image, v["shift"]))


def test_read_only_arrays(module: Module):
    v = values()
    for array in v.values():
        array.flags.writeable = False
    assert not is_shareable(v["x/in"])
    check(module(v))


def test_dlpack_tensors_go_in_and_come_out(module: Module):
    import tvm

    tensors = {name: tvm.runtime.tensor(array) for name, array in values().items()}
    check(module(tensors))
    outputs = module.run(tensors, output="dlpack")
    check(Outputs(outputs.names, [np.from_dlpack(tensor) for tensor in outputs]))
    chained = module.run([tensors["x/in"], tensors["shift"]], output="dlpack")
    np.testing.assert_array_equal(np.from_dlpack(chained["sum"]), np.from_dlpack(outputs["sum"]))


def test_outputs_on_the_device_are_not_overwritten(module: Module):
    v = values()
    first = module.run(v, output="dlpack")
    zeros = {name: np.zeros_like(array) for name, array in v.items()}
    module.run(zeros, output="dlpack")
    module(zeros)
    check(Outputs(first.names, [np.from_dlpack(tensor) for tensor in first]))


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {"x/im": 0, "shift": 0}, "There is no input 'x/im'; .* x/in: float32"),
        ((), {"x/in": 0}, r"1 of 2 inputs were not given: shift: float32\[4, 1, 1\]"),
        ((0, 0, 0), {}, "3 inputs were given, but the network has 2"),
        ((0,), {"x/in": 0}, "'x/in' was given by position and by name"),
        ((), {}, "2 of 2 inputs were not given"),
        ((np.zeros((1, 3, 9, 8), np.float32), 0), {}, r"shape \[1, 3, 9, 8\], .* \[1, 3, 8, 8\]"),
        ((np.zeros(X.shape), 0), {}, "'x/in' has dtype float64, but the network takes float32"),
        ((np.zeros(X.shape, np.int32), 0), {}, "dtype int32"),
        (("text", 0), {}, r"shape \[\], but"),
        (([[1, 2], [3]], 0), {}, "is no array"),
        ((None, 0), {}, "shape"),
    ],
)
def test_wrong_inputs_are_one_sentence(module: Module, args: Any, named: Any, message: str):
    with pytest.raises(InputError, match=message) as caught:
        module(*args, **named)
    assert caught.value.remedy
    assert "\n" not in caught.value.message
    check(module(values()))  # and the module still works


def test_a_near_name_is_offered(module: Module):
    with pytest.raises(InputError) as caught:
        module(x_in=0, shift=0)
    assert "Did you mean 'x/in'?" in str(caught.value)


def test_tensors_of_a_wrong_shape_or_dtype(module: Module):
    import tvm

    v = values()
    with pytest.raises(InputError, match="shape"):
        module(tvm.runtime.tensor(np.zeros((1, 3, 8, 9), np.float32)), v["shift"])
    with pytest.raises(InputError, match="dtype"):
        module(tvm.runtime.tensor(np.zeros(X.shape, np.float64)), v["shift"])


NHWC = "The array is NHWC: transpose it to NCHW with array.transpose(0, 3, 1, 2)."
HWC = "The array is HWC: transpose it to CHW with array.transpose(2, 0, 1)."
RESIZE = "Resize it: the model fixes this shape, others need it exported again."


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((1, 8, 8, 3), NHWC),
        ((3, 8, 8), "The batch dimension is missing: array[None] adds it."),
        ((8, 8, 3), f"{HWC} The batch dimension is missing: array[None] adds it."),
        ((1, 480, 640, 3), f"{NHWC} {RESIZE}"),
        ((1, 3, 9, 8), RESIZE),
        ((2, 3, 8, 8), RESIZE),
        ((8, 8), "Reshape it."),
        ((), "Reshape it."),
    ],
)
def test_a_shape_that_does_not_fit_a_static_model(module: Module, shape: Any, remedy: str):
    with pytest.raises(InputError, match="the network takes") as caught:
        module(np.zeros(shape, np.float32), values()["shift"])
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        (lambda array: array.transpose(0, 3, 1, 2), (1, 8, 8, 3)),
        (lambda array: array[None], (3, 8, 8)),
        (lambda array: array.transpose(2, 0, 1)[None], (8, 8, 3)),
    ],
)
def test_what_is_advised_fits(module: Module, steps: Any, shape: Any):
    module(steps(np.zeros(shape, np.float32)), values()["shift"])


def test_a_shape_that_other_extents_of_the_model_fit(executable: Any, tmp_path: Path):
    inputs = (replace(X, open_dims=(0, 2, 3)), SHIFT)
    path = tmp_path / "open.so"
    write(executable, path, metadata=metadata(inputs=inputs))
    with load(path) as module:
        assert module.inputs[0].open_dims == (0, 2, 3)
        for shape, offered in (
            ((2, 3, 9, 9), "`shapes=x/in=2,3,9,9"),
            ((9, 9, 3), "`shapes=x/in=1,3,9,9"),
            ((1, 4, 8, 8), None),
        ):
            with pytest.raises(InputError) as caught:
                module(np.zeros(shape, np.float32), values()["shift"])
            assert (offered or "exported again") in caught.value.remedy
            assert (offered is None) == ("`shapes=" not in caught.value.remedy)


class Foreign:
    """A tensor of a library that supports only DLPack."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def test_strided_tensors_are_copied(module: Module):
    given = values()
    check(module(Foreign(strided(given["x/in"])), given["shift"]))
    turned = np.ascontiguousarray(given["x/in"].transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert not turned.flags.c_contiguous
    check(module(Foreign(turned), Foreign(given["shift"])))


def test_strided_tensors_are_copied_as_their_library_does(module: Module):
    """The tensor's own library can copy on any device, and dtypes that NumPy lacks."""

    class WithContiguous(Foreign):
        def contiguous(self) -> Foreign:
            copies.append(self)
            return Foreign(np.ascontiguousarray(self.array))

    copies: list[Foreign] = []
    given = values()
    check(module(WithContiguous(strided(given["x/in"])), WithContiguous(given["shift"])))
    assert len(copies) == 1


def test_strided_tensors_of_torch_are_copied(module: Module):
    torch = pytest.importorskip("torch")
    given = values()
    last = torch.from_numpy(given["x/in"]).to(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    check(module(last, torch.from_numpy(strided(given["shift"]))))


def test_unknown_kind_of_output(module: Module):
    with pytest.raises(InputError, match="'numpy' or 'dlpack', not 'torch'"):
        module.run(values(), output="torch")


def test_threads_may_call_at_once(module: Module):
    results: list[Any] = []
    inputs = [{n: a * k for n, a in values().items()} for k in range(1, 5)]

    def work(number: int) -> None:
        v = inputs[number]
        results.extend((v, module(v)) for _ in range(20))

    in_threads(4, work)
    assert len(results) == 80
    for v, outputs in results:
        check(outputs, v)


def test_saved_modules_run_and_are_whole(module: Module, tmp_path: Path):
    saved = module.save(tmp_path / "copy.so")
    assert {p.name for p in tmp_path.iterdir()} == {"tiny.so", "copy.so"}
    read_artifact(saved).check()
    with load(saved) as copy:
        check(copy(values()))
    assert module.save(module.path) == module.path


def test_weights_beside_are_saved_under_the_new_name(with_sidecar: Path, tmp_path: Path):
    folder = tmp_path / "there"
    folder.mkdir()
    load(with_sidecar).save(folder / "new.so")
    assert {p.name for p in folder.iterdir()} == {"new.so", "new.so.weights"}
    with load(folder / "new.so") as copy:
        check(copy(values()))


def test_saving_where_it_cannot_be_written(module: Module, tmp_path: Path):
    with pytest.raises(ArtifactError, match="does not exist"):
        module.save(tmp_path / "no" / "m.so")
    with pytest.raises(ArtifactError, match="it is a folder"):
        module.save(tmp_path)


def test_a_temporary_file_goes_with_its_module(module_file: Path, tmp_path: Path):
    calls: list[int] = []

    def cleanup() -> None:
        calls.append(1)
        module_file.unlink()

    module = load(module_file)
    module.call_at_end(cleanup)
    check(module(values()))
    saved = module.save(tmp_path / "saved.so")
    module.close()
    module.close()
    assert calls == [1]
    assert not module_file.exists()
    with pytest.raises(ArtifactError, match=r"its file .* is gone, or the module was closed"):
        module(values())
    with pytest.raises(ArtifactError, match="Saving the module tiny failed"):
        module.save(tmp_path / "again.so")
    forgotten = load(saved)
    forgotten.call_at_end(lambda: calls.append(2))
    del forgotten
    gc.collect()
    assert calls == [1, 2]


def test_closing_unloads_the_library(module_file: Path):
    def mapped() -> bool:
        """Return whether code of the file is mapped; weights stay mapped for the next opening."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return any(str(module_file) in line and "r-xp" in line for line in lines)

    module = load(module_file).open()
    assert mapped()
    module(values())
    module.close()
    gc.collect()
    assert not mapped()
    check(module(values()))  # opens again: the file is still there


def test_profile_names_every_call_in_order(module: Module):
    times = module.profile(values(), runs=3)
    assert times[0].kernel == "conv2d"
    assert len(times) == 3
    assert all(t.clock == "host" and 0 < t.median_us <= t.p90_us for t in times)
    check(module(values()))


def test_a_module_for_another_machine_can_be_saved_but_not_run(
    executable: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def pretend(objects: Any, output: Path, host: link.Host, work: Path) -> str:
        real(objects, output, link.Host.native(), work)
        return "pretended"

    real = link.link_shared
    monkeypatch.setattr("tvmflow.module.artifact.link_shared", pretend)
    path = tmp_path / "arm.so"
    write(executable, path, host="armv9-linux-gnu")
    module = load(path)
    assert module.metadata["host"] == "armv9-linux-gnu"
    module.save(tmp_path / "copy.so")
    with pytest.raises(ArtifactError, match="its host code is for armv9-linux-gnu, but this"):
        module(values())


def test_a_target_without_a_device(executable: Any, tmp_path: Path):
    import tvm

    path = tmp_path / "m.so"
    write(executable, path, metadata=metadata(target="cuda"))
    if tvm.cuda(0).exist:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match="there is no cuda device on this machine") as caught:
        load(path)(values())
    assert '`target="opencl"`' in str(caught.value)


def test_missing_llvm_device_is_reported(module_file: Path):
    with pytest.raises(DeviceError, match="there is no llvm device 1 on this machine") as caught:
        load(module_file, device=1)(values())
    assert "tvmflow devices" in str(caught.value)


def test_an_unknown_target(executable: Any, tmp_path: Path):
    path = tmp_path / "m.so"
    write(executable, path, metadata=metadata(target="abacus"))
    with pytest.raises(ArtifactError, match="its target 'abacus' is unknown"):
        load(path)(values())


def raised(kind: str, message: str) -> Exception:
    """Return the exception that a C++ error becomes."""
    from tvm_ffi.core import Error

    return Error(kind, message, "").py_error()


def test_build_failures_carry_the_log():
    error = raised("KernelBuildError", "Kernel 'k' does not build.\nRemedy: Fix it.\nlog 1\nlog 2")
    translated = plugin.translate(error, "Running m.so", "opencl")
    assert isinstance(translated, KernelBuildError)
    assert translated.message == "Running m.so failed: Kernel 'k' does not build."
    assert translated.remedy == "Fix it."
    assert translated.details == "log 1\nlog 2"


def test_device_errors_say_what_to_do():
    """Without an OpenCL device, the plug-in reports how to install one."""
    for target, remedy, message in (
        ("opencl", "Compile the model again for this device", "a launch was refused"),
        ("opencl", "Install one.", "no OpenCL\nRemedy: Install one."),
        ("cuda", "Run on a machine with an NVIDIA GPU", "no CUDA"),
    ):
        translated = plugin.translate(raised("DeviceError", message), "Loading m.so", target)
        assert isinstance(translated, DeviceError)
        assert (translated.remedy or "").startswith(remedy)


def test_endless_logs_are_cut():
    log = "\n".join("x" * 500 for _ in range(1000))
    error = raised("KernelBuildError", "It does not build.\n" + log)
    translated = plugin.translate(error, "Running m.so", "opencl")
    assert translated is not None
    lines = (translated.details or "").splitlines()
    assert lines[-1] == "… 800 more lines"
    assert max(map(len, lines)) == 160


def test_other_errors_stay_what_they_are():
    assert plugin.translate(raised("ValueError", "x"), "Running", "opencl") is None
    assert plugin.translate(RuntimeError("x"), "Running", "opencl") is None
