"""The kernel lab: every step is right at awkward sizes, and has the schedule that it states."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm.target import codegen

from tvmflow.devices.target import resolve
from tvmflow.errors import DeviceError, InputError, VerificationError
from tvmflow.explain import lab as running
from tvmflow.explain.lab import found_and_removed, run_lab
from tvmflow.explain.lab_page import page_text
from tvmflow.explain.profiling import ceilings
from tvmflow.explain.profiling.record import Ceilings
from tvmflow.schedules.lab import LABS, check_size, convolution, quantized, scheduled, with_blocks
from tvmflow.tuning.building import lower

pytestmark = pytest.mark.usefixtures("known_ceilings")

PLACES = [
    pytest.param("llvm", "cpu", id="llvm"),
    pytest.param("opencl", "cpu", id="opencl-cpu", marks=pytest.mark.opencl),
    pytest.param("opencl", "adreno", id="opencl-adreno", marks=pytest.mark.opencl),
]
#: Sizes at which some and all of the tiles are whole: a prime, and a multiple of every tile.
SIZES = {
    "matmul": (37, 128),
    "matmul_int8": (37,),
    "batch": (3,),
    "conv3x3": (13,),
    "add": (7,),
    "relu": (7,),
    "relu_int8": (7,),
    "multiply": (7,),
    "squared_difference": (7,),
    "dot": (7,),
    "distance": (7,),
    "batch_sum": (7,),
    "softmax": (7,),
}


@pytest.mark.parametrize(("target", "device"), PLACES)
@pytest.mark.parametrize("name", LABS)
def test_every_step_computes_what_numpy_does(name, target, device):
    """A step with a wrong result raises; the next test checks that."""
    # The smallest size, and a split depth, run for one target only, because drivers compile for
    # longer than kernels run.  The depth of a convolution is not its size.
    more = [] if target == "opencl" else [1] if name == "conv3x3" else [1, 301]
    for size in (*SIZES[name], *more):
        result = run_lab(name, size=size, target=target, device=device, seconds=1e-3)
        steps = LABS[name].steps(resolve(target, device).device)
        assert [step.step for step in result.steps] == [step.name for step in steps]


def test_a_wrong_step_is_reported(monkeypatch):
    def other(a, b):
        result = lab.reference(a, b)
        result[-1, -1] *= np.float32(1.001)
        return result

    lab = LABS["matmul"]
    monkeypatch.setitem(LABS, "matmul", replace(lab, reference=other))
    with pytest.raises(VerificationError, match="The step naive of the lab matmul"):
        run_lab("matmul", size=37, seconds=1e-3)


@pytest.mark.parametrize(("name", "gflops"), [("matmul", 100.0), ("matmul_int8", 400.0)])
def test_peaks_are_those_of_the_device(monkeypatch, name, gflops):
    """Peaks of operations are those of the lab's dtype."""
    known = Ceilings(copy_gbps=10.0, fp32_gflops=100.0, launch_us=0.001, int8_gops=400.0)
    monkeypatch.setattr(ceilings._Device, "measure", lambda self: known)
    result = run_lab(name, size=96, steps=["naive", "packed"], seconds=1e-3)
    for step in result.steps:
        assert step.of_peak == min(1.0, max(step.gflops / gflops, step.gbps / 10.0))


def test_a_busy_machine_is_compared_with_nothing(caplog, busy_machine):
    result = run_lab("relu", size=7, steps=["naive"], seconds=1e-3)
    assert result.others_share == 0.5
    assert (result.steps[0].of_numpy, result.steps[0].of_peak) == (None, None)
    assert "Comparisons with NumPy and with the ceilings are left out" in caplog.text
    assert "of NumPy" in page_text(result)


def test_without_ceilings_there_is_no_part_of_a_peak(monkeypatch):
    def refuse(self):
        raise DeviceError("Building a kernel failed.")

    monkeypatch.setattr(ceilings._Device, "measure", refuse)
    result = run_lab("relu", size=7, steps=["naive"], seconds=1e-3)
    assert result.ceilings is None
    assert result.steps[0].of_peak is None


# -- what the schedules are -------------------------------------------------------------------


def script(step, *, name="matmul", size=128, target="llvm", device="auto"):
    return scheduled(name, step, size=size, target=target, device=device).script()


