"""The digest of a library's code: every flipped bit is refused before anything is loaded."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from onnx import helper
from support.commands import output, run
from support.mock_library import BINDINGS, C_COMPILER
from support.operators import build
from typer.testing import CliRunner

import tvmflow
from tvmflow.cli.app import app
from tvmflow.devices.host import Host
from tvmflow.errors import ArtifactError
from tvmflow.module import elf
from tvmflow.module.standalone import link
from tvmflow.module.standalone.code_digest import check_code

#: Bytes of the ELF header that describe sections, which are not loaded.
OF_SECTIONS = {*range(40, 48), *range(58, 64)}
#: Beginning of the digest's note.
NOTE = struct.pack("<III8s", 8, 24, 1, b"tvmflow\0")
PROGRAM = """
#include <stdio.h>
#include "tvmflow_check.h"
int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    const char* const reason = tvmflow_library_check(names[i]);
    puts(reason ? reason : "right");
  }
  return 0;
}
"""


def network(shape=(1, 3, 8, 8)):
    weight = np.linspace(-1, 1, 4 * 3 * 3 * 3).astype(np.float32).reshape(4, 3, 3, 3)
    return build([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": shape}, ["y"], {"w": weight})


def compiled(folder, model, **options):
    with tvmflow.compile(model, target="llvm", format="standalone", **options) as module:
        return module.save(folder / "libnet.so")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("library"), network())


def loadable(path: Path) -> list[int]:
    """Return offsets of all loaded bytes of the file, without the weights but with their header.

    Weights have a checksum of their own.
    """
    weights = elf.read_library(path).sections[".tvmflow.weights"]
    with open(path, "rb") as file:
        loads = [s for s in ELFFile(file).iter_segments() if s["p_type"] == "PT_LOAD"]
        ranges = [range(s["p_offset"], s["p_offset"] + s["p_filesz"]) for s in loads]
    compared = range(weights.offset + 128, weights.offset + weights.bytes)
    return [at for each in ranges for at in each if at not in compared and at not in OF_SECTIONS]


def test_a_bit_of_every_kind_of_byte_is_compared(library, tmp_path, rng):
    path = tmp_path / "libnet.so"
    shutil.copy(library, path)
    check_code(path)
    places = loadable(path)
    # Test all bytes of headers and note, the weights' header, and a sample of the rest.
    weights = elf.read_library(path).sections[".tvmflow.weights"].offset
    chosen = [*places[:800], *range(weights, weights + 128)]
    chosen += rng.choice(places[800:], 500, replace=False).tolist()
    content = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for at in chosen:
            file.seek(at)
            file.write(bytes([content[at] ^ 1 << rng.integers(8)]))
            with pytest.raises(ArtifactError, match="cut short or damaged"):
                check_code(path)
            file.seek(at)
            file.write(content[at : at + 1])
    check_code(path)


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import tvmflow
from tvmflow.errors import ArtifactError

library, path, *flips = sys.argv[1:]
content, path = Path(library).read_bytes(), Path(path)
x = np.ones((1, 3, 8, 8), np.float32)
right = tvmflow.load(library)(x)[0]
for number, flip in enumerate(map(int, flips)):
    changed = bytearray(content)
    changed[flip // 8] ^= 1 << flip % 8
    # A new file each time.
    path.with_suffix(".new").write_bytes(changed)
    path.with_suffix(".new").replace(path)
    try:
        result = tvmflow.load(path)(x)[0]
    except ArtifactError:
        print("refused")
    else:
        print("right" if np.array_equal(result, right) else "wrong")
"""


def test_flipped_bits_of_all_that_is_loaded_are_refused_and_kill_nothing(
    library, tmp_path, rng, run_python
):
    """Flip bits also in the weights, and in the header's section fields, which may do no harm."""
    weights = elf.read_library(library).sections[".tvmflow.weights"]
    inside = list(range(weights.offset, weights.offset + weights.bytes))
    drawn = [*rng.choice(loadable(library), 100), *rng.choice(inside, 10), *sorted(OF_SECTIONS)]
    flips = [8 * int(at) + int(rng.integers(8)) for at in drawn]
    process = run_python(SCRIPT, library, tmp_path / "libnet.so", *flips)
    found = process.stdout.split()
    assert len(found) == len(flips), (process.returncode, process.stderr)
    assert set(found[:110]) == {"refused"}
    assert set(found[110:]) <= {"refused", "right"}


