"""CPU kernels in a standalone library: alone, and next to OpenCL kernels."""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support import runtime_build
from support import standalone_api as api
from support.commands import output
from support.fake_opencl import Fake, build_no_icd, compile_c
from support.operators import build, feeds_for, random, references
from support.planned import parsed
from support.quantized_networks import picture, quantized
from support.small_plans import Plan, add_plan, cpu_plan, values

import tvmflow
from tvmflow.compiler.options import CompileOptions
from tvmflow.devices.host import Host
from tvmflow.devices.target import LEVELS
from tvmflow.errors import ArtifactError
from tvmflow.ir.limits import LARGE_WEIGHT_BYTES
from tvmflow.module.blocked_layout import all_to_blocked
from tvmflow.module.standalone import precompile
from tvmflow.module.standalone.binding import LOG
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan, find_plans
from tvmflow.verify.tolerance import NETWORK, assert_close

OPENCL, CPU = 1, 2
X = values(64)
ON_X86 = pytest.mark.skipif(Host.native().architecture != "x86_64", reason="levels of x86-64")


def with_test(plan: Plan, w: np.ndarray) -> Plan:
    """Add a self-test, whose inputs are all 0.5."""
    plan.test([(3, 0.5, 0.5)], {0: 1 + w})
    return plan


@pytest.fixture(scope="module")
def make(link):
    """Return a function that links a library with a plan for the CPU, and maybe one for OpenCL."""
    return lambda plan, opencl=None, **options: link(opencl, cpu=plan, **options)


@pytest.fixture(scope="module")
def both(make):
    """Return a library for both backends, with a self-test, and its weight."""
    opencl, w = add_plan()
    return make(with_test(cpu_plan(), w), with_test(opencl, w)), w


# -- the CPU alone ---------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("kernel", ["add", "add_apart"])
def test_a_plan_runs(make, kernel, threads):
    _, w = add_plan()
    with api.Model(make(cpu_plan(kernel)), cpu_threads=threads, flags=api.PROFILE) as model:
        assert model.library.tvmflow_backend_used(model.handle) == CPU
        for factor in (1, 3):
            (y,) = model(factor * X)
            np.testing.assert_allclose(y, 2 * factor * X + w, rtol=1e-6)
        for factor in (1, 3):
            model.set_input(0, factor * X)
            model.call("start")
            model.call("wait")
            np.testing.assert_allclose(model.get_output(0), 2 * factor * X + w, rtol=1e-6)
        (measured,) = model.profile()
        assert measured.name == kernel.encode()
        assert 0 <= measured.end_ns - measured.start_ns < 1e9
        told = model.describe()
    assert (told["backend"], told["device"]["library"]) == ("cpu", "(inside)")
    assert threads in (0, int(told["device"]["driver"].split()[0]))
    assert told["memory"]["weights_shared"]


def test_starts_have_one_thread_which_ends_with_the_instance(make):
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    with api.Model(make(cpu_plan()), cpu_threads=1) as model:
        assert threads() == before
        model.set_input(0, X)
        for _ in range(3):
            model.call("start")
            model.call("wait")
            assert threads() == before + 1
        # The model is destroyed while its last run is going on.
        model.call("start")
    assert threads() == before