def test_each_step_on_a_cpu_adds_what_it_says():
    # There are 64 tiles of 6 rows in blocks of 16, six times 4 vectors of columns, depth twice 192.
    naive, vectorised, blocked, parallel, packed = (
        script(step.name, size=384) for step in LABS["matmul"].steps(resolve("llvm").device)
    )
    assert "T.vectorized" not in naive
    assert "T.vectorized(16)" in vectorised
    assert "T.unroll(6)" not in vectorised
    # The register tile, and the loops around it.
    assert "T.unroll(6)" in blocked
    assert "T.unroll(4)" in blocked
    assert re.search(r"for i1_0, i0_0 in T\.grid\(6, 4\):\n", blocked)
    assert re.search(r"for k_0, i0_1, k_1 in T\.grid\(2, 16, 48\):\n", blocked)
    assert "T.parallel" not in blocked
    assert "in T.parallel(24):" in parallel
    # The panels have 64 columns.
    assert "(6, 384, 64)" in packed
    assert "(6, 384, 64)" not in parallel


@pytest.mark.usefixtures("optimising")
def test_products_stay_in_registers():
    """In the loop over the depth only the factors are read."""
    target = resolve("llvm")
    packed = next(s for s in LABS["matmul"].steps(target.device) if s.name == "packed")
    function = LABS["matmul"].schedule(packed, 128, target)
    with target.tvm_target:
        assembly = str(lower(function, target).inspect_source("asm"))
    if "zmm" not in assembly:
        pytest.skip("this CPU has no AVX-512")
    hot = max(
        re.findall(r"^\.LBB\S+:(?:(?!^\.LBB|^\s+j).*\n)+\s+j\w+", assembly, re.M),
        key=lambda loop: loop.count("vfmadd"),
    )
    # There are 4 steps of 24 sums.
    assert hot.count("vfmadd") == 96
    assert not re.search(r"vmovup?a?s\s+%zmm\d+, ", hot), "sums are stored in the loop"


def test_steps_on_a_gpu_end_in_local_memory():
    parallel = script("parallel", target="cuda")
    packed = script("packed", target="cuda")
    assert "shared" not in parallel
    assert packed.count('scope="shared"') == 2
    assert parallel.count('thread="threadIdx.x"') == 1
    assert 'T.thread_binding(8, thread="threadIdx.x")' in packed
    assert 'T.thread_binding(1, thread="threadIdx.x")' in script("blocked", target="cuda")


def kinds(name, target, device="auto"):
    """Return for each step at the default size the kinds found, and those that the next removes."""
    spec = resolve(target, device)
    lab = LABS[name]
    steps = lab.steps(spec.device)
    functions = [lab.schedule(step, lab.size, spec) for step in steps]
    analysed = found_and_removed(functions, spec)
    return {
        step.name: tuple({finding.kind for finding in found} for found in pair)
        for step, pair in zip(steps, analysed, strict=True)
    }


@pytest.mark.parametrize(
    ("name", "naive"),
    [
        ("matmul", {"vector-width", "cache-lines", "accumulators", "parallel"}),
        # Integers are added in any order, and a column is short enough for the first-level cache.
        ("matmul_int8", {"vector-width", "pages", "parallel"}),
    ],
)
def test_steps_on_a_cpu_remove_what_they_say(name, naive):
    assert kinds(name, "llvm") == {
        "naive": (naive, naive & {"vector-width", "cache-lines"}),
        "vectorised": ({"accumulators", "pages", "parallel"}, {"accumulators"}),
        "blocked": ({"pages", "parallel"}, {"parallel"}),
        "parallel": ({"pages"}, {"pages"}),
        "packed": (set(), set()),
    }


@pytest.mark.parametrize("name", ["add", "relu", "relu_int8", "batch"])
def test_steps_of_other_labs_remove_what_they_say(name):
    found = kinds(name, "llvm")
    assert found["vectorised"] == ({"parallel"}, {"parallel"})
    assert found["parallel"] == (set(), set())


