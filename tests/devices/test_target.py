"""Targets: what is refused, and what ``auto`` stands for."""

from __future__ import annotations

import functools
import operator
import re
from types import SimpleNamespace

import pytest

from tvmflow.devices.target import PRESETS, preset_of, resolve
from tvmflow.errors import TargetError
from tvmflow.ir.scope import constant_scope, panel_scope


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("metal",), ["'metal'", "opencl, cuda, llvm", "`target`"]),
        (("opencl", "powervr"), ["'powervr'", "adreno", "`device`"]),
        (("llvm", "adreno"), ["llvm", "'adreno'"]),
        (("cuda", "mali"), ["cuda", "'mali'"]),
        (("llvm", "auto", "arm64"), ["'arm64'", "triple", "aarch64-linux-gnu"]),
        (("opencl", "auto", "android-arm64"), ["'auto'", "android-arm64", '`device="adreno"`']),
        (("opencl", "auto", "riscv64-linux-gnu"), ["'auto'", "riscv64-linux-gnu", "`device="]),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(TargetError) as error:
        resolve(*arguments)
    for word in words:
        assert word in str(error.value)


def test_llvm_optimises_as_far_as_it_is_told(monkeypatch):
    monkeypatch.setenv("TVMFLOW_LLVM_OPT_LEVEL", "")
    assert "opt-level" not in str(resolve("llvm").tvm_target)
    monkeypatch.setenv("TVMFLOW_LLVM_OPT_LEVEL", "1")
    for target in ("llvm", "cuda"):
        assert int(resolve(target).tvm_target.host.attrs["opt-level"]) == 1
    monkeypatch.setenv("TVMFLOW_LLVM_OPT_LEVEL", "-O2")
    with pytest.raises(TargetError, match="TVMFLOW_LLVM_OPT_LEVEL is '-O2'; expected 0"):
        _ = resolve("llvm").tvm_target


def test_auto_without_a_question():
    assert resolve("llvm").device.name == "cpu"
    assert resolve("cuda").device.name == "nvidia"
    assert resolve("cuda").arch.startswith("sm_")


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_only_opencl_has_images(target):
    device = resolve(target).device
    assert panel_scope((1, 1, 2, 2, 4), device, 2) is None
    assert constant_scope((1, 1, 4), device) is None


@pytest.mark.opencl
def test_auto_asks_the_running_device():
    assert resolve("opencl").device.name in PRESETS


def running(**facts):
    defaults = {
        "vendor": "", "name": "", "device_type": "gpu", "max_work_group_size": 512,
        "images": True, "image2d_max_width": 4096, "image2d_max_height": 2048,
        "image_max_array_size": 256,
    }  # fmt: skip
    return SimpleNamespace(**{**defaults, **facts})


@pytest.mark.parametrize(
    ("facts", "preset"),
    [
        ({"device_type": "cpu", "vendor": "AuthenticAMD"}, "cpu"),
        ({"vendor": "QUALCOMM", "name": "QUALCOMM Adreno(TM)"}, "adreno"),
        ({"vendor": "ARM", "name": "Mali-G78"}, "mali"),
        ({"vendor": "NVIDIA Corporation", "name": "H100"}, "nvidia"),
    ],
)
@pytest.mark.parametrize("fp16", [True, False])
def test_preset_of_a_running_device_has_its_own_limits(facts, preset, fp16):
    device = preset_of(running(**facts, fp16=fp16))
    assert device.fp16 is fp16
    assert device.name == preset
    assert (device.max_group_size, device.image_extent, device.image_layers) == (512, 2048, 256)


def test_a_cross_host_is_in_the_target():
    spec = resolve("opencl", "adreno", "aarch64-linux-gnu")
    assert "aarch64" in str(spec.tvm_target.host)


@pytest.mark.parametrize(("host", "takes_it"), [("android-arm64", False), ("linux-arm64", True)])
def test_android_s_reserved_register_is_not_touched(host, takes_it):
    """A program that uses x18 crashes on Android, now and then; elsewhere it is one of many."""
    import tvm
    from tvm import te

    rows = te.placeholder((32, 4096), "int32", "rows")

    # This many values at a time need all registers.
    def mixed(i):
        terms = (rows[k, (7 * i + k) % 4096] ^ rows[(5 * k + 3) % 32, i] for k in range(30))
        return functools.reduce(operator.add, terms)

    function = te.create_prim_func([rows, te.compute((4096,), mixed, "mixed")])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    assembler = tvm.compile(module, target=resolve("llvm", host=host).tvm_target)
    text = assembler.mod.inspect_source("asm")
    assert bool(re.search(r"\b[xw]18\b", text)) == takes_it