def test_tasks_are_done_once_each(make):
    expected = sum(n * (n + 1) // 2 for n in (1 + i % 37 for i in range(100)))
    with api.Model(make(cpu_plan("count")), cpu_threads=4) as model:
        for _ in range(20):
            (y,) = model(X)
            assert y[0] == expected


def test_memory_of_the_application(make):
    _, w = add_plan()
    room = np.zeros(64 + 32, np.float32)
    begin = -room.ctypes.data % 64 // 4
    x, y = room[begin : begin + 64], np.zeros(80, np.float32)
    y = y[-y.ctypes.data % 64 // 4 :][:64]
    with api.Model(make(cpu_plan())) as model:
        model.call("use_input", 0, x.ctypes.data_as(ctypes.c_void_p))
        model.call("use_output", 0, y.ctypes.data_as(ctypes.c_void_p))
        x[:] = X
        model.call("run")
        np.testing.assert_allclose(y, 2 * X + w, rtol=1e-6)
        with pytest.raises(api.CallError, match="multiple of 64 bytes"):
            model.call("use_input", 0, ctypes.c_void_p(x.ctypes.data + 4))
        model.call("use_input", 0, None)
        np.testing.assert_allclose(model(3 * X), [6 * X + w], rtol=1e-6)


def test_a_kernel_that_fails_leaves_no_result(make):
    with api.Model(make(cpu_plan("fail"))) as model:
        model.set_input(0, X)
        with pytest.raises(api.CallError, match="CL_OUT_OF_RESOURCES"):
            model.call("run")
        with pytest.raises(api.CallError, match="no whole result"):
            model.get_output(0)


@pytest.mark.parametrize(
    ("functions", "taken"),
    [
        (("add=fail:none", "add"), "add"),
        pytest.param(
            ("add=fail:x86-64", "add=add_apart:x86-64-v2", "add=fail:"), "add_apart", marks=ON_X86
        ),
    ],
)
def test_the_first_function_is_taken_that_the_processor_can_run(make, functions, taken):
    _, w = add_plan()
    with api.Model(make(cpu_plan(), functions=functions)) as model:
        np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)


@pytest.mark.parametrize(
    ("plan", "status", "text"),
    [
        (cpu_plan("missing"), api.DEVICE, "'missing'"),
        (cpu_plan(needs="x86-64-v9"), api.UNSUPPORTED, "x86-64-v9"),
    ],
)
def test_what_the_library_or_the_processor_lacks(make, plan, status, text):
    with pytest.raises(api.CallError, match=text) as caught:
        api.Model(make(plan))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("options", "status", "text"),
    [
        ({"backend": OPENCL}, api.UNSUPPORTED, "for the CPU only.*--target opencl"),
        ({"backend": 3}, api.ARGUMENT, "backend is 3"),
    ],
)
def test_backends_that_are_not_there(make, options, status, text):
    with pytest.raises(api.CallError, match=text) as caught:
        api.Model(make(cpu_plan()), **options)
    assert caught.value.status == status


@pytest.mark.parametrize("backend", [0, OPENCL, CPU], ids=["auto", "opencl", "cpu"])
def test_children_of_a_process_whose_threads_run_models(both, driver, tmp_path, backend):
    """Children run old and new models on the CPU; OpenCL is refused, or replaced, at once."""
    library, w = both
    X.tofile(tmp_path / "input.bin")
    (2 * X + w).astype(np.float32).tofile(tmp_path / "expected.bin")
    program = compile_c(
        tmp_path / "fork", Path(__file__).with_name("fork.c"), f"-I{runtime_build.BINDINGS}",
        library, f"-Wl,-rpath,{library.parent}", "-D_GNU_SOURCE", "-lm", "-pthread",
    )  # fmt: skip
    *lines, last = output(program, driver, tmp_path, backend).splitlines()
    assert last == "end"
    # Only a model that another thread was changing is unusable.
    torn = "busy 8 Another thread was in a call of this model when the process was forked"
    lines = [line for line in lines if not line.startswith(torn)]
    forked = "7 An OpenCL device was used in a process forked from one"
    if backend == OPENCL:
        refused = ("new", "idle", "busy")
        assert all(line.startswith(tuple(f"{w} {forked}" for w in refused)) for line in lines)
        assert sum(line.startswith(("new", "idle")) for line in lines) == 24
    else:
        assert lines == []