@pytest.mark.opencl
def test_steps_on_a_gpu_remove_what_they_say():
    options = {"size": 128, "target": "opencl", "device": "adreno", "seconds": 1e-3}
    steps = ["vectorised", "blocked", "parallel", "packed"]
    vectorised, blocked, parallel, _packed = run_lab("matmul", steps=steps, **options).steps
    # Groups have one item, which fills a wave only in groups of 64.
    assert [f.kind for f in vectorised.removed] == []
    assert [f.kind for f in blocked.removed] == ["occupancy"]
    # Rows of the left matrix are apart: items read them from separate cache lines.
    (rows,) = (f for f in parallel.found if f.kind == "coalescing")
    assert rows.access.startswith("a[")
    assert rows in parallel.removed
    text = script("parallel", target="opencl", device="adreno").splitlines()
    assert "a[" in text[rows.line - 1]


@pytest.mark.parametrize("size", [37, 192])
def test_operands_are_padded_only_where_tiles_are_not_whole(size):
    # The copy that packs the right matrix also pads it: a copy of a copy would be read twice.
    assert ("if_then_else" in script("packed", size=size)) == (size == 37)
    assert "b_pad = " not in script("packed", size=size)


def test_elementwise_steps_add_what_they_say():
    for name in ("add", "relu", "relu_int8"):
        naive, vectorised, parallel = (
            script(step, name=name) for step in ("naive", "vectorised", "parallel")
        )
        assert "T.vectorized" not in naive
        assert "T.vectorized(16)" in vectorised
        assert "T.parallel" not in vectorised
        assert "T.parallel(128)" in parallel


def test_vectors_of_softmax_call_nothing_for_their_powers():
    """A call for each lane, with all vectors in memory during it, may be slower than scalars."""
    spec = resolve("llvm")

    def calls(step):
        with spec.tvm_target:
            library = lower(scheduled("softmax", step, size=7), spec)
        return library.inspect_source("s").replace("@PLT", "").split().count("expf")

    naive, *others = (calls(step.name) for step in LABS["softmax"].steps(spec.device))
    assert naive > 0
    assert others == [0, 0]


def test_samples_of_a_batch_are_computed_in_parallel():
    assert "T.parallel(128)" not in script("vectorised", name="batch")
    # There are 16 tiles of rows for each of 128 samples.
    assert "T.parallel(2048)" in script("parallel", name="batch")


@pytest.mark.parametrize(("name", "size"), [("batch", 100_000), ("relu", 100_000)])
def test_only_one_axis_has_many_groups(name, size):
    """CUDA launches up to 65,535 groups along y and z."""
    for step in LABS[name].steps(resolve("cuda").device):
        text = script(step.name, name=name, size=size, target="cuda")
        for extent, axis in re.findall(r'thread_binding\((\d+), thread="blockIdx\.(\w)"', text):
            assert axis == "x" or int(extent) <= 65_535


# -- convolutions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "device"), PLACES)
@pytest.mark.parametrize(("inputs", "outputs", "size"), [(7, 34, 11)])
def test_channels_need_not_fill_their_blocks(monkeypatch, inputs, outputs, size, target, device):
    monkeypatch.setitem(LABS, "conv3x3", convolution.lab(inputs, outputs))
    # A step with a wrong result raises.
    steps = run_lab("conv3x3", size=size, target=target, device=device, seconds=1e-3).steps
    assert [step.step for step in steps] == [
        "naive", "parallel", "blocked", "registers", *["texture"] * (target == "opencl"),
    ]  # fmt: skip


def test_the_reference_of_a_convolution_is_its_definition():
    x, w = convolution.lab(3, 5).operands(4, np.random.default_rng(7))
    padded = np.zeros((1, 3, 6, 6))
    padded[..., 1:5, 1:5] = x
    expected = sum(
        np.einsum("oi,nihw->nohw", w[:, :, p, q], padded[..., p : p + 4, q : q + 4])
        for p in range(3)
        for q in range(3)
    )
    reference = convolution.reference(x, w)
    assert reference.dtype == np.float32
    np.testing.assert_allclose(reference, expected, rtol=1e-6, atol=1e-6)


