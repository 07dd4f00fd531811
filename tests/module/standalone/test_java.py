"""The Java class and its native functions, on a Linux virtual machine."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import which

import pytest
from support.commands import output, run
from support.mock_library import BINDINGS, C_COMPILER, JAVA, foreign_library, java_classes

from tvmflow.ir.pictures import IMAGE_FORMATS

TEST = Path(__file__).with_name("ModelTest.java")

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    return java_classes(tmp_path_factory.mktemp("classes"), TEST)


def test_every_use_of_a_model_right_and_wrong(classes, mock, mock_tenfold, tvm_module, tmp_path):
    foreign = foreign_library(tmp_path / "libforeign.so")
    messages = tmp_path / "messages"
    messages.write_text("\n".join(messages_of_the_runtime()), encoding="utf-8")
    process = run(
        *("java", "-Xcheck:jni", "-Xmx128m", f"-Djava.library.path={mock.parent}"),
        *("-cp", classes, "ModelTest", mock, mock_tenfold, foreign, tvm_module, messages),
        LC_ALL="C.UTF-8",
    )
    # The JVM's own checks of JNI only print.
    *translated, last = process.stdout.splitlines()
    assert last == "passed", process.stdout
    assert "JNI" not in process.stdout
    methods = {
        f"{name}.{method}"
        for name in ("Model", "ModelOptions")
        for method in re.findall(r"public .*?(\w+)\(", _read(JAVA / f"ai/tvmflow/{name}.java"))
    }
    assert len(translated) > 10
    for line in translated:
        assert not re.search(r"tvmflow_|TVMFLOW_(?!OPENCL_)|options'", line), line
        assert {*re.findall(r"\bModel(?:Options)?\.\w+", line)} <= methods, line
    assert "in native method" not in process.stdout + process.stderr


def messages_of_the_runtime() -> list[str]:
    """Return messages that name parts of the C interface, except those that Java cannot cause."""
    c_only = (
        r"sizeof|struct_size|cl_context|cl_device|cl_event|cl_memory of|flags 0x|one of tvmflow_|"
        r"tvmflow_start\b"
    )
    found = []
    for path in sorted((BINDINGS.parent / "standalone").glob("*.c")):
        for call in re.findall(r"(?:tf_fail\w*|tf_append|tf_log)\([^;]*;", _read(path)):
            text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call)).replace("\\n", " ")
            if re.search(r"tvmflow_|TVMFLOW_|options", text) and not re.search(c_only, text):
                # Only these calls insert a name into a message.
                found += [text.replace("tvmflow_%s", f"tvmflow_{side}") for side in
                          (("input", "output") if "tvmflow_%s" in text else ("",))]  # fmt: skip
    return found


def test_methods_of_buffers_are_those_that_old_androids_have(tmp_path):
    # Android's compiler sees newer classes than phones have: in those, a buffer's `clear` and
    # similar methods return the subclass, and such a call does not exist on a phone.
    run("javac", "-nowarn", "-d", tmp_path, *sorted(JAVA.rglob("*.java")))
    code = output("javap", "-c", "-p", *tmp_path.rglob("*.class"))
    called = set(re.findall(r"// Method (java/nio/\w*Buffer\.\S+)", code))
    assert "java/nio/Buffer.clear:()Ljava/nio/Buffer;" in called
    moved = r"Buffer\.(clear|flip|limit|mark|position|reset|rewind):\(I?\)Ljava/nio/\w+Buffer;"
    assert [name for name in called if re.search(moved, name)] == []


def test_the_natives_of_the_class_are_those_of_the_library(mock):
    declared = re.findall(r"native [\w\[\]]+ (\w+)\(", _read(JAVA / "ai/tvmflow/Native.java"))
    found = re.findall(r" T Java_ai_tvmflow_Native_(\w+)", output("nm", "-D", mock))
    assert sorted(declared) == sorted(found)
    assert len(found) > 10


def test_the_entries_of_jni_have_the_numbers_that_a_jdk_gives_them(tmp_path):
    header = next(Path(which("javac")).resolve().parents[1].glob("include/jni.h"), None)
    if header is None:
        pytest.skip("this JDK has no jni.h")
    numbers = re.findall(r"^  TF_(\w+) = (\d+),$", _read(BINDINGS / "jni.c"), re.MULTILINE)
    assert len(numbers) == 17
    checks = [
        f"_Static_assert(offsetof(struct JNINativeInterface_, {_camel(name)}) == {number} * "
        f'sizeof(void*), "{name}");'
        for name, number in numbers
    ]
    entry = "offsetof(struct JNIInvokeInterface_, GetEnv) == 6 * sizeof(void*)"
    checks.append(f'_Static_assert({entry} && JNI_VERSION_1_6 == 0x00010006, "GET_ENV");')
    assert "TF_GET_ENV = 6, TF_JNI_VERSION = 0x00010006" in _read(BINDINGS / "jni.c")
    source = tmp_path / "numbers.c"
    source.write_text("#include <stddef.h>\n#include <jni.h>\n" + "\n".join(checks) + "\n")
    folders = [f"-I{header.parent}", f"-I{header.parent / 'linux'}"]
    run(*C_COMPILER, "-fsyntax-only", *folders, source)


def test_dtypes_and_statuses_are_those_of_the_c_interface():
    header = _read(BINDINGS / "tvmflow.h")
    dtypes = re.search(r"enum tvmflow_dtype {(.*?)}", header, re.DOTALL)[1]
    wanted = re.findall(r"TVMFLOW_(\w+) = (\d+)", dtypes)
    listed = re.search(r"enum DType {\s*(.*?);", _read(JAVA / "ai/tvmflow/Tensor.java"), re.DOTALL)
    names = re.findall(r"\w+", listed[1])
    assert [(name, str(index)) for index, name in enumerate(names)] == wanted
    formats = re.search(r"enum tvmflow_image_format {(.*?)}", header, re.DOTALL)[1]
    listed = re.search(r"enum Format {\s*(.*?)}", _read(JAVA / "ai/tvmflow/Image.java"), re.DOTALL)
    names = [(name, str(i)) for i, name in enumerate(re.findall(r"\w+", listed[1]))]
    assert names == re.findall(r"TVMFLOW_(\w+) = (\d+)", formats)
    assert [name.lower() for name, _ in names] == list(IMAGE_FORMATS)
    statuses = re.findall(r"TVMFLOW_ERROR_(\w+) = (\d+)", header)
    java = _read(JAVA / "ai/tvmflow/ModelException.java")
    assert re.findall(r"^\s+([A-Z_]+)\((\d+)\)", java, re.MULTILINE) == statuses
    flags = dict(re.findall(r"TVMFLOW_(PROFILE|NO_COMMAND_BUFFER) = (\d+)", header))
    options = _read(JAVA / "ai/tvmflow/ModelOptions.java")
    assert dict(re.findall(r"int (PROFILE|NO_COMMAND_BUFFER) = (\d+);", options)) == flags


def _camel(name: str) -> str:
    return "".join(p if p in ("ID", "VM") else p.capitalize() for p in name.split("_"))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
