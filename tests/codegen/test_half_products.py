"""Kernels multiply and add halves without calls of fused multiply-adds.

Adreno multiplies and adds halves by ``mad.f16``; Mesa knows no instruction for `fma` of halves.
These tests check that kernels never call `fma` or `mad`, whatever the precision of their sums, and
that the build options of both runtimes allow ``mad`` but force no fused products.  The machine code
shows that Mesa then uses ``mad.f16``.

The tests do not show which instruction Qualcomm's compiler chooses for ``a * b + c``.  By default
(``FP_CONTRACT``), OpenCL C lets a compiler contract it to either.
"""

from __future__ import annotations

import re

import pytest
from gpu_launches import NETWORKS, before_scheduling, scheduled
from support.operators import conv
from tvm import IRModule

import tvmflow
from tvmflow.codegen import rounding
from tvmflow.codegen.kernels import generate_kernels
from tvmflow.devices.gpus import find_gpu
from tvmflow.explain.isa import mesa
from tvmflow.explain.isa.record import Failure, KernelCode, KernelSource
from tvmflow.explain.isa.report import SUITE, machine_code
from tvmflow.module.link import native_folder
from tvmflow.module.standalone.encode import BUILD_OPTIONS

ADRENO = find_gpu("adreno-660")
#: Calls of `fma` and `mad`, not of ``mad24``, and options that change floating-point arithmetic.
FUSED = re.compile(r"\b(?:fma|mad)\s*\(|FP_CONTRACT\s+ON|-cl-(?:fast|unsafe)")
HALF = re.compile(r"\bhalf4? ")
ACCUMULATE = ["fp32", "mixed", "fp16"]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_call_no_fused_products(network, accumulate):
    job = before_scheduling(network, "adreno", dtype="fp16", accumulate=accumulate)
    with job.target.tvm_target:
        kernels = generate_kernels(IRModule(scheduled(job)), job.target).sources
    source = "".join(kernels.values()).replace(rounding.OPENCL, "")
    assert not FUSED.findall(source)
    assert (HALF.search(source) is None) == (accumulate == "fp32")


@pytest.mark.parametrize("accumulate", ACCUMULATE)
def test_a_layer_calls_no_fused_products(accumulate, tmp_path):
    options = {"target": "opencl", "device": "adreno", "dtype": "fp16", "accumulate": accumulate}
    tvmflow.compile(conv((1, 64, 14, 14), 64), **options, dump_ir=tmp_path).close()
    (source,) = tmp_path.glob("*export.0.opencl")
    assert not FUSED.findall(source.read_text())


def test_build_options_force_no_fused_products():
    program = (native_folder("opencl") / "program.cc").read_text()
    (options,) = re.findall(r'kBuildOptions = "(.*)"', program)
    assert options == BUILD_OPTIONS == "-cl-mad-enable"


KERNEL = """\
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
__attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void {0}(__global half4* x) {{
  int i = get_global_id(0);
  x[i + 192] = {1};
}}
"""


@pytest.mark.mesa
@pytest.mark.slow
def test_a_fused_product_would_be_noticed():
    """Mesa has no fused multiply-add of halves, and refuses a kernel that calls it."""
    values = {"plain": "x[i] * x[i + 64] + x[i + 128]", "fused": "fma(x[i], x[i + 64], x[i + 128])"}
    kernels = [KernelSource(name, name, KERNEL.format(name, v)) for name, v in values.items()]
    tree = mesa.find_tree(ADRENO, SUITE)
    plain, fused = mesa.compile_kernels(kernels, ADRENO, tree)[1]
    assert isinstance(plain, KernelCode)
    assert plain.whole.multiply_adds == 4
    assert "mad.f16" in plain.listing
    assert isinstance(fused, Failure)


@pytest.mark.mesa
@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["mixed", "fp16"])
def test_products_of_halves_are_one_instruction(accumulate, tmp_path):
    options = {"target": "opencl", "device": "adreno", "dtype": "fp16", "accumulate": accumulate}
    path = tmp_path / "layer.so"
    tvmflow.compile(conv((1, 64, 56, 56), 64, (1, 1), pad=0), **options).save(path)
    report = machine_code(path, ADRENO, suite=SUITE)
    assert not report.failures
    (kernel,) = (k for k in report.kernels if "conv2d" in k.kernel)
    assert "mad.f16" in kernel.listing
    assert "mad.f32" not in kernel.listing
    assert kernel.hot.conversions == 0