def test_blocks_of_channels_are_filled_up_with_zeros():
    x, w = convolution.lab(3, 5).operands(4, np.random.default_rng(7))
    picture, weights = convolution.blocked_arguments(4, x, w)
    assert (picture.shape, weights.shape) == ((1, 1, 4, 4, 4), (2, 3, 3, 3, 4))
    assert (picture[0, 0, 2, 3, 1], weights[1, 2, 1, 0, 0]) == (x[0, 1, 2, 3], w[4, 2, 1, 0])
    assert not picture[..., 3].any()
    assert not weights[1, ..., 1:].any()
    np.testing.assert_array_equal(convolution.plain_result(3, picture), x)


def test_only_the_last_step_of_a_convolution_has_textures():
    options = {"name": "conv3x3", "size": 16, "target": "opencl", "device": "adreno"}
    assert "global.texture" not in script("registers", **options)
    # The parameters are the arguments and the result.
    head = script("texture", **options).split("T.sblock")[0]
    assert head.count("global.texture") == 3
    for target in ("llvm", "cuda"):
        names = [step.name for step in LABS["conv3x3"].steps(resolve(target).device)]
        assert names == ["naive", "parallel", "blocked", "registers"]


def test_pictures_that_no_image_holds_are_refused(monkeypatch):
    monkeypatch.setitem(LABS, "conv3x3", convolution.lab(1, 1))
    with pytest.raises(InputError, match="17000 by 17000 was to be an image; images of adreno"):
        script("texture", name="conv3x3", size=17_000, target="opencl", device="adreno")


def test_steps_of_a_convolution_remove_what_they_say():
    found = kinds("conv3x3", "llvm")
    assert found["naive"][1] == {"parallel"}
    assert found["parallel"][1] >= {"vector-width"}
    assert found["blocked"] == ({"accumulators"}, {"accumulators"})
    assert found["registers"][0] == set()
    found = kinds("conv3x3", "opencl", "adreno")
    assert "occupancy" in found["naive"][1]


# -- numbers of 8 bits ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [37, 256])
def test_quantization_is_as_exact_as_its_scales(size):
    """Each operand is off by half a step at most; sums are exact; the result is rounded once."""
    rng = np.random.default_rng(5)
    a, b = quantized.real_operands(size, rng)
    operands = quantized.operands(size, np.random.default_rng(5))
    scale = quantized.y_scale(size)
    result = quantized.reference(*operands)
    real = np.maximum(a @ b, 0)
    half_a, half_b = quantized.X.scale / 2, quantized.W.scale / 2
    bound = np.abs(a).sum(1)[:, None] * half_b + np.abs(b).sum(0) * half_a + size * half_a * half_b
    saturated = np.minimum(real, scale.real(np.uint8(255)))
    # 1e-4 covers that the scales are fp32 numbers.
    assert (np.abs(scale.real(result) - saturated) <= bound + scale.scale / 2 + 1e-4).all()
    # The bound can be missed: without the zero point, nearly all results miss it.
    wrong = quantized.reference(*operands[:4], np.zeros(2, np.int32))
    assert (np.abs(scale.real(wrong) - saturated) > bound + scale.scale / 2).mean() > 0.2
    # Some results saturate, at both ends, and few at the upper one.
    assert 0 < (result == 255).mean() < 0.01 if size == 256 else True
    assert 0.3 < (result == 0).mean() < 0.7


@pytest.mark.parametrize(("target", "device"), PLACES)
def test_numbers_at_their_limits_are_multiplied_exactly(target, device, monkeypatch):
    """Sums of pairs in 16 bits, which some instructions compute, would saturate."""

    def limits(size, rng):
        # -128, which no real number within the scale gives, occurs as well.
        return rng.choice([-1, 0, 1.5], (size, size)), rng.choice([-1.01, 1], (size, size))

    monkeypatch.setattr(quantized, "real_operands", limits)
    x, w, *_ = quantized.operands(37, np.random.default_rng(0))
    left, right = quantized.integers(x, w)
    assert {*left[:, :37].ravel()} == {0, 102, 255}
    assert {*right[:37].ravel()} == {-128, 127}
    steps = ["naive", "packed"]
    for step in run_lab(
        "matmul_int8", size=37, target=target, device=device, steps=steps, seconds=1e-3
    ).steps:
        assert step.error == 0


def test_words_in_parts_of_the_depth_are_multiplied_exactly():
    # The depth is 275 words, in parts of at most 256.
    (packed,) = run_lab("matmul_int8", size=1100, steps=["packed"], seconds=1e-3).steps
    assert packed.error == 0