@pytest.mark.slow
def test_eight_threads_in_one_pool(tmp_path, kernels):
    """The thread sanitizer checks parallel instances, and a pool that comes and goes."""
    _, w = add_plan()
    sanitizer = ("-fsanitize=thread", "-g")
    code = compile_c(
        tmp_path / "kernels.o", "-c", *sanitizer, Path(__file__).with_name("cpu_kernels.c")
    )
    data = runtime_build.data_object(
        tmp_path / "data.o",
        {
            "tvmflow_plan": b"",
            "tvmflow_cpu_plan": with_test(cpu_plan(), w).encode(),
            "tvmflow_weights": cpu_plan().weights(),
        },
        functions=["add"],
    )
    X.tofile(tmp_path / "input.bin")
    (2 * X + w).astype(np.float32).tofile(tmp_path / "expected.bin")
    program = compile_c(
        tmp_path / "threads", *sanitizer, "-DON_CPU",
        Path(__file__).with_name("threads.c"), f"-I{runtime_build.BINDINGS}",
        *runtime_build.objects(*sanitizer), data, code, "-ldl", "-lm", "-pthread",
    )  # fmt: skip
    output(program, "", tmp_path)


# -- next to OpenCL --------------------------------------------------------------------------


def test_opencl_is_taken_where_it_works(both, driver):
    library, w = both
    with api.Model(library, opencl_library=driver) as model:
        assert model.describe()["backend"] == "opencl"
        np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (None, "No OpenCL device"),
        (("BUILD", "fail"), "Building program 0"),
        (("BUFFER_BYTES", "100"), "allocates at most 100"),
        (("STUB", "1"), "Self-test"),
    ],
)
def test_the_cpu_is_taken_where_opencl_cannot_be_used(both, driver, setting, reason):
    library, w = both
    options = {"opencl_library": driver if setting else "/nowhere/libOpenCL.so"}
    fake = Fake(driver)
    if setting:
        fake.set(*setting)
    try:
        with api.Model(library, **options) as model:
            told = model.describe()
            assert told["backend"] == "cpu"
            assert reason in told["opencl_rejected"]
            np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)
        if reason != "Self-test":
            with pytest.raises(api.CallError, match=reason):
                api.Model(library, **options, backend=OPENCL)
    finally:
        if setting:
            fake.set(setting[0], None)
    assert fake.live == ""


def test_binaries_are_all_that_a_start_for_precompiling_leaves(both, driver, tmp_path, monkeypatch):
    """A library with a fallback also keeps its choice of backend, in a file of the same kind."""
    monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", str(driver))
    monkeypatch.setenv("TVMFLOW_CACHE", "1")
    for name, start in (
        ("loaded", lambda: tvmflow.load(both[0]).open().close()),
        ("precompiled", lambda: precompile.run_once(both[0], 0)),
    ):
        monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / name))
        start()
    kept = Counter(path.parts[-3] for path in tmp_path.glob("*/standalone/*.program"))
    assert kept == {"loaded": 2, "precompiled": 1}


def test_kernels_of_the_cpu_are_not_precompiled(make, monkeypatch):
    path = make(cpu_plan())
    plan = find_plan(path)
    assert plan is not None
    plan.metadata["target"] = "llvm"
    monkeypatch.setattr(precompile, "find_plan", lambda _: plan)
    with pytest.raises(ArtifactError, match="compiled already") as caught:
        precompile.Source.open(path)
    assert caught.value.remedy == "Ship the library as it is."


def test_the_cpu_is_taken_where_a_vendor_s_library_lacks_functions(both, tmp_path):
    library, w = both
    with api.Model(library, opencl_library=build_no_icd(tmp_path, 2)) as model:
        assert "it lacks" in model.describe()["opencl_rejected"]
        np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)


def test_a_long_sentence_reaches_the_log_whole_and_the_description_with_its_lines(
    both,
):
    """A driver's build log, for example, has its cause at the end."""
    lines: list[str] = []
    log = LOG(lambda _, level, text: lines.append(text.decode()) if level else None)
    places = "/".join(["nowhere" * 20] * 10)
    with api.Model(both[0], opencl_library=f"/{places}/lib.so", log=log) as model:
        told = model.describe()["opencl_rejected"]
    assert len(told) > 1400
    assert lines == [f"OpenCL is not used: {told}"]
    assert "\nLibraries tried:\n" in told


