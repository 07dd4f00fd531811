"""Known faults of drivers: the table, the application's entries, and their actions."""

from __future__ import annotations

import ctypes
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import pages, runtime_build
from support.fake_opencl import Fake
from support.small_plans import add_plan, cpu_plan, values
from support.standalone_api import ARGUMENT, CallError, Model

from tvmflow.cli.inspect import _choices
from tvmflow.module.standalone.binding import LOG

TABLE = json.loads((runtime_build.NATIVE / "drivers.json").read_text())
X, W = values(64), add_plan()[1]
#: Texts that a driver with each fault of the table reports, and versions next to its range.
DRIVERS: dict[str, dict[str, Any]] = {
    "adreno-8xx-e031-47-12": {
        "VERSION": "OpenCL 3.0 Adreno(TM) 830",
        "DRIVER": "OpenCL 3.0 QUALCOMM build: 0800.1 Compiler E031.47.12.01",
        "WRONG": "all",
        "others": ["Compiler E031.47.11.99", "Compiler E031.47.18.30"],
    },
    "adreno-e031-38-to-41": {
        "VERSION": "OpenCL 2.0 Adreno(TM) 642L",
        "DRIVER": "OpenCL 2.0 QUALCOMM build: commit #272cf717f5 changeid #Iee40f504b5 Date: "
        "10/05/21 Tue Local Branch:  Remote Branch: refs/tags/AU_LINUX_ANDROID_LA.UM.9.14.11 "
        "Compiler E031.38.01.08",
        "others": ["Compiler E031.37.99.99", "Compiler E031.42.20.00", "Compiler E17.38.01"],
    },
    "adreno-750-e031-45": {
        "VERSION": "OpenCL 3.0 Adreno(TM) 750",
        "DRIVER": "OpenCL 3.0 QUALCOMM build: 0762.39 Compiler E031.45.02.26",
        "others": ["Compiler E031.44.99", "Compiler E031.46.00"],
    },
    "adreno-830-e031-47": {
        "VERSION": "OpenCL 3.0 Adreno(TM) 830",
        "DRIVER": "OpenCL 3.0 QUALCOMM build: 0800.71 Compiler E031.47.18.51",
        "others": ["Compiler E031.46.99", "Compiler E031.48.00"],
    },
    "mali-t860-r14p0-binaries": {
        "NAME": "Mali-T860",
        "VERSION": "OpenCL 1.2 v1.r14p0-01rel0-git(966ed26).f44c85cb3d2ceb87e8be88e7592755c3",
        "DRIVER": "1.2",
        "WRONG": "binary",
    },
    "mali-image-from-buffer": {"NAME": "Mali-G72", "DRIVER": "2.0"},
    "powervr-image-from-buffer": {
        "NAME": "PowerVR BXM-8-256",
        "DRIVER": "1.15@6133110",
        "others": ["24.2@6603887"],
    },
    "powervr-command-buffers": {
        "NAME": "PowerVR DXT-48-1536-0.5RT2",
        "DRIVER": "24.2@6603887",
        "EXTENSIONS": "cl_khr_command_buffer",
        "WRONG": "replay",
        "others": ["25.3@6908880", "25.4@1"],
    },
    "powervr-ge8320-optimizer": {
        "NAME": "PowerVR Rogue GE8320",
        "DRIVER": "1.13@5776728",
        "WRONG": "-cl-opt-disable",
    },
    "intel-gen9-18-45": {
        "NAME": "Intel(R) Gen9 HD Graphics NEO",
        "DRIVER": "18.45.11804",
        "WRONG": "all",
        "others": ["18.44.11760", "18.48.11934"],
    },
    "intel-arc-a770-22-53": {
        "NAME": "Intel(R) Arc(TM) A770 Graphics",
        "DRIVER": "22.53.25242.13",
        "WRONG": "all",
        "others": ["22.53.25242.14", "22.49.25018.24"],
    },
}


REPORTED = ("NAME", "VERSION", "DRIVER", "EXTENSIONS", "WRONG", "PLATFORM_NAME", "DEVICES")


@pytest.fixture(scope="module")
def library(link) -> Path:
    """Return a library for OpenCL and the CPU, without a self-test."""
    return link(add_plan()[0], cpu=cpu_plan())


@pytest.fixture(scope="module")
def without_table(link) -> Path:
    return link(add_plan()[0], cpu=cpu_plan(), drivers=b"[]")


@pytest.fixture
def fake(driver, monkeypatch) -> Iterator[Fake]:
    # Tests set -cl-opt-disable for all drivers, but here the table does.
    monkeypatch.delenv("TVMFLOW_OPENCL_OPTIONS", raising=False)
    fake = Fake(driver)
    fake.fake_reset()
    yield fake
    fake.fake_reset()
    for name in REPORTED:
        fake.set(name, None)


