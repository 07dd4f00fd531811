"""Damaged or truncated plans, weights and libraries: refused, without a crash."""

from __future__ import annotations

import ctypes
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from support import runtime_build
from support import standalone_api as api
from support.commands import output
from support.fake_opencl import build_fake
from support.small_plans import Plan, add_plan, sealed

from tvmflow.module.standalone import binding
from tvmflow.module.standalone.format import HEADER, RECORDS, AlternativeKind, Section

SOURCE = Path(__file__).parent / "damage.c"
SIZE = 64


def rich_plan() -> Plan:
    """Return a plan with records of all kinds."""
    plan, _ = add_plan(SIZE)
    image = plan.image(3, 2, 2)
    kernels = "__kernel void other(read_only image2d_array_t x) {}\n"
    kernels += "__kernel void picture(global float* x, constant int* g, global uchar* p) {}\n"
    other = plan.program(kernels, "-DA=1")
    plan.launch("other", [image], (6, 4, 2), (3, 2, 1), program=other)
    plan.input("image", (2, 2, 3, 4), image, regions=[(0, (0, 0, 0), (3, 2, 2))])
    plan.input("half", (2, 5), plan.buffer(20), half=True)
    plan.rows[Section.EXTENSIONS].append("cl_khr_byte_addressable_store")
    plan.input("photo", (1, 3, 4, 5), plan.buffer(240))
    plan.output("boxes", (2, 4), plan.buffer(32))
    plan.picture("picture", input=3, program=other)
    plan.rows[Section.BOXES].append({"output": 1})
    plan.test([(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 1)], {0: np.arange(SIZE)}, stride=2)
    plan.rows[Section.SHAPES].append({"first_launch": 0, "launches": 2})
    row = {"weight": 0, "element_bytes": 4, "from_lanes": 4, "to_lanes": 8, "inner": 1}
    plan.rows[Section.DERIVED].append({**row, "from_bytes": 4 * SIZE})
    shared = {"allocation": plan.buffer(4 * 4 * 8), "bytes": 4 * 4 * 8}
    plan.rows[Section.WEIGHTS].append(plan.rows[Section.WEIGHTS][0] | shared)
    plan.rows[Section.DERIVED].append({**row, "weight": 1, "from_bytes": 4 * 4 * 9})
    plan.rows[Section.TRANSFORMED].append({"derived": 1, "side": 2, "rows": np.ones(18)})
    plan.tensor(0, 2, np.arange(SIZE), stride=2)
    plan.tensor(1, image, np.arange(24), size=(3, 2))
    launch = plan.launch("other", [image], (6, 4, 2), (3, 2, 1), program=other)
    plan.alternative(1, 1, launch, AlternativeKind.PLAIN)
    return plan


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Return a driver that checks how it is used and leaves nothing."""
    return build_fake(tmp_path_factory.mktemp("driver"), *runtime_build.SANITIZERS)


def test_each_byte_of_a_plan_and_of_the_weights_header_matters_or_does_not(tmp_path, fake):
    plan, _ = add_plan(SIZE)
    encoded = plan.encode()
    program = runtime_build.program(tmp_path / "damage", SOURCE, encoded, plan.weights())
    # Reserved fields in the weights' header are not read.
    driver = {"TVMFLOW_OPENCL_LIBRARY": fake}
    assert output(program, "create", SIZE, **driver).splitlines() == [
        f"plan {len(encoded)} refused 0 taken",
        f"weights {128 - 68} refused 68 taken",
    ]
    output(program, "many", SIZE, 1000, **driver)


def test_wrong_records_under_a_right_checksum_are_not_followed(tmp_path):
    program = runtime_build.program(tmp_path / "damage", SOURCE, rich_plan().encode())
    tried, _, taken, _ = output(program, "records", TVMFLOW_OPENCL_LIBRARY="").split()
    assert int(tried) > 5000
    assert 0 < int(taken) < 0.7 * int(tried)


@pytest.mark.parametrize("section", [Section.SOURCES, Section.DIGESTS])
def test_text_that_is_not_what_was_packed_is_refused(section, tmp_path, driver):
    """Its checksum is right; the fault is found only if no cache has the program."""
    plan, _ = add_plan(SIZE)
    changed = bytearray(plan.encode())
    header = np.frombuffer(bytes(changed[: HEADER.itemsize]), HEADER)
    offset, count = header[0]["section"][section].tolist()
    changed[offset + count // 2] ^= 1
    path = runtime_build.link(tmp_path / "changed.so", sealed(bytes(changed)), plan.weights())
    with pytest.raises(api.CallError, match="kernels in the library: they are damaged") as caught:
        api.Model(path, opencl_library=driver)
    assert caught.value.status == api.DAMAGED


def set_field(plan: Plan, section: Section, index: int, **fields: object) -> Plan:
    plan.rows[section][index].update(fields)
    return plan


WRONG = [
    (Section.ALLOCATIONS, 0, {"kind": 2}),
    (Section.ALLOCATIONS, 0, {"bytes": 0}),
    (Section.ALLOCATIONS, 0, {"bytes": 255}),
    (Section.ALLOCATIONS, 0, {"bytes": 1 << 63}),
    (Section.ALLOCATIONS, 3, {"channel_type": 0x10D2}),
    (Section.ALLOCATIONS, 3, {"image_size": (0, 2, 2)}),
    (Section.ALLOCATIONS, 3, {"image_size": (1 << 31, 1 << 31, 1 << 31)}),
    (Section.ALLOCATIONS, 3, {"bytes": 12 * 16 + 16}),
    (Section.WEIGHTS, 0, {"name": 10_000}),
    (Section.WEIGHTS, 0, {"allocation": 9}),
    (Section.WEIGHTS, 0, {"allocation": 0}),
    (Section.WEIGHTS, 0, {"offset": 0}),
    (Section.WEIGHTS, 0, {"offset": 129}),
    (Section.WEIGHTS, 0, {"offset": 256}),
    (Section.WEIGHTS, 0, {"offset": 2**64 - 128}),
    (Section.WEIGHTS, 0, {"bytes": 257}),
    (Section.PROGRAMS, 0, {"offset": 2**32 - 1}),
    (Section.PROGRAMS, 0, {"bytes": 100_000}),
    (Section.PROGRAMS, 0, {"options": 100_000}),
    (Section.LAUNCHES, 0, {"program": 2}),
    (Section.LAUNCHES, 0, {"kernel": 2**32 - 1}),
    (Section.LAUNCHES, 0, {"first_argument": 2**32 - 1}),
    (Section.LAUNCHES, 0, {"arguments": 7}),
    (Section.LAUNCHES, 0, {"dimensions": 0}),
    (Section.LAUNCHES, 0, {"dimensions": 4}),
    (Section.LAUNCHES, 0, {"global": (65, 1, 1)}),
    (Section.LAUNCHES, 0, {"global": (0, 1, 1)}),
    (Section.LAUNCHES, 0, {"local": (0, 1, 1)}),
    (Section.ARGUMENTS, 0, {"kind": 2}),
    (Section.ARGUMENTS, 0, {"allocation": 8}),
    (Section.ARGUMENTS, 3, {"bytes": 9}),
    (Section.ARGUMENTS, 3, {"bytes": 0}),
    (Section.INPUTS, 0, {"dtype": 13}),
    (Section.INPUTS, 0, {"dimensions": 9}),
    (Section.INPUTS, 0, {"shape": (-64,) + (0,) * 7}),
    (Section.INPUTS, 0, {"shape": (1 << 62,) * 8, "dimensions": 8}),
    (Section.INPUTS, 0, {"bytes": 252}),
    (Section.INPUTS, 0, {"allocation": 1}),
    (Section.INPUTS, 0, {"allocation": 77}),
    (Section.INPUTS, 0, {"half": 2}),
    (Section.INPUTS, 0, {"regions": 1}),
    (Section.INPUTS, 1, {"regions": 0}),
    (Section.INPUTS, 1, {"regions": 2}),
    (Section.INPUTS, 1, {"half": 1}),
    (Section.OUTPUTS, 0, {"layout": 2**31}),
    (Section.REGIONS, 0, {"element": 1}),
    (Section.REGIONS, 0, {"element": 2**64 - 4}),
    (Section.REGIONS, 0, {"origin": (1, 0, 0)}),
    (Section.REGIONS, 0, {"origin": (2**32 - 1, 0, 0)}),
    (Section.REGIONS, 0, {"size": (3, 2, 3)}),
    (Section.REGIONS, 0, {"size": (3, 0, 2)}),
    (Section.TEST_INPUTS, 0, {"low": np.nan}),
    (Section.TEST_INPUTS, 0, {"high": np.inf}),
    (Section.TEST_INPUTS, 0, {"low": 2.0}),
    (Section.TEST_OUTPUTS, 0, {"output": 1}),
    (Section.TEST_OUTPUTS, 0, {"first_value": 1}),
    (Section.TEST_OUTPUTS, 0, {"count": 33}),
    (Section.TEST_OUTPUTS, 0, {"count": 0}),
    (Section.TEST_OUTPUTS, 0, {"stride": 0}),
    (Section.TEST_OUTPUTS, 0, {"stride": 2**63}),
    (Section.TEST_OUTPUTS, 0, {"stride": 3}),
    (Section.TEST_OUTPUTS, 0, {"rtol": np.nan}),
    (Section.TEST_OUTPUTS, 0, {"atol": -1.0}),
    (Section.SHAPES, 0, {"first_launch": 1}),
    (Section.SHAPES, 0, {"launches": 0}),
    (Section.SHAPES, 0, {"launches": 1}),
    (Section.SHAPES, 0, {"launches": 2**32 - 1}),
    (Section.DERIVED, 0, {"weight": 2}),
    (Section.DERIVED, 0, {"element_bytes": 0}),
    (Section.DERIVED, 0, {"element_bytes": 9}),
    (Section.DERIVED, 0, {"from_lanes": 0}),
    (Section.DERIVED, 0, {"to_lanes": 0}),
    (Section.DERIVED, 0, {"to_lanes": 7}),
    (Section.DERIVED, 0, {"inner": 2**63}),
    (Section.DERIVED, 0, {"from_bytes": 2**40}),
    (Section.DERIVED, 0, {"from_bytes": 100}),
    (Section.DERIVED, 0, {"form": 3}),
    (Section.DERIVED, 0, {"form": 1, "element_bytes": 8}),
    (Section.DERIVED, 0, {"form": 1, "from_bytes": 4 * SIZE + 4}),
    (Section.DERIVED, 0, {"form": 2, "axes": 0, "steps": 128}),
    (Section.DERIVED, 0, {"form": 2, "axes": 4, "steps": 128}),
    (Section.DERIVED, 0, {"form": 2, "axes": 3, "steps": 0}),
    (Section.DERIVED, 0, {"form": 2, "axes": 3, "steps": 132}),
    (Section.DERIVED, 0, {"form": 2, "axes": 3, "steps": 2**40}),
    (Section.DERIVED, 1, {"from_bytes": 160}),
    (Section.DERIVED, 1, {"form": 1}),
    (Section.TRANSFORMED, 0, {"derived": 2}),
    (Section.TRANSFORMED, 0, {"side": 0}),
    (Section.TRANSFORMED, 0, {"side": 3}),
    (Section.TRANSFORMED, 0, {"side": 7}),
    (Section.PICTURES, 0, {"input": 4}),
    (Section.PICTURES, 0, {"input": 1}),
    (Section.PICTURES, 0, {"format": 9}),
    (Section.PICTURES, 0, {"fit": 3}),
    (Section.PICTURES, 0, {"rotation": 45}),
    (Section.PICTURES, 0, {"rotation": 360}),
    (Section.PICTURES, 0, {"width": 5}),
    (Section.PICTURES, 0, {"program": 2}),
    (Section.PICTURES, 0, {"kernel": 2**31}),
    (Section.PICTURES, 0, {"image_kernel": 2**31}),
    (Section.PICTURES, 0, {"arrangement": 1}),
    (Section.PICTURES, 0, {"arrangement": 2}),
    (Section.PICTURES, 0, {"arrangement": 3}),
    (Section.PICTURES, 0, {"channels": 1}),
    (Section.PICTURES, 0, {"channels": 2}),
    (Section.PICTURES, 0, {"swapped": 2}),
    (Section.PICTURES, 0, {"video": 2}),
    (Section.TEST_TENSORS, 1, {"launch": 2}),
    (Section.TEST_TENSORS, 0, {"allocation": 77}),
    (Section.TEST_TENSORS, 0, {"dtype": 99}),
    (Section.TEST_TENSORS, 1, {"dtype": 1}),
    (Section.TEST_TENSORS, 0, {"first_value": 2**31}),
    (Section.TEST_TENSORS, 1, {"first_value": SIZE}),
    (Section.TEST_TENSORS, 0, {"count": 0}),
    (Section.TEST_TENSORS, 0, {"stride": 0}),
    (Section.TEST_TENSORS, 0, {"stride": 3}),
    (Section.TEST_TENSORS, 0, {"stride": 2**31}),
    (Section.TEST_TENSORS, 0, {"nodes": 2**31}),
    (Section.TEST_TENSORS, 0, {"rtol": np.nan}),
    (Section.TEST_TENSORS, 0, {"atol": -1.0}),
    (Section.TEST_TENSORS, 1, {"size": (0, 2)}),
    (Section.TEST_TENSORS, 1, {"size": (4, 2)}),
    (Section.TEST_TENSORS, 1, {"size": (2, 2)}),
    (Section.ALTERNATIVES, 0, {"first": 2}),
    (Section.ALTERNATIVES, 0, {"first": 2**32 - 1}),
    (Section.ALTERNATIVES, 0, {"count": 2}),
    (Section.ALTERNATIVES, 0, {"other_first": 1}),
    (Section.ALTERNATIVES, 0, {"other_count": 0}),
    (Section.ALTERNATIVES, 0, {"other_count": 2}),
    (Section.BOXES, 0, {"output": 0}),
    (Section.BOXES, 0, {"output": 2}),
    (Section.BOXES, 0, {"picture": 1}),
    (Section.BOXES, 0, {"form": 4}),
    (Section.BOXES, 0, {"unit": 2}),
]


@pytest.fixture(scope="module")
def open_plan(tmp_path_factory):
    """Return a function that calls `tf_plan_open`; it returns status and message."""
    path = tmp_path_factory.mktemp("plan") / "libplan.so"
    sources = [runtime_build.NATIVE / name for name in ("plan.c", "message.c")]
    sources += [runtime_build.CORE / name for name in ("errors.c", "text.c")]
    output(*runtime_build.COMPILER, "-std=gnu11", "-shared", "-fPIC", *sources, "-o", path)
    library = ctypes.CDLL(str(path))

    def run(encoded: bytes):
        plan, message = ctypes.create_string_buffer(256), ctypes.create_string_buffer(8192)
        # Aligned as in a linked library.
        data = np.zeros(len(encoded) // 8 + 1, np.uint64)
        data.view(np.uint8)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        pointer = data.ctypes.data_as(ctypes.c_void_p)
        status = library.tf_plan_open(plan, pointer, ctypes.c_size_t(len(encoded)), message)
        return status, message.value.decode()

    return run


def test_a_plan_with_records_of_all_kinds_is_right(open_plan):
    plan = rich_plan()
    # The records of these sections follow from others.
    made = (Section.TEST_VALUES, Section.TENSOR_VALUES, Section.DIGESTS)
    assert all(plan.rows[section] for section in RECORDS if section not in made)
    assert open_plan(plan.encode()) == (api.OK, "")
    # A text that DEFLATE compresses this well is not damage.
    plan.program(" " * 1_000_000)
    assert open_plan(plan.encode()) == (api.OK, "")


@pytest.mark.parametrize(("section", "index", "fields"), WRONG)
def test_what_is_wrong_in_a_record_is_named(open_plan, section, index, fields):
    status, message = open_plan(set_field(rich_plan(), section, index, **fields).encode())
    assert status == api.DAMAGED
    tests = (Section.TEST_INPUTS, Section.TEST_OUTPUTS)
    named = "self-test" if section in tests else "record of section TF_"
    named = "its shapes" if section in (Section.SHAPES, Section.ALTERNATIVES) else named
    assert named in message


@pytest.fixture(scope="module")
def sidecar(link):
    """Return a library whose weights are in a sidecar file; the file and the weights."""
    plan, w = add_plan(SIZE)
    path = link(plan, weights=b"")
    weights = path.with_name(f"{path.name}.weights")
    weights.write_bytes(plan.weights())
    return path, weights, w


@pytest.mark.opencl
def test_weights_in_a_file_beside_the_library(sidecar, tmp_path):
    library, weights, w = sidecar
    x = np.arange(SIZE, dtype=np.float32)
    other = shutil.copy(weights, tmp_path / "w")
    for options in ({}, {"weights_path": other}):
        with api.Model(library, **options) as model:
            np.testing.assert_allclose(model(x)[0], 2 * x + w, rtol=1e-6)


def test_a_library_whose_file_was_replaced_is_not_taken_for_cut_short(link, driver, tmp_path):
    """More models of it can be created, even if the new file is smaller."""
    plan, w = add_plan(SIZE)
    library = link(plan)
    x = np.zeros(SIZE, np.float32)
    with api.Model(library, opencl_library=driver):
        (tmp_path / "new").write_bytes(b"small")
        (tmp_path / "new").replace(library)
        with api.Model(library, opencl_library=driver) as model:
            np.testing.assert_array_equal(model(x)[0], w)


def test_weights_that_are_cut_short_missing_or_anothers(sidecar, tmp_path):
    library, weights, _ = sidecar
    content = weights.read_bytes()
    another = add_plan(SIZE, seed=2)[0].weights()
    path = tmp_path / "w"
    for changed, text in (
        (content[:-1], "cut short"),
        (content[:128], "cut short"),
        (content[:127], "cut short"),
        (b"", "cut short"),
        (content + b"\0", "cut short"),
        (b"x" + content[1:], "damaged"),
        (another, "another model"),
    ):
        path.write_bytes(changed)
        with pytest.raises(api.CallError, match=text) as caught:
            api.Model(library, weights_path=path)
        assert caught.value.status == api.DAMAGED
        assert "Remedy: " in caught.value.message
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(api.CallError, match="weights") as caught:
            api.Model(library, weights_path=wrong)
        assert caught.value.status == api.DAMAGED


@pytest.mark.parametrize("position", [128, 129, 200, -1])
def test_a_flipped_byte_of_the_weights_is_noticed(sidecar, link, driver, tmp_path, position):
    """The weights are in a sidecar, and in the library; the application may skip the check."""
    plan, w = add_plan(SIZE)
    content = bytearray(plan.weights())
    content[position] ^= 0x10
    path = tmp_path / "w"
    path.write_bytes(content)
    inside = link(plan, weights=bytes(content))
    for library, options in ((sidecar[0], {"weights_path": path}), (inside, {})):
        options["opencl_library"] = driver
        with pytest.raises(api.CallError, match="they are damaged, their checksum") as caught:
            api.Model(library, **options)
        assert caught.value.status == api.DAMAGED
        assert "Remedy: " in caught.value.message
        x = np.zeros(SIZE, np.float32)
        with api.Model(library, flags=binding.UNCHECKED_WEIGHTS, **options) as model:
            assert (model(x)[0] != w).sum() == 1


def test_large_weights_are_compared_in_pieces(link, driver):
    """The pieces have 16 MiB: change a byte in each, and after the last."""
    count = (33 << 20) // 4
    plan, w = add_plan(count)
    content = plan.weights()
    library = link(plan, weights=b"")
    path = library.with_name(f"{library.name}.weights")
    path.write_bytes(content)
    with api.Model(library, opencl_library=driver) as model:
        np.testing.assert_array_equal(model(np.zeros(count, np.float32))[0], w)
    for position in (1 << 20, 17 << 20, len(content) - 1):
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([content[position] ^ 1]))
            file.flush()
            with pytest.raises(api.CallError, match="checksum"):
                api.Model(library, opencl_library=driver)
            file.seek(position)
            file.write(content[position : position + 1])


def end_of_segments(path: Path) -> int:
    data = path.read_bytes()
    table, entry, entries = (
        struct.unpack_from(f, data, at)[0] for f, at in (("<Q", 32), ("<H", 54), ("<H", 56))
    )
    headers = [data[table + i * entry :] for i in range(entries)]
    return max(
        struct.unpack_from("<Q", h, 8)[0] + struct.unpack_from("<Q", h, 32)[0]
        for h in headers
        if struct.unpack_from("<I", h)[0] == 1
    )


def test_a_library_that_is_cut_short_is_noticed(tmp_path):
    plan, _ = add_plan(SIZE)
    tail = runtime_build.data_object(tmp_path / "tail.o", {"tail": b"t" * 64}, '.data, "aw"')
    path = runtime_build.link(tmp_path / "libadd.so", plan.encode(), plan.weights(), more=[tail])
    end = end_of_segments(path)
    content = path.read_bytes()
    # Use another name: the dynamic linker knows files by their identity.
    cut = tmp_path / "libcut.so"
    cut.write_bytes(content[: end - 8])
    with pytest.raises(api.CallError, match="cut short") as caught:
        api.Model(cut)
    assert caught.value.status == api.DAMAGED