@pytest.mark.parametrize(
    "options",
    [{"embed_limit_bytes": 0}, {"shapes": {"x": ("1..2", 3, 8, 8)}}],
    ids=["sidecar", "shapes"],
)
def test_other_forms_have_one_too(options, tmp_path):
    model = network(["n", 3, 8, 8] if "shapes" in options else (1, 3, 8, 8))
    path = compiled(tmp_path, model, **options)
    check_code(path)
    content = bytearray(path.read_bytes())
    text = elf.read_library(path).sections[".text"]
    content[text.offset + text.bytes // 2] ^= 0x10
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").replace(path)
    with pytest.raises(ArtifactError, match="the code is not what was written") as caught:
        tvmflow.load(path).open()
    assert "Copy it again" in caught.value.remedy
    result = CliRunner().invoke(app, ["inspect", str(path), "--check"])
    assert result.exit_code == 2
    assert "the code is not what was written" in " ".join(result.output.split())


def test_a_library_without_one_is_damaged(library, tmp_path):
    path = tmp_path / "libnet.so"
    content = library.read_bytes()
    for changed in (content.replace(NOTE, NOTE[::-1]), _without_digest(content)):
        path.write_bytes(changed)
        with pytest.raises(ArtifactError, match="the digest of its code is missing"):
            check_code(path)


def _without_digest(content: bytes) -> bytes:
    at = content.index(NOTE) + len(NOTE)
    return content[:at] + bytes(8) + content[at + 8 :]


def test_stripping_keeps_it_and_cutting_short_does_not(library, tmp_path):
    path = tmp_path / "libnet.so"
    shutil.copy(library, path)
    run("strip", "--strip-unneeded", path)
    assert path.read_bytes() != library.read_bytes()
    check_code(path)
    for size in (10, 70, 400, 30_000):
        path.write_bytes(library.read_bytes()[:size])
        with pytest.raises(ArtifactError, match="cut short or damaged"):
            check_code(path)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return a program that prints C's message for each library."""
    source = tmp_path_factory.mktemp("program") / "check.c"
    source.write_text(PROGRAM)
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-pedantic")
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    flags = ("-std=c99", *warnings, *sanitizers, f"-I{BINDINGS}")
    run(*C_COMPILER, *flags, source, "-o", source.with_suffix(""))
    return lambda *paths: output(source.with_suffix(""), *paths).splitlines()


def test_c_compares_the_same(library, program, tmp_path, rng):
    content = library.read_bytes()
    places = loadable(library)
    drawn = places[:800:7] + rng.choice(places[800:], 40, replace=False).tolist()
    paths = []
    for at in drawn:
        paths.append(tmp_path / f"lib{at}.so")
        changed = bytearray(content)
        changed[at] ^= 1 << rng.integers(8)
        paths[-1].write_bytes(changed)
    for size in (10, 70, 400, 30_000):
        paths.append(tmp_path / f"cut{size}.so")
        paths[-1].write_bytes(content[:size])
    paths.append(tmp_path / "undigested.so")
    paths[-1].write_bytes(_without_digest(content))
    found = program(library, *paths, tmp_path / "none.so")
    assert found[0] == "right"
    assert found[-2:] == [
        "it has no digest: it is damaged, or was not written by `tvmflow compile --standalone`",
        "it cannot be read",
    ]
    assert "right" not in found[1:]
    assert "its code is not what was written: copy it again" in found
    assert "it was cut short: copy it again" in found


@pytest.mark.cross
@pytest.mark.parametrize("host", ["linux-arm64", "android-arm64", "android-armv7"])
def test_libraries_for_other_machines_have_one(host, tmp_path):
    """Check files of 32 and 64 bits that another compiler linked."""
    path = tmp_path / "libnet.so"
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(range(256)))
    link.link_library(b"plan", weights, Host.parse(host), path, embed=True)
    check_code(path)
    content = bytearray(path.read_bytes())
    section = elf.read_library(path).sections[".tvmflow.weights"]
    for at, refused in ((section.offset + 200, False), (section.offset + 100, True), (24, True)):
        changed = bytearray(content)
        changed[at] ^= 4
        path.write_bytes(changed)
        if refused:
            with pytest.raises(ArtifactError, match="not what was written"):
                check_code(path)
        else:
            check_code(path)
