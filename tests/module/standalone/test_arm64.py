"""Libraries for 64-bit Arm, run on an emulated processor.

Libraries for Linux use the C library of Debian's cross compilers; those for Android use it, too,
with wrappers for the differences.  The OpenCL driver is the fake one, built for Arm, or PoCL's if
``TVMFLOW_ARM64_SYSROOT`` is a folder of Debian's packages for Arm (see `arm64_sysroot.sh`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import commands
from support.cross import FOLDER, NATIVE, Cross
from support.networks import Graph
from support.quantized_networks import picture, quantized
from support.small_plans import add_plan, uniform

import tvmflow
from tvmflow.devices.host import Host
from tvmflow.module.link import Tool, tools, ziglang
from tvmflow.module.standalone.link import FLAGS, link_library
from tvmflow.verify.reference import run_reference
from tvmflow.verify.tolerance import compare

CROSS_LIBRARIES = "/usr/aarch64-linux-gnu"
COUNT, SCALE, SEED = 48, 1.5, 3

pytestmark = [pytest.mark.arm64, pytest.mark.cross]


def tool(host: str) -> Tool:
    return next(iter(tools(Host.parse(host))))


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Cross:
    return Cross("aarch64-linux-gnu.2.36", tmp_path_factory.mktemp("arm64"))


@pytest.fixture(scope="module")
def program(cross: Cross) -> Path:
    return cross.program()


@pytest.fixture(scope="module")
def driver(cross: Cross) -> Path:
    return cross.driver()


@pytest.fixture(scope="module")
def android(cross: Cross) -> list[str]:
    """Return the emulator's options that preload Android's libraries before glibc's."""
    return [word for name, value in cross.android().items() for word in ("-E", f"{name}={value}")]