def entry(**changes: Any) -> dict[str, Any]:
    """Return an entry for the fake driver; ``None`` removes a key."""
    whole = {"id": "own", "fault": "none", "device": "Fake GPU", "actions": {"avoid": ["opencl"]}}
    return {key: value for key, value in (whole | changes).items() if value is not None}


def ids(model: Model) -> list[str]:
    return [fault["id"] for fault in model.describe()["faults"]]


def right(found: np.ndarray) -> bool:
    return bool(np.allclose(found, 2 * X + W, rtol=1e-5))


def test_each_entry_has_a_driver():
    assert list(DRIVERS) == [known["id"] for known in TABLE]
    assert all(known["report"].startswith("https://") for known in TABLE)


@pytest.mark.parametrize("known", TABLE, ids=lambda known: known["id"])
def test_results_are_right_with_the_table(library, without_table, driver, fake, tmp_path, known):
    reported = DRIVERS[known["id"]]
    for name in REPORTED[:5]:
        fake.set(name, reported.get(name))
    options = {"opencl_library": driver, "cache_folder": tmp_path / "with"}
    for _ in range(2):  # the second start may find binaries
        with Model(library, **options) as model:
            assert right(model(X)[0])
            faults = {fault["id"]: fault for fault in model.describe()["faults"]}
            avoided = model.describe()["backend"] == "cpu"
        assert faults[known["id"]]["fault"] == known["fault"]
        empty = {"avoid": [], "use": []}
        assert faults[known["id"]]["actions"] == empty | known["actions"]
        assert avoided == ("opencl" in known["actions"].get("avoid", []))
    options["cache_folder"] = tmp_path / "without"
    results = []
    for _ in range(2):
        with Model(without_table, **options) as model:
            results.append(right(model(X)[0]))
            assert not ids(model)
    assert all(results) == ("WRONG" not in reported)
    for other in reported.get("others", []):
        fake.set("DRIVER", other)
        with Model(library, opencl_library=driver) as model:
            assert known["id"] not in ids(model)
    assert not fake.violations


def test_the_guide_s_entry_is_for_its_device(library, driver, fake):
    (own,) = (block.code for block in pages.blocks("docs/deploying.md", "json"))
    fake.set("NAME", "Mali-G57 MC2")
    for version, matches in (("32p1-01eac0", True), ("38p1-01eac0", True), ("38p2-0", False)):
        fake.set("VERSION", f"OpenCL 3.0 v1.r{version}.0fd2effaec483a5f4c440d2ffa25eb7a")
        with Model(library, opencl_library=driver, drivers=own) as model:
            assert ids(model) == ["our-tablet"] * matches


def test_a_number_of_a_pattern_is_whole(library, driver, fake):
    fake.set("NAME", "Mali-G720-Immortalis MC12")
    with Model(library, opencl_library=driver) as model:
        assert not ids(model)


@pytest.mark.parametrize(
    ("patterns", "matches"),
    [
        ({"device": "fake gpu"}, True),
        ({"device": ["none", "GPU"]}, True),
        ({"device": "F??e"}, True),
        ({"device": "OpenCL 1.2"}, True),
        ({"device": "OpenCL 1"}, True),
        ({"device": "OpenCL ?.?"}, True),
        ({"device": "Fake GPU?"}, False),
        ({"device": []}, False),
        ({"device": None, "platform": "platform"}, True),
        ({"platform": "QUALCOMM"}, False),
        ({"driver": {}}, True),
        ({"driver": {"from": "4.2", "to": "4.2"}}, True),
        ({"driver": {"from": "4.2.0.7"}}, True),
        ({"driver": {"from": "4.2.1"}}, False),
        ({"driver": {"to": "4.1"}}, False),
        ({"driver": {"to": "10"}}, True),
        ({"driver": {"from": "999999999"}}, False),
        ({"driver": {"prefix": "build ", "from": "99999999999", "to": "99999999999"}}, True),
        ({"driver": {"prefix": "absent"}}, False),
        ({"driver": {"prefix": "fake"}}, False),
        ({"driver": {"prefix": "OpenCL ", "from": "1.2"}}, True),
    ],
)
def test_entries_are_for_some_devices(library, driver, fake, patterns, matches):
    fake.set("DRIVER", "04.2@0-7 build 123456789012345678901234567890")
    own = json.dumps([entry(**patterns, actions={"options": "-w"})])
    with Model(library, opencl_library=driver, drivers=own) as model:
        assert ids(model) == ["own"] * matches