def test_a_device_that_computes_wrong_is_not_taken_and_that_is_remembered(make, driver, tmp_path):
    opencl, w = add_plan(scale=3)
    library = make(with_test(cpu_plan(), w), with_test(opencl, w))
    options = {"opencl_library": driver, "cache_folder": tmp_path}
    for reason in ("Self-test", "at an earlier start"):
        with api.Model(library, **options) as model:
            told = model.describe()
            assert told["backend"] == "cpu"
            assert reason in told["opencl_rejected"]
            np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)


def test_the_faster_one_is_chosen_once(both, driver, tmp_path):
    library, w = both
    chosen = set()
    options = {"opencl_library": driver, "cache_folder": tmp_path, "flags": 16}
    for _ in range(3):
        with api.Model(library, **options) as model:
            chosen.add(model.describe()["backend"])
            np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)
    assert len(chosen) == 1


@pytest.mark.parametrize("call", ["clEnqueueNDRangeKernel", "clFinish", "clEnqueueWriteBuffer"])
def test_a_driver_that_fails_in_the_middle_is_replaced_at_the_next_call(both, driver, call):
    library, w = both
    fake = Fake(driver)
    with api.Model(library, opencl_library=driver) as model:
        model.set_input(0, X)
        fake.fake_fail(call.encode(), ctypes.c_uint64(1), -5, True)
        with pytest.raises(api.CallError, match="the next call takes the CPU"):
            model(X)
        fake.fake_fail(None, ctypes.c_uint64(0), 0, False)
        with pytest.raises(api.CallError, match="'x' has not been set"):
            model.call("run")
        np.testing.assert_allclose(model(X), [2 * X + w], rtol=1e-6)
        assert model.describe()["backend"] == "cpu"
    assert fake.live == ""


# -- networks --------------------------------------------------------------------------------