def test_words_hold_the_matrices():
    x, w, *_ = quantized.operands(6, np.random.default_rng(2))
    assert x.shape == (6, 2)
    assert w.shape == (2, 6)
    a, b = quantized.real_operands(6, np.random.default_rng(2))
    left, right = quantized.integers(x, w)
    np.testing.assert_array_equal(left[:, :6], quantized.X.quantize(a))
    np.testing.assert_array_equal(right[:6], quantized.W.quantize(b))
    assert not left[:, 6:].any()
    assert not right[6:].any()


RELU_ARGUMENTS = quantized.arguments(quantized.BEFORE.scale, quantized.BEFORE.zero, quantized.AFTER)


def test_the_relu_of_8_bits_has_its_two_zero_points():
    x = np.arange(256, dtype=np.uint8)[None]
    (result,) = quantized.relu_reference(x, *RELU_ARGUMENTS)
    real = np.maximum(quantized.BEFORE.real(x), 0)
    np.testing.assert_array_equal(result, quantized.AFTER.quantize(real)[0])
    assert result[[0, 119, 120, 200, 229, 230, 255]].tolist() == [10, 10, 12, 190, 254, 255, 255]


def test_the_relu_of_8_bits_is_as_exact_as_its_scales():
    """Results are off by half a step of the argument and half a step of the result at most."""
    real = np.random.default_rng(6).uniform(-2.8, 3.2, (3, 1024))
    result = quantized.AFTER.real(
        quantized.relu_reference(quantized.BEFORE.quantize(real), *RELU_ARGUMENTS)
    )
    largest = quantized.AFTER.real(np.uint8(255))
    bound = (quantized.BEFORE.scale + quantized.AFTER.scale) / 2 + 1e-5
    assert np.abs(result - np.clip(real, 0, largest)).max() <= bound
    assert 0.05 < (result == largest).mean() < 0.15


@pytest.mark.parametrize(("target", "device"), PLACES)
@pytest.mark.parametrize("name", ["matmul_int8", "relu_int8"])
def test_one_function_serves_all_scales_and_zero_points(name, target, device):
    """Results equal integers in NumPy, for fine to coarse scales and extreme zero points."""
    lab, spec, rng = LABS[name], resolve(target, device), np.random.default_rng(8)
    *numbers, scale, zero = lab.operands(19, rng)
    expected = lab.reference(*numbers, scale, zero)
    arrays = [*numbers, scale, zero, np.empty_like(expected)]
    running_on = tvm.device("cpu" if target == "llvm" else target)
    tensors = [tvm.runtime.tensor(array, running_on) for array in arrays]
    function = lab.schedule(lab.steps(spec.device)[-1], 19, spec)
    call = running._built(function, spec, running_on, [tensors])
    seen = set()
    # Two of the scales have nine digits; with extreme zero points nearly all results are clipped.
    for factor, before, after in (
        (1, 102, 0), (0.123456789, 0, 3), (1.00000012, 255, 128), (40, 119, 10), (1e-9, 7, 255),
    ):  # fmt: skip
        scale_now, zero_now = scale * np.float32(factor), np.int32([before, after])
        tensors[-3].copyfrom(scale_now)
        tensors[-2].copyfrom(zero_now)
        call()
        expected = lab.reference(*numbers, scale_now, zero_now)
        np.testing.assert_array_equal(tensors[-1].numpy(), expected)
        assert expected.min() >= after
        seen.add(expected.tobytes())
    assert len(seen) == 5


@pytest.mark.usefixtures("optimising")
def test_products_of_8_bits_are_one_instruction():
    target = resolve("llvm")
    packed = LABS["matmul_int8"].steps(target.device)[-1]
    function = LABS["matmul_int8"].schedule(packed, 128, target)
    with target.tvm_target:
        if not codegen.target_has_features("avx512vnni", target.tvm_target):
            pytest.skip("this CPU has no AVX-512 VNNI")
        assembly = str(lower(function, target).inspect_source("asm"))
    # There are 4 steps of 24 sums, and the sums stay in registers.
    assert assembly.count("vpdpbusd") >= 96