@pytest.fixture
def network(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that links ``y = k * x + w`` for a host."""
    plan, w = add_plan(COUNT, SCALE, seed=5)
    plan.test([(SEED, -1.0, 1.0)], {0: SCALE * uniform(SEED, COUNT).astype(np.float32) + w})
    x = np.random.default_rng(6).normal(size=COUNT).astype(np.float32)
    x.tofile(tmp_path / "input.bin")
    (SCALE * x + w).tofile(tmp_path / "expected.bin")

    def make(host: str, embed: bool = True) -> Path:
        weights = tmp_path / "weights"
        weights.write_bytes(plan.weights())
        output = tmp_path / "libnet.so"
        link_library(plan.encode(), weights, Host.parse(host), output, embed=embed)
        return output

    return make


def run(emulator: list[str], program: Path, library: Path, opencl: object) -> tuple[int, str]:
    """Run the program; return its status and output."""
    done = commands.run(*emulator, program, library, opencl, library.parent, status=None)
    return done.returncode, done.stdout + done.stderr


def use(emulator: list[str], program: Path, library: Path, opencl: object) -> dict[str, list[str]]:
    """Run the program and compare; return its output by the word before the colon."""
    folder = library.parent
    status, text = run(emulator, program, library, opencl)
    assert status == 0, text
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(": ")
        found.setdefault(word, []).append(rest)
    assert "good" in found
    expected = np.fromfile(folder / "expected.bin", np.float32)
    output = np.fromfile(folder / "output.bin", np.float32)[: len(expected)]
    assert compare("y", output, expected).passed
    return found


RESERVED = re.compile(r"\b[xw]18\b")
#: A function of so many values at a time that all registers are used.
MANY = "".join(
    [
        "long many(long* p) {\n",
        *(f"  long v{i} = p[{i}];\n" for i in range(27)),
        '  __asm__ volatile("" ::: "memory");\n',
        "  return " + " ^ ".join(f"v{i} * p[v{(i + 1) % 27}]" for i in range(27)) + ";\n}\n",
    ]
)
EMULATOR = ["qemu-aarch64-static", "-L", CROSS_LIBRARIES]


HOSTS = pytest.mark.parametrize("host", ["linux-arm64", "android-arm64"])


@pytest.mark.parametrize("embed", [True, False])
@HOSTS
def test_the_whole_interface_on_arm(host, embed, program, driver, android, network):
    emulator = EMULATOR + (android if host == "android-arm64" else [])
    library = network(host, embed)
    for start in ("cold", "with programs that were kept"):
        found = use(emulator, program, library, driver)
        assert found["interface"] == ["1 1"], start
        assert found["kernel"] == ["add fused_add"]
        assert found["self-test"] == [str(COUNT)]
        assert found["refused"][0].startswith("1 ")
        assert found["left"] == [""]
        assert "Fake GPU" in found["describe"][0]


def convolutions(folder: Path) -> Path:
    """Write a small network, an input of it, and ONNX Runtime's result."""
    graph = Graph(1, 3, 18, 13)
    a = graph.conv("x", 13, 3, stride=2)
    b = graph.node("Relu", [a], 13)
    c = graph.conv(graph.conv(b, 13, 3, groups=13), 6)
    model = folder / "net.onnx"
    y = graph.node("Add", [c, graph.conv(b, 6)], 6)
    onnx.save(graph.model(y), model)
    x = np.random.default_rng(6).normal(size=(1, 3, 18, 13)).astype(np.float32)
    x.tofile(folder / "input.bin")
    run_reference(model, {"x": x}, [y])[0][y].tofile(folder / "expected.bin")
    return model


@HOSTS
def test_a_network_on_the_cpu_of_arm(host, program, android, tmp_path):
    """The CPU also serves as the fallback for missing OpenCL."""
    model = convolutions(tmp_path)
    emulator = EMULATOR + (android if host == "android-arm64" else [])
    beside = {"target": "opencl", "device": "adreno", "fallback": "cpu"}
    for number, options in enumerate(({"target": "llvm"}, beside)):
        module = tvmflow.compile(model, host=host, format="standalone", **options)
        with closing(module):
            path = module.save(tmp_path / f"lib{number}.so")
        found = use(emulator, program, path, tmp_path / "none.so")
        assert '"backend":"cpu"' in found["describe"][0]
        assert len(found["kernel"]) >= 4
        assert int(found["self-test"][0]) > 100


@HOSTS
def test_dot_products_on_arm(host, program, android, tmp_path):
    """Dot products use the processor's instruction, or run without it."""
    model, path = quantized("mobilenet_v2", "QDQ"), tmp_path / "libnet.so"
    (x,) = picture(model).values()
    x.tofile(tmp_path / "input.bin")
    source = tmp_path / "net.onnx"
    onnx.save(model, source)
    name = model.graph.output[0].name
    run_reference(source, picture(model), [name])[0][name].tofile(tmp_path / "expected.bin")
    with closing(tvmflow.compile(model, target="llvm", host=host, format="standalone")) as module:
        module.save(path)
    assert b"\0dotprod\0" in path.read_bytes()
    results = []
    for processor in ("cortex-a53", "cortex-a76"):
        emulator = [*EMULATOR, "-cpu", processor, *(android if host == "android-arm64" else [])]
        use(emulator, program, path, tmp_path / "none.so")
        results.append((tmp_path / "output.bin").read_bytes())
    assert results[0] == results[1]


def test_a_lesser_processor_is_refused_on_arm(program, tmp_path):
    model = convolutions(tmp_path)
    options = {"target": "llvm", "host": "linux-arm64", "cpu": "armv8.2-a+dotprod"}
    with closing(tvmflow.compile(model, format="standalone", **options)) as module:
        path = module.save(tmp_path / "libnet.so")
    emulator = [*EMULATOR, "-cpu", "cortex-a53"]
    status, text = run(emulator, program, path, tmp_path / "none.so")
    assert (status, "failed: create: 3 The network needs dotprod, " in text) == (1, True), text


@HOSTS
def test_errors_on_arm(host, program, driver, android, network, tmp_path):
    emulator = EMULATOR + (android if host == "android-arm64" else [])
    library = network(host)
    status, text = run(emulator, program, library, tmp_path / "none.so")
    assert (status, "failed: create: 2 " in text) == (1, True), text
    fails = [*emulator, "-E", "FAKE_OPENCL_BUILD=fail"]
    status, text = run(fails, program, library, driver)
    assert (status, "failed: create: 4 " in text) == (1, True), text
    whole = library.read_bytes()
    library.write_bytes(whole[: whole.index(b"TVMFWGTS") + 200])
    status, text = run(emulator, program, library, driver)
    assert (status, "not loaded: it was cut short" in text) == (1, True), text
    library = network(host, embed=False)
    beside = library.with_name(f"{library.name}.weights")
    beside.write_bytes(beside.read_bytes()[:200])
    status, text = run(emulator, program, library, driver)
    assert (status, "failed: create: 6 " in text) == (1, True), text
    assert "damaged or cut short" in text


def test_android_finds_the_driver_by_its_name(program, driver, android, network):
    found = use(EMULATOR + android, program, network("android-arm64"), "-")
    assert "Fake GPU" in found["describe"][0]


@HOSTS
def test_declarations_have_the_layout_of_the_system(host, tmp_path):
    tool(host).compile(FOLDER / "layout.c", tmp_path / "layout.o", tmp_path)


def test_android_s_reserved_register_is_not_touched(tmp_path):
    """A program that uses x18 crashes on Android, now and then."""
    sources = [path for part in ("core", "standalone") for path in (NATIVE / part).glob("*.c")]
    assert sources
    for source in sources:
        assembler = tmp_path / f"{source.stem}.s"
        tool("android-arm64").compile(source, assembler, tmp_path, [*FLAGS, "-S"])
        assert not RESERVED.search(assembler.read_text()), source
    # If no register is reserved, code that needs many registers uses x18.
    many = tmp_path / "many.c"
    many.write_text(MANY)
    zig = ziglang()
    assert zig is not None
    plain = Tool("clang", (*zig, "clang", "--target=aarch64-unknown-linux-gnu"), ())
    for compiler, found in ((tool("android-arm64"), False), (plain, True)):
        compiler.compile(many, tmp_path / "many.s", tmp_path, ["-O2", "-S"])
        assert bool(RESERVED.search((tmp_path / "many.s").read_text())) == found


#: A linker on this machine that uses the files in the folder of Arm's packages.
LINKER = """#!{python}
import os, subprocess, sys
for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
    os.environ.pop(name, None)
words = []
for word in sys.argv[1:]:
    path = word.removeprefix("-L")
    if path.startswith("/") and os.path.exists({sysroot!r} + path):
        word = word[: len(word) - len(path)] + {sysroot!r} + path
    words.append(word)
linker = [sys.executable, "-m", "ziglang", "ld.lld", "--sysroot={sysroot}"]
sys.exit(subprocess.call([*linker, *words]))
"""


@pytest.fixture
def pocl(cross, tmp_path) -> list[str]:
    """Return the emulator's command with PoCL for Arm."""
    sysroot = os.environ.get("TVMFLOW_ARM64_SYSROOT")
    if not sysroot:
        pytest.skip("TVMFLOW_ARM64_SYSROOT is not set: tests/support/arm64_sysroot.sh makes one")
    preload = cross.compile("linker.so", FOLDER / "linker.c", "-shared", "-fPIC", "-ldl")
    script = tmp_path / "linker"
    script.write_text(LINKER.format(python=sys.executable, sysroot=sysroot))
    script.chmod(0o755)
    (tmp_path / "pocl").mkdir()
    environment = {
        "LD_PRELOAD": preload,
        "TVMFLOW_TEST_LINKER": script,
        "POCL_CACHE_DIR": tmp_path / "pocl",
        # The loader of drivers would also find this machine's drivers.
        "OCL_ICD_VENDORS": f"{sysroot}/usr/lib/aarch64-linux-gnu/libpocl.so.2.10.0",
    }
    options = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    return ["qemu-aarch64-static", "-L", sysroot, *options]


@pytest.mark.slow
@HOSTS
def test_pocl_on_arm(host, pocl, program, android, network):
    emulator, library = on_host(host, pocl, android)
    found = use(emulator, program, network(host), library)
    assert found["self-test"] == [str(COUNT)]
    assert "pocl" in found["describe"][0].lower()


@pytest.mark.slow
@HOSTS
def test_a_network_on_arm(host, pocl, program, android, tmp_path):
    """The network is compiled here for an Adreno, and must match ONNX Runtime."""
    model = convolutions(tmp_path)
    module = tvmflow.compile(
        model,
        target="opencl",
        device="adreno",
        # PoCL's compiler for Arm crashes on the depthwise convolution in images.
        storage="buffer",
        host=host,
        format="standalone",
        file_name="libnet.so",
    )
    with closing(module):
        path = module.save(tmp_path / "libnet.so")
    emulator, library = on_host(host, pocl, android)
    found = use(emulator, program, path, library)
    assert len(found["kernel"]) >= 4
    assert int(found["self-test"][0]) > 100


def on_host(host: str, pocl: list[str], android: list[str]) -> tuple[list[str], str]:
    """Return the emulator for a host, and PoCL's loader."""
    sysroot = os.environ["TVMFLOW_ARM64_SYSROOT"]
    if host == "android-arm64":
        # Both are preloaded: PoCL's libraries, and Android's.
        before = next(word for word in pocl if word.startswith("LD_PRELOAD="))
        own = android[-1].removeprefix("LD_PRELOAD=")
        pocl = [f"{word}:{own}" if word == before else word for word in pocl] + android[:2]
    return pocl, f"{sysroot}/usr/lib/aarch64-linux-gnu/libOpenCL.so.1"
