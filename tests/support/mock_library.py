"""A standalone library whose model is written in C and needs no OpenCL: see `mock_model.c`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from support.commands import run
from support.drivers import run_program
from tvmflow.devices.host import Host
from tvmflow.module.standalone import code_digest
from tvmflow.module.standalone.format import Section, Strings, encode_plan, records

ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "native" / "bindings"
SOURCE = ROOT / "tests" / "module" / "standalone" / "mock_model.c"
C_COMPILER = shlex.split(os.environ.get("CC", "cc"))
CPP_COMPILER = shlex.split(os.environ.get("CXX", "c++"))

#: Folder of the Java classes.
JAVA = BINDINGS / "java"


#: Flags of C and C++ programs that use the bindings.
STRICT = ("-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{BINDINGS}")


def c_program(program: Path, source: Path, library: Path) -> Path:
    """Compile a C program that is linked to a library."""
    linked = (library, f"-Wl,-rpath,{library.parent}")
    run(*C_COMPILER, "-std=c99", *STRICT, source, *linked, "-o", program)
    return program


def cpp_program(program: Path, source: Path) -> Path:
    """Compile a C++ program that opens libraries."""
    run(*CPP_COMPILER, "-std=c++17", *STRICT, source, "-ldl", "-o", program)
    return program


def foreign_library(path: Path) -> Path:
    """Compile a library that has nothing to do with tvmflow."""
    path.with_suffix(".c").write_text("int my_tvmflow_create_all(void) { return 1; }")
    run(*C_COMPILER, "-shared", "-fPIC", path.with_suffix(".c"), "-o", path)
    return path


def run_java(classes: Path, name: str, *arguments: object) -> str:
    """Return the output of a Java program that uses an OpenCL driver."""
    # Drivers for CPUs handle signals that the virtual machine needs, too.
    signals = next(Path(which("java")).resolve().parents[1].rglob("libjsig.so"), "")
    command = ("java", "-Xcheck:jni", "-cp", classes, name, *arguments)
    return run_program(*command, LD_PRELOAD=str(signals))


def java_classes(folder: Path, program: Path) -> Path:
    """Compile the Java classes like Android's tools, for Java 8, and a program that uses them."""
    options = ("-Xlint:all", "-Xlint:-options", "-Werror", "-encoding", "UTF-8", "-d", folder)
    run("javac", "--release", "8", *options, *sorted(JAVA.rglob("*.java")))
    run("javac", *options, "-cp", folder, program)
    return folder


def mock_plan() -> bytes:
    """Return the plan of `mock_model.c`'s tensors and kernels."""
    strings = Strings()
    tensor = {"dtype": 0, "dimensions": 2, "shape": (2, 3, 0, 0, 0, 0, 0, 0), "bytes": 24}
    sizes = {"dimensions": 2, "global": (8, 2, 1), "local": (4, 1, 1)}
    metadata = {
        "name": "sum",
        "target": "opencl",
        "device": "cpu",
        "options": {},
        "host": Host.native().triple,
        "tvmflow": "0",
        "tvm": "0",
        "stage_ms": {},
        "storage_summary": "by hand",
        "memory_bytes": 0,
    }
    tensors = [
        {"name": strings(name), "allocation": index, **tensor}
        for index, name in enumerate(("a", "b/𝄞", "sum"))
    ]
    sections = {
        Section.ALLOCATIONS: records(Section.ALLOCATIONS, [{"bytes": 64}] * 3),
        Section.INPUTS: records(Section.INPUTS, tensors[:2]),
        Section.OUTPUTS: records(Section.OUTPUTS, tensors[2:]),
        Section.LAUNCHES: records(
            Section.LAUNCHES,
            [
                {"kernel": strings(kernel), "function": strings(function), **sizes}
                for kernel, function in (("add_kernel", "add"), ("scale_kernel", "scale"))
            ],
        ),
        Section.SHAPES: records(Section.SHAPES, [{"launches": 2}]),
        Section.METADATA: json.dumps(metadata).encode() + b"\0",
    }
    return encode_plan({**sections, Section.STRINGS: strings.content}, b"")


def build_mock(path: Path, scale: int = 1, flags: Sequence[str] = ()) -> Path:
    """Compile the mock to a library with JNI functions, a plan and a digest, like real ones."""
    plan, note = path.with_suffix(".plan"), path.with_suffix(".s")
    plan.write_bytes(mock_plan())
    note.write_text(code_digest.note() + '.section .note.GNU-stack,"",%progbits\n')
    run(
        *C_COMPILER,
        *("-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"),
        *("-fvisibility=hidden", f"-I{BINDINGS}", f"-DSCALE={scale}", f"-DPLAN={plan}"),
        *(*flags, SOURCE, BINDINGS / "jni.c", note, "-ldl"),
        # It calls its own functions, whatever other model the program is linked to.
        *("-Wl,-Bsymbolic", f"-Wl,-soname,{path.name}", "-o", path),
    )
    code_digest.stamp(path, "")
    plan.unlink()
    note.unlink()
    return path