def conv_net() -> onnx.ModelProto:
    """Return convolutions of odd channels, a branch, pooling, a dense layer and a softmax."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["r"]),
        node("Conv", ["r", "w1"], ["d"], group=7, pads=[1, 1, 1, 1]),
        node("Add", ["r", "d"], ["s"]),
        node("GlobalAveragePool", ["s"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w2"], ["g"]),
        node("Softmax", ["g"], ["y"], axis=1),
    ]
    constants = {
        "w0": random((7, 3, 3, 3), 0.3), "b0": random((7,)), "w1": random((7, 1, 3, 3), 0.3),
        "w2": random((7, 11)),
    }  # fmt: skip
    return build(nodes, {"x": (1, 3, 17, 19)}, ["y"], constants)


NETWORKS = {
    "conv": conv_net,
    "results that are inputs, constants and each other": lambda: parsed(
        "float[2,3] x", "float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] k",
        "a = Identity(x) b = Relu(x) c = Identity(b) k = Identity(w)",
        "float[2,3] w = {1,2,3,4,5,6}",
    ),
    "integers": lambda: parsed(
        "int64[5] x", "int64[5] y, bool[5] z", "y = Mul(x, x) z = Less(x, y)"
    ),
    "sorted": lambda: build(
        [helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1)],
        {"x": (3, 40)}, ["v"], {"k": np.array([7], np.int64)},
    ),
    "recurrent": lambda: build(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=5)],
        {"x": (6, 2, 4)}, ["y"], {"w": random((1, 20, 4)), "r": random((1, 20, 5))},
    ),
}  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    model = NETWORKS[name]()
    with tvmflow.compile(model, target="llvm", format="standalone") as module:
        feeds = {
            i.name: random(i.shape, 3).astype(i.dtype) if i.dtype == "float32"
            else np.arange(-2, i.shape[0] - 2, dtype=i.dtype)
            for i in module.inputs
        }  # fmt: skip
        got = module(feeds)
        for info, reference in zip(module.outputs, references(model, feeds), strict=True):
            assert_close(got[info.name], reference, NETWORK)
        module.self_test()


@pytest.mark.onnxruntime
def test_a_large_weight_whose_name_is_no_identifier():
    """It is never a constant of the program, but a parameter from the beginning."""
    weight = random((8400, 4000), 0.02)
    assert weight.nbytes >= LARGE_WEIGHT_BYTES
    node = helper.make_node("Gemm", ["x", "fc.weight"], ["y"], transB=1)
    model = build([node], {"x": (1, 4000)}, ["y"], {"fc.weight": weight})
    x = random((1, 4000))
    with tvmflow.compile(model, target="llvm", format="standalone") as module:
        (y,) = module(x=x).values()
    assert_close(y, references(model, {"x": x})[0], NETWORK)


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("options", "backends"),
    [
        ({"target": "llvm"}, ["cpu"]),
        ({"target": "opencl", "device": "adreno", "fallback": "cpu"}, ["opencl", "cpu"]),
    ],
    ids=["llvm", "fallback"],
)
def test_several_shapes(options, backends):
    model = parsed("float[n,3,8,8] x", "float[n,5,6,6] y", "y = Conv(x, w)", "")
    weight = helper.make_tensor("w", 1, (5, 3, 3, 3), random((5, 3, 3, 3)).ravel())
    model.graph.initializer.append(weight)
    shapes = {"x": ("1..3", 3, 8, 8)}
    compiled = tvmflow.compile(model, format="standalone", shapes=shapes, **options)
    with closing(compiled):
        for backend in backends:
            with tvmflow.load(compiled.path, backend=backend) as module:
                for batch in (1, 2, 3, 5):
                    x = random((batch, 3, 8, 8), seed=batch)
                    (y,) = module(x=x).values()
                    assert_close(y, references(model, {"x": x})[0], NETWORK)
                module.self_test()


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", ["nchw4c", "texture"])
def test_a_fallback_keeps_the_layouts(form):
    model = conv_net()
    feeds = feeds_for(model)
    (reference,) = references(model, feeds)
    kept = {model.graph.input[0].name: form}
    options = {"target": "opencl", "device": "adreno", "format": "standalone", "keep_layout": kept}
    with tvmflow.compile(model, fallback="cpu", **options) as module:
        assert len(module.inputs[0].shape) == 5
        for backend in ("opencl", "cpu"):
            with tvmflow.load(module.path, backend=backend) as loaded:
                assert loaded.inputs[0].shape == module.inputs[0].shape
                (got,) = loaded(all_to_blocked(loaded.inputs, feeds)).values()
                assert_close(got, reference, NETWORK)


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_a_fallback_shares_what_is_equal(device, tmp_path, monkeypatch):
    model = conv_net()
    feeds = feeds_for(model)
    (reference,) = references(model, feeds)
    stored = []
    for fallback in (None, "cpu"):
        path = tmp_path / f"lib{fallback}.so"
        with tvmflow.compile(
            model, target="opencl", device=device, format="standalone", fallback=fallback
        ) as module:
            module.save(path)
        plan = find_plan(path)
        assert plan is not None
        stored.append(int(plan.header["weight_bytes"]))
    # All weights but biases are stored in one blocking only: others are derived when needed.
    assert stored[1] - stored[0] < 256 < stored[0]
    for library in ("", "/nowhere/libOpenCL.so"):
        if library:
            monkeypatch.setenv("TVMFLOW_OPENCL_LIBRARY", library)
        with tvmflow.load(path) as module:
            assert module.describe()["backend"] == ("cpu" if library else "opencl")
            (got,) = module(feeds).values()
            assert module.profile(feeds, runs=2)
        assert_close(got, reference, NETWORK)


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize(("algorithm", "channels"), [("direct", 24), ("winograd4", 32)])
def test_weights_of_winograd_s_algorithm_are_made_of_the_other_plan_s(
    algorithm, channels, tmp_path
):
    """One plan has windows, with lanes beyond the last channel; or planes in other blocks."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    weight = random((channels, 29, 3, 3), 0.1)
    model = build([node], {"x": (1, 29, 30, 31)}, ["y"], {"w": weight})
    feeds, path = feeds_for(model), tmp_path / "libnet.so"
    options = {"device": "adreno", "fallback": "cpu", "algorithms": {"conv": algorithm}}
    with tvmflow.compile(model, format="standalone", **options) as module:
        module.save(path)
    opencl, cpu = (plan[Section.WEIGHTS]["bytes"] for plan in find_plans(path))
    assert cpu.max() == 36 * 32 * 29 * 4
    header = find_plans(path)[0].header
    assert opencl.max() <= int(header["weight_bytes"]) < opencl.max() + 256
    for backend in ("opencl", "cpu"):
        with tvmflow.load(path, backend=backend) as module:
            (got,) = module(feeds).values()
            assert_close(got, references(model, feeds)[0], NETWORK)