@pytest.mark.nvcc
@pytest.mark.parametrize("name", LABS)
def test_steps_compile_for_cuda(name):
    target = resolve("cuda")
    for step in LABS[name].steps(target.device):
        with target.tvm_target:
            lower(LABS[name].schedule(step, SIZES[name][0], target), target)


_PACKED = """
from tvmflow.explain import lab as running

running._peaks = lambda *_, **__: None  # a simulator takes minutes to measure its own
options = {"target": "opencl", "device": "nvidia", "steps": ["packed"], "seconds": 1e-3}
print(running.run_lab("matmul", size=37, **options).device_name)
"""


@pytest.mark.oclgrind
def test_tiles_in_local_memory_have_no_race(tmp_path):
    """Nothing is read out of bounds either, although tiles are partial."""
    log = tmp_path / "oclgrind.log"
    # The command uses its own library.
    env = {"TVMFLOW_OPENCL_LIBRARY": "", "TVMFLOW_OPENCL_DEVICE": "", "TVMFLOW_CACHE": "0"}
    done = subprocess.run(
        ["oclgrind", "--data-races", "--log", str(log), sys.executable, "-c", _PACKED],
        env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Oclgrind" in done.stdout
    assert log.read_text() == ""


# -- what may be asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "memory", "message"),
    [
        (0, 1 << 40, "was asked for 0 rows and columns; expected at least 1"),
        (-3, 1 << 40, "was asked for -3"),
        (50_000, 1 << 60, "a tensor of 2,500,000,000 elements; kernels count up to 2,147,483,647"),
        (10**30, 1 << 60, "kernels count up to 2,147,483,647"),
        (1025, 120 << 20, "needs 126.1 MB, copies included; this has 125.8 MB"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(size, memory, message):
    # A size that just fits is accepted.
    check_size(LABS["matmul"], 1024, 120 << 20, "this", 10)
    with pytest.raises(InputError, match=message):
        check_size(LABS["matmul"], size, memory, "this", 10)


def test_memory_of_this_machine_is_checked(monkeypatch):
    monkeypatch.setattr(running, "host_bytes", lambda: 1 << 20)
    # The error is raised before anything is allocated.
    monkeypatch.setitem(LABS, "matmul", replace(LABS["matmul"], operands=None))
    with pytest.raises(InputError, match=r"this machine has 1.0 MB"):
        run_lab("matmul", size=1024)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("multiply", lambda a, b: a * b),
        ("squared_difference", lambda a, b: (a - b) ** 2),
        ("dot", lambda a, b: np.einsum("ij,ij->i", a, b)),
        ("distance", lambda a, b: np.linalg.norm(a - b, axis=1)),
        ("batch_sum", lambda x: np.ones(len(x)) @ x),
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(1)[:, None]),
    ],
)
def test_references_match_the_labs_formulas(name, expected):
    arrays = LABS[name].operands(5, np.random.default_rng(3))
    wide = expected(*(array.astype(np.float64) for array in arrays))
    reference = LABS[name].reference(*arrays)
    assert reference.dtype == np.float32
    np.testing.assert_allclose(reference, wide, rtol=1e-6)


def test_blocks_have_the_requested_size():
    # There are 64 tiles of 6 rows.
    assert "in T.grid(2, 8, 48)" in scheduled("matmul", "blocked", size=384, block=8).script()
    grouped = scheduled("matmul", "packed", size=64, target="cuda", block=16).script()
    assert 'T.thread_binding(16, thread="threadIdx.x")' in grouped


def test_a_result_with_other_blocks_is_right():
    # A step with a wrong result raises.
    result = run_lab("matmul", size=37, steps=["blocked", "packed"], block=3, seconds=1e-3)
    assert result.block == 3


@pytest.mark.parametrize(
    ("name", "target", "block", "message"),
    [
        ("matmul", "llvm", 0, "blocks of 0; expected 1 to 22"),
        ("matmul", "llvm", 23, "blocks of 23; expected 1 to 22"),
        ("matmul", "cuda", 33, "expected 1 to 32"),
        ("dot", "llvm", 4, "none of its steps naive, vectorised, parallel has blocks"),
    ],
)
def test_blocks_that_are_not_possible_are_refused(name, target, block, message):
    lab, device = LABS[name], resolve(target).device
    with pytest.raises(InputError, match=message):
        with_blocks(lab, lab.steps(device), 128, block, device)