def test_what_is_avoided(link, library, driver, fake, tmp_path):
    fake.set("EXTENSIONS", "cl_khr_command_buffer cl_khr_priority_hints")
    fake.fake_priority.restype = ctypes.c_char_p

    def start(avoid: list[str], use: list[str] = (), path: Path = library, **options):
        actions = {"avoid": avoid, "use": list(use)}
        own = json.dumps([entry(actions=actions)]) if avoid or use else None
        fake.fake_reset()
        fake.fake_priority()
        whole = {"opencl_library": driver, "cache_folder": tmp_path, "priority": 2} | options
        with Model(path, drivers=own, **whole) as model:
            assert right(model(X)[0])
            about = model.describe()
        return about, fake.fake_count(b"source"), fake.fake_priority()

    start([])
    about, built, priority = start([])
    assert (about["recording"], built, priority) == ("cl_khr_command_buffer", 0, b"high")
    assert about["faults"] == []
    assert start(["recording"])[0]["recording"] == ""
    assert start(["binaries"])[1] == 1
    assert start(["priority"])[2] == b""
    assert start(["opencl"])[0]["backend"] == "cpu"
    # Without the CPU's kernels, or if the application wants OpenCL, the fault is only reported.
    only = link(add_plan()[0])
    for options in ({"path": only}, {"backend": 1}):
        about = start(["opencl"], **options)[0]
        assert about["backend"] == "opencl"
        assert [fault["id"] for fault in about["faults"]] == ["own"]
    reserved = start(["image_from_buffer", "dot_products"], ["safe_kernels"])[0]
    assert reserved["backend"] == "opencl"
    fake.set("DEVICES", "cpu")
    assert start([])[0]["memory"]["weights_shared"]
    assert not start(["shared_memory"])[0]["memory"]["weights_shared"]


def test_binaries_of_other_options_are_not_used(library, driver, fake, tmp_path):
    tables = [[], [entry(actions={"options": "-cl-opt-disable"})]]
    fake.set("WRONG", "-cl-opt-disable")
    for table, is_right in zip(tables * 2, (False, True) * 2, strict=True):
        options = {"opencl_library": driver, "cache_folder": tmp_path}
        with Model(library, drivers=json.dumps(table), **options) as model:
            assert right(model(X)[0]) == is_right
    assert fake.fake_count(b"source") == fake.fake_count(b"binary") == 2
    long = [entry(id=f"{i}", actions={"options": "-D" + "x" * 100}) for i in range(3)]
    with pytest.raises(CallError, match="options of all faults of the device are too long"):
        Model(library, opencl_library=driver, drivers=json.dumps(long))


def test_a_choice_is_made_again_with_another_table(link, driver, fake, tmp_path):
    opencl, cpu = add_plan()[0], cpu_plan()
    for plan in (opencl, cpu):
        plan.test([(3, 0.5, 0.5)], {0: 1 + W})
    library = link(opencl, cpu=cpu)
    fake.set("WRONG", "-cl-opt-disable")
    own = json.dumps([entry(actions={"options": "-cl-opt-disable"})])
    for table, backend in ((None, "cpu"), (own, "opencl"), (None, "cpu")):
        options = {"opencl_library": driver, "cache_folder": tmp_path, "drivers": table}
        with Model(library, **options) as model:
            assert model.describe()["backend"] == backend


def test_faults_are_logged_described_and_printed_as_they_are_written(library, driver, fake):
    lines: list[str] = []
    log = LOG(lambda _, level, text: lines.append(f"{level} {text.decode()}"))
    own = entry(id='a"\\', fault="Grüße 𝄞/", report="https://a", actions={"options": '-DX="1"'})
    for ascii_only in (True, False):
        table = json.dumps([own], ensure_ascii=ascii_only, indent=2)
        with Model(library, opencl_library=driver, drivers=table, log=log) as model:
            (found,) = model.describe()["faults"]
            printed = dict(_choices(model.describe()))
        actions = {"options": '-DX="1"', "avoid": [], "use": []}
        assert found == {"id": own["id"], "fault": own["fault"], "actions": actions}
        assert printed[f"fault {own['id']}"] == own["fault"]
    (line, _) = [line for line in lines if "known fault" in line]
    assert line.startswith("0 Device 'Fake GPU' has the known fault 'a\"\\': Grüße 𝄞/ {")
    assert line.endswith("Report: https://a")