# -- choices ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "cpu", "needs"),
    [
        ("linux-x64", None, ["x86-64-v3"]),
        ("linux-x64", "x86-64", []),
        ("linux-x64", "avx512vnni", ["x86-64-v4", "avx512vnni"]),
        ("android-arm64", None, []),
        ("android-arm64", "armv8.2-a+dotprod", ["dotprod"]),
    ],
)
def test_processors_of_other_machines(host, cpu, needs):
    spec = CompileOptions(target="llvm", format="standalone", host=host, cpu=cpu).resolve()
    assert spec.needs == needs
    best = list(LEVELS[Host.parse(host).architecture])[-1]
    assert (spec.with_dots.level if spec.with_dots else spec.level) == best
    assert ("+reserve-x18" in spec.tvm_target.attrs.get("mattr", [])) == spec.host.startswith("a")


@ON_X86
@pytest.mark.onnxruntime
@pytest.mark.parametrize("format", ["standalone", "tvm"])
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3"])
def test_a_network_for_older_processors(cpu, format):
    model = conv_net()
    feeds = feeds_for(model)
    with tvmflow.compile(model, target="llvm", format=format, cpu=cpu) as module:
        assert_close(module(feeds)[0], references(model, feeds)[0], NETWORK)


@ON_X86
@pytest.mark.onnxruntime
@pytest.mark.parametrize(("cpu", "twice"), [("x86-64", True), ("x86-64-v3", True), (None, None)])
def test_dot_products_are_there_twice(cpu, twice, tmp_path):
    """One is for the requested level, the other for processors with the instruction."""
    model = quantized("squeezenet", "QOperator")
    feeds = picture(model)
    with tvmflow.compile(model, target="llvm", format="standalone", cpu=cpu) as module:
        stored = module.save(tmp_path / "libnet.so").read_bytes()
        np.testing.assert_array_equal(module(feeds)[0], references(model, feeds)[0])
    assert twice in (None, b"\0avx512vnni\0" in stored)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "cuda", "format": "standalone"}, "opencl and llvm"),
        ({"target": "llvm", "host": "linux-x64", "cpu": "x86-64-v9"}, "expected one of x86-64, "),
        ({"target": "llvm", "host": "linux-arm64", "cpu": "x86-64-v3"}, "of armv8-a, armv8.2-a"),
        ({"target": "opencl", "device": "cpu", "cpu": "x86-64-v3"}, "no kernels for processors"),
        ({"target": "llvm", "format": "standalone", "fallback": "cpu"}, "fallback was asked for"),
        ({"target": "opencl", "device": "cpu", "fallback": "cpu"}, "fallback was asked for"),
        (
            {"target": "llvm", "format": "standalone", "host": "android-armv7"},
            "machine code was asked for the host android-armv7",
        ),
        (
            {"device": "mali", "format": "standalone", "fallback": "cpu", "host": "android-armv7"},
            "machine code was asked for the host android-armv7",
        ),
        (
            {"target": "opencl", "device": "cpu", "format": "standalone", "fallback": "gpu"},
            "fallback 'gpu' is not known",
        ),
    ],
)
def test_options_that_do_not_go_together(options, text):
    with pytest.raises(tvmflow.TvmflowError, match=text):
        CompileOptions(**options).resolve()


@pytest.mark.onnxruntime
def test_what_only_tvm_s_runtime_can_is_refused():
    nodes = [helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1)]
    model = build(nodes, {"x": (2, 3000)}, ["v"], {"k": np.array([600], np.int64)})
    with pytest.raises(tvmflow.TvmflowError, match="calls a function of TVM's runtime"):
        tvmflow.compile(model, target="llvm", format="standalone")