WHOLE = json.dumps([entry()])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected '\\[', found the end"),
        ("{}", r"expected '\[', found '{'"),
        ("[]]", "line 1, column 3: expected the end, found ']'"),
        ("[\n {},", "the entry '' has no 'id'"),
        ("[1]", "expected '{', found '1'"),
        (WHOLE[:-1], "expected ',' or ']', found the end"),
        (WHOLE[:40], "found the end"),
        (WHOLE.replace('"own"', "3" * 99), "column 9: expected a string, found '3'"),
        (WHOLE.replace('"own"', "true"), "expected a string, found 't'"),
        (WHOLE.replace('"own"', '["own"]'), r"expected a string, found '\['"),
        (WHOLE.replace('"Fake GPU"', "[" * 99), r"expected a string, found '\['"),
        (WHOLE.replace("opencl", "everything"), "unknown action 'everything'"),
        (WHOLE.replace("avoid", "reboot"), "unknown action 'reboot'"),
        (WHOLE.replace("fault", "cause"), "unknown key 'cause'"),
        (WHOLE.replace("fault", "id"), "a second key 'id'"),
        (WHOLE.replace('["opencl"]', "[]"), "there is no action"),
        (WHOLE.replace("own", "x" * 64), "a string of more than 63 bytes"),
        (WHOLE.replace("own", "\\x"), "an escape that JSON does not have"),
        (WHOLE.replace("own", "\\u12"), "an escape"),
        (WHOLE.replace("own", "\\ud834"), "an escape"),
        (WHOLE.replace("own", "a\tb"), "a control character"),
        (WHOLE.replace("}]", "},]"), "expected '{', found ']'"),
        (WHOLE.replace('"Fake GPU"', '""'), "an empty pattern"),
        (json.dumps([entry(device=None)]), "the entry 'own' has no 'platform' or 'device'"),
        (json.dumps([entry(driver={"from": "v1"})]), "'v1' is no version"),
        (json.dumps([entry(driver={"from": "1."})]), "'1.' is no version"),
        (json.dumps([entry(driver={"from": ".".join("1" * 9)})]), "is no version"),
        (json.dumps([entry(driver={"until": "1"})]), "unknown key 'until' of 'driver'"),
    ],
)
def test_a_table_that_does_not_parse_is_refused(library, driver, fake, text, message):
    with pytest.raises(CallError, match=message) as caught:
        Model(library, opencl_library=driver, drivers=text)
    assert caught.value.status == ARGUMENT
    assert "Reading the table of drivers' faults in the options: line" in caught.value.message
    # A library that runs on the CPU, too, refuses it.
    with pytest.raises(CallError, match=message):
        Model(library, backend=2, drivers=text)
    assert fake.live == ""


def test_a_damaged_table_of_the_library_is_refused(link, driver):
    library = link(add_plan()[0], drivers=b"[{]")
    with pytest.raises(CallError, match="faults in the library: line 1, column 3") as caught:
        Model(library, opencl_library=driver)
    assert caught.value.status == ARGUMENT


# -- many texts, under sanitizers ------------------------------------------------------------


def damaged(text: bytes, rng: np.random.Generator) -> bytes:
    """Change, remove, repeat or insert some bytes."""
    for _ in range(rng.integers(1, 4)):
        at, length = int(rng.integers(len(text) + 1)), int(rng.integers(1, 12))
        piece = bytes(rng.choice(list(b'[]{}",:\\u0 \n\x01\x80\xe2\xf0'), length))
        kept = text[at + length :] if rng.random() < 0.5 else text[at:]
        text = text[:at] + (piece if rng.random() < 0.6 else text[at : at + length] * 2) + kept
    return text.replace(b"\0", b"")


def is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode())
    except ValueError:
        return False
    return True


def test_texts_are_read_within_their_bounds(tmp_path):
    rng = np.random.default_rng(0)
    source = Path(__file__).with_name("read_drivers.c")
    data = runtime_build.program(tmp_path / "read_drivers", source, b"")
    whole = json.dumps([*TABLE, entry(fault="é𝄞 \n")]).encode()
    small = json.dumps([entry(driver={"prefix": "Compiler E031.", "from": "38"})]).encode()
    texts = [whole, small, *(small[:i] for i in range(len(small)))]
    texts += [damaged(small, rng) for _ in range(4000)] + [damaged(whole, rng) for _ in range(200)]
    texts += [b"[" * 100_000, b'["' + b"x" * 100_000, b"[{" * 1000, b" " * 100_000]
    file = tmp_path / "texts"
    file.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in texts))
    done = subprocess.run([data, file], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(texts)
    taken = [line.startswith("0 ") for line in lines]
    assert taken[:2] == [True, True]
    assert lines[1] == "0 1"
    assert not any(taken[2 : len(small) + 2])
    assert all(is_json(text) for text, was in zip(texts, taken, strict=True) if was)
    assert 0.02 * len(texts) < sum(taken) < 0.5 * len(texts)
